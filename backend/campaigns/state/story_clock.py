"""The story's day and time of day at messages of campaigns, folded from the ledger."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import and_, bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.events import UserSignedOut
from backend.campaigns.ledger.changes import Operations, fold
from backend.campaigns.ledger.store import read_operations
from backend.campaigns.models import CampaignChange, ChangeSource
from backend.campaigns.state.index_source import find_origins
from backend.chats.models import Chat, Message
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import skip_index, split_chunks
from backend.memory.indexing.sources import MemoryItem
from backend.vault.sealing import Sealer

MAX_CAMPAIGNS = 64

_FIELDS = ("day", "time_of_day")

_MESSAGES = (
    select(Message.id, Message.chat_id, Message.position, Message.created_at, Chat.campaign_id)
    .join(Chat, Chat.id == Message.chat_id)
    .where(
        Message.id.in_(bindparam("messages", expanding=True)),
        skip_index(Chat.user_id) == bindparam("owner"),
        Chat.campaign_id.is_not(None),
    )
)
# The world of a campaign has the campaign's id.
_NEW = (
    select(CampaignChange.id, CampaignChange.seq, CampaignChange.sealed_operations)
    .where(
        CampaignChange.item_id == bindparam("campaign"),
        skip_index(CampaignChange.user_id) == bindparam("owner"),
        CampaignChange.seq > bindparam("after"),
    )
    .order_by(CampaignChange.seq)
)
_COUNTING = (
    select(
        CampaignChange.id, CampaignChange.created_at, ChangeSource.chat_id, ChangeSource.position
    )
    .outerjoin(
        ChangeSource,
        and_(
            ChangeSource.change_id == CampaignChange.id,
            ChangeSource.chat_id.in_(bindparam("chats", expanding=True)),
        ),
    )
    .where(
        CampaignChange.id.in_(bindparam("changes", expanding=True)),
        CampaignChange.is_on_path,
        ~CampaignChange.is_undone,
    )
)


class StoryTime(NamedTuple):
    """A moment of a story. `time` is the time of day in words; it may be empty."""

    day: int
    time: str

    @property
    def label(self) -> str:
        return f"Day {self.day}"


@dataclass(frozen=True, slots=True)
class _ClockChanges:
    """The changes of a campaign's day and time, through the change `last_seq` of its world."""

    user_id: UUID
    last_seq: int = 0
    found: Sequence[tuple[UUID, Operations]] = ()


class StoryClock(UserSignedOut):
    """Finds the story's time at messages.

    The world changes with nearly each turn, its day seldom. Changes of the day and time are kept
    unsealed between requests.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[UUID, _ClockChanges] = OrderedDict()

    async def find_times(
        self,
        session: AsyncSession,
        sealer: Sealer,
        message_ids: Collection[UUID],
        *,
        is_committed: bool = True,
    ) -> dict[UUID, StoryTime]:
        """Return the story's time at each message of a campaign.

        A change counts for its message and those after it in the chat. Without a message of the
        chat, it counts from the time when it was made. The first day also holds before.
        """
        by_campaign: defaultdict[UUID, list[Any]] = defaultdict(list)
        for ids in split_chunks(list(dict.fromkeys(message_ids))):
            asked = {"messages": ids, "owner": sealer.user_id}
            for row in await session.execute(_MESSAGES, asked):
                by_campaign[row.campaign_id].append(row)
        found: dict[UUID, StoryTime] = {}
        for campaign_id, messages in by_campaign.items():
            changes = await self._read(session, sealer, campaign_id, is_committed=is_committed)
            found |= await _fold_times(session, messages, changes)
        return found

    async def find_days(
        self, session: AsyncSession, sealer: Sealer, memories: Iterable[MemoryItem]
    ) -> dict[UUID, str]:
        """Return the story's day of each memory of a campaign, such as "Day 5", by its id.

        A memory that was made from lines has the day of the last one. Items that no line made have
        no day, and neither have events with a time of their own.
        """
        lines: dict[UUID, UUID] = {}
        past: list[UUID] = []
        for each in memories:
            if each.kind == "message":
                lines[each.source_id] = each.source_id
            elif each.kind == "event" and each.origins and not each.story_time:
                lines[each.source_id] = each.origins[-1].message_id
            elif each.kind == "campaign" and each.origins:
                lines[each.source_id] = each.origins[0].message_id
            elif each.kind == "campaign" and each.is_past:
                past.append(each.source_id)
        for item_id, origins in (await find_origins(session, sealer, past)).items():
            lines[item_id] = origins[0].message_id
        times = await self.find_times(session, sealer, list(lines.values()))
        return {
            memory_id: times[message_id].label
            for memory_id, message_id in lines.items()
            if message_id in times
        }

    def user_signed_out(self, user_id: UUID) -> None:
        for key in [key for key, kept in self._kept.items() if kept.user_id == user_id]:
            del self._kept[key]

    async def _read(
        self, session: AsyncSession, sealer: Sealer, campaign_id: UUID, *, is_committed: bool
    ) -> Sequence[tuple[UUID, Operations]]:
        kept = self._kept.get(campaign_id) or _ClockChanges(sealer.user_id)
        asked = {"campaign": campaign_id, "owner": sealer.user_id, "after": kept.last_seq}
        rows = (await session.execute(_NEW, asked)).all()
        new: list[tuple[UUID, Operations]] = []
        async for row in iterate_in_slices(rows, lambda row: len(row.sealed_operations)):
            operations = read_operations(sealer, row.id, row.sealed_operations).select(_FIELDS)
            if operations.list_keys():
                new.append((row.id, operations))
        found = [*kept.found, *new]
        if rows and is_committed:
            self._kept[campaign_id] = _ClockChanges(sealer.user_id, rows[-1].seq, found)
            self._kept.move_to_end(campaign_id)
            if len(self._kept) > MAX_CAMPAIGNS:
                self._kept.popitem(last=False)
        return found


async def _fold_times(
    session: AsyncSession, messages: Iterable[Any], changes: Sequence[tuple[UUID, Operations]]
) -> dict[UUID, StoryTime]:
    messages = list(messages)
    chats = {message.chat_id for message in messages}
    made_at: dict[UUID, Any] = {}
    positions: dict[tuple[UUID, UUID], int] = {}
    later = [change_id for change_id, _ in changes[1:]]
    for ids in split_chunks(later):
        for row in await session.execute(_COUNTING, {"changes": ids, "chats": list(chats)}):
            made_at[row.id] = row.created_at
            if row.chat_id is not None:
                place = row.id, row.chat_id
                positions[place] = min(row.position, positions.get(place, row.position))
    counting = [change_id for change_id in later if change_id in made_at]
    folded: dict[frozenset[UUID], StoryTime] = {}
    found: dict[UUID, StoryTime] = {}
    for message in messages:
        before = frozenset(
            change_id
            for change_id in counting
            if (
                made_at[change_id] <= message.created_at
                if (position := positions.get((change_id, message.chat_id))) is None
                else position <= message.position
            )
        )
        if before not in folded:
            folded[before] = _fold(changes, before)
        found[message.id] = folded[before]
    return found


def _fold(changes: Sequence[tuple[UUID, Operations]], counting: Collection[UUID]) -> StoryTime:
    counted = [
        operations
        for number, (change_id, operations) in enumerate(changes)
        if number == 0 or change_id in counting
    ]
    state: Mapping[str, Any] = fold("world", counted, {"attributes": {}})
    return StoryTime(day=state.get("day", 1), time=state.get("time_of_day", ""))
