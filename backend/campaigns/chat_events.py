"""Campaigns follow events of their chats: moved paths, forks, audiences, joining and leaving."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Select, delete, exists, func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import CampaignFields
from backend.campaigns.api.service import check_room
from backend.campaigns.files.archive import IdMap
from backend.campaigns.files.draft import CampaignDraft, LedgerLine, settle_ledger
from backend.campaigns.files.transfer import (
    CampaignRows,
    filter_existing_items,
    insert_campaign,
    make_campaign_rows,
    open_items,
)
from backend.campaigns.ledger import paths as ledger_paths
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import Change, Operations
from backend.campaigns.ledger.paths import IS_COMPACTED, clear_marks, copy_marks
from backend.campaigns.ledger.records import LOCKED, find_campaign, get_campaign, open_campaign
from backend.campaigns.models import (
    Actor,
    CampaignChange,
    CampaignItem,
    CampaignMark,
    CampaignProposal,
    ChangeSource,
    ProposalSource,
)
from backend.campaigns.scenes.chapters import find_chapters, narrow_chapters
from backend.campaigns.state.witnesses import find_message_audience
from backend.characters.models import Character
from backend.chats import tree
from backend.chats.events import (
    AudienceChanged,
    CampaignChosen,
    ChatDeleted,
    MessageRemoved,
    PathMoved,
    StoreWorld,
    WorldCopied,
    WorldParted,
    WorldShared,
    translate_audiences,
)
from backend.chats.members import load_group
from backend.chats.models import CHAT_SETTINGS, Chat, Message
from backend.chats.repository import get_chat
from backend.chats.service import read_settings
from backend.chronicles.events import ChronicleFields
from backend.chronicles.repository import make_chronicle
from backend.core.audience import GM, PUBLIC, decode_audience, intersect_audiences, may_all_know
from backend.core.cpu_pool import CpuPool
from backend.core.events import Participants
from backend.database.base import split_chunks
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.memory.indexing.outbox import IndexOutbox
from backend.quotas.service import CheckAdded
from backend.vault.sealing import Sealer


class CampaignSessions(
    AudienceChanged, CampaignChosen, ChatDeleted, MessageRemoved, PathMoved, WorldShared
):
    """Keeps the state of campaigns consistent with their chats."""

    async def audience_changed(
        self, session: AsyncSession, identity: Identity, message: Message, *, before: str
    ) -> None:
        """Undo the results of a message that other people may know, so that it is read again."""
        if message.audience != before:
            await clear_marks(session, identity.sealer, message.id)

    async def message_removed(
        self, session: AsyncSession, identity: Identity, chat: Chat, message: Message
    ) -> None:
        """Detach all changes that were made from a removed message, and delete its proposals.

        Summaries of its scenes, and chapters of these, contain it and are detached as well.
        """
        sealer = identity.sealer
        own = (
            select(CampaignChange.campaign_id, CampaignChange.id)
            .join(ChangeSource, ChangeSource.change_id == CampaignChange.id)
            .where(ChangeSource.message_id == message.id)
        )
        caused: defaultdict[UUID, set[UUID]] = defaultdict(set)
        for row in await session.execute(own):
            caused[row.campaign_id].add(row.id)
        mark = await session.get(CampaignMark, message.id)
        told = {chat.campaign_id, mark.campaign_id if mark else None, *caused} - {None}
        # Campaigns are locked in one order, so that two requests cannot deadlock.
        ids = sorted(each for each in told if each is not None)
        found = [await find_campaign(session, sealer, each, lock=True) for each in ids]
        await clear_marks(session, sealer, message.id)
        for campaign in filter(None, found):
            changes = caused[campaign.id]
            changes |= await _find_retellings(session, sealer, message, campaign.id)
            await ledger_paths.detach_changes(
                session, sealer, campaign, list(changes), chat_id=chat.id
            )
        await self._remove_proposals(session, identity, message)

    async def _remove_proposals(
        self, session: AsyncSession, identity: Identity, message: Message
    ) -> None:
        """Delete the proposals that come from no other message."""
        other = aliased(ProposalSource)
        elsewhere = exists().where(
            other.proposal_id == ProposalSource.proposal_id, other.message_id != message.id
        )
        theirs = ProposalSource.message_id == message.id
        only_here = select(ProposalSource.proposal_id).where(theirs, ~elsewhere)
        await session.execute(
            delete(CampaignProposal).where(
                CampaignProposal.id.in_(only_here), CampaignProposal.user_id == identity.user_id
            )
        )
        await session.execute(delete(ProposalSource).where(theirs))

    async def path_moved(
        self, session: AsyncSession, sealer: Sealer | None, chat: Chat, *, above: int
    ) -> None:
        """Update which changes are active to those of messages on the active path."""
        if chat.campaign_id is None:
            return
        asked = {"campaign": chat.campaign_id, "owner": chat.user_id}
        campaign = await session.scalar(LOCKED, asked)
        if campaign is not None:
            await ledger_paths.follow_path(session, sealer, campaign, chat.id, above=above)

    async def world_shared(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        fork_id: UUID,
        copied: Mapping[UUID, UUID],
    ) -> None:
        """Add a fork of a session to the campaign.

        A change is active, and a proposal is shown, while any copy of its message is on an active
        path.
        """
        source = await session.get_one(Chat, source_id)
        if source.campaign_id is None:
            return
        fork = await session.get_one(Chat, fork_id)
        fork.campaign_id = source.campaign_id
        for table in (ChangeSource, ProposalSource):
            for part in split_chunks(list(copied)):
                query = select(table.__table__).where(
                    table.chat_id == source_id, table.message_id.in_(part)
                )
                rows = [
                    {**row, "message_id": copied[row["message_id"]], "chat_id": fork_id}
                    for row in (await session.execute(query)).mappings()
                ]
                if rows:
                    await session.execute(insert(table), rows)
        await copy_marks(session, source_id, fork_id, copied)
        await session.flush()
        await self.path_moved(session, identity.sealer, fork, above=0)

    async def chat_deleted(self, session: AsyncSession, identity: Identity, chat: Chat) -> None:
        """Delete the proposals that come from no other chat."""
        theirs = aliased(ProposalSource)
        elsewhere = exists().where(
            theirs.proposal_id == ProposalSource.proposal_id, theirs.chat_id != chat.id
        )
        only_here = select(ProposalSource.proposal_id).where(
            ProposalSource.chat_id == chat.id, ~elsewhere
        )
        await session.execute(
            delete(CampaignProposal).where(
                CampaignProposal.id.in_(only_here), CampaignProposal.user_id == identity.user_id
            )
        )

    async def campaign_chosen(
        self, session: AsyncSession, identity: Identity, chat: Chat, campaign_id: UUID | None
    ) -> None:
        """Add a chat to a campaign, or remove it with None. Raises `CampaignNotFoundError`."""
        if chat.campaign_id == campaign_id:
            return
        campaign = (
            await get_campaign(session, identity, campaign_id, lock=True) if campaign_id else None
        )
        chat.campaign_id = campaign_id
        if campaign is None:
            return
        if chat.chronicle_id is None:
            chat.chronicle_id = campaign.chronicle_id
        await session.flush()
        await ledger_paths.follow_path(session, identity.sealer, campaign, chat.id, above=0)


class ItemAudiences(AudienceChanged):
    """Restricts items that come from messages, scenes and chapters to the messages' audience."""

    async def audience_changed(
        self,
        session: AsyncSession,
        identity: Identity,
        message: Message,
        *,
        before: str,  # noqa: ARG002  # the results are restricted in any case
    ) -> None:
        """Restrict the items of the message, of its scenes and of their threads to its audience.

        With hidden information or in a group, undo its changes of items that others know. A larger
        audience reveals nothing.
        """
        chat = await session.get_one(Chat, message.chat_id)
        if message.audience == PUBLIC or not message.is_active or chat.campaign_id is None:
            return
        campaign = await get_campaign(session, identity, chat.campaign_id, lock=True)
        told_to = await find_message_audience(session, identity.sealer, chat, message)
        wanted = await _find_affected(session, message, campaign.id)
        caused = _select_caused_changes(message, campaign.id)
        earlier = aliased(CampaignChange)
        created = caused.where(
            ~exists().where(
                earlier.item_id == CampaignChange.item_id, earlier.seq < CampaignChange.seq
            )
        )
        made = {row.item_id for row in await session.execute(created)}
        query = select(CampaignItem.id, CampaignItem.kind, CampaignItem.audience).where(
            CampaignItem.id.in_(wanted | made),
            or_(CampaignItem.kind.in_(("scene", "thread")), CampaignItem.id.in_(made)),
            CampaignItem.exists,
        )
        changes: list[Change] = []
        scenes: dict[UUID, str] = {}
        for item in await session.execute(query):
            column = intersect_audiences([item.audience, told_to])
            if column != item.audience:
                audience = {"audience": msgspec.to_builtins(decode_audience(column))}
                changes.append(Change(item.kind, item.id, Operations(set=audience)))
                if item.kind == "scene":
                    scenes[item.id] = column
        if scenes:
            changes += await narrow_chapters(session, identity.sealer, campaign.id, scenes)
        if changes:
            await ledger_store.append_changes(
                session, identity.sealer, campaign, changes, actor="user", message=message
            )
        hides = open_campaign(identity.sealer, campaign).settings.hidden_information
        if hides or (await load_group(session, chat.id)).is_group:
            for change in (await session.execute(caused)).all():
                if not may_all_know(change.audience, told_to):
                    await ledger_paths.undo_change(session, identity.sealer, campaign, change.id)


def _select_caused_changes(message: Message, campaign_id: UUID) -> Select[UUID, UUID, str]:
    """Select active changes that a turn or its background work made because of a message."""
    return (
        select(CampaignChange.id, CampaignChange.item_id, CampaignItem.audience)
        .join(ChangeSource, ChangeSource.change_id == CampaignChange.id)
        .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
        .where(
            ChangeSource.message_id == message.id,
            CampaignChange.campaign_id == campaign_id,
            CampaignChange.actor.in_(("tool", "compactor")),
            CampaignChange.is_on_path,
            ~CampaignChange.is_undone,
        )
    )


async def _find_affected(session: AsyncSession, message: Message, campaign_id: UUID) -> set[UUID]:
    """Return scenes that summarise a message, and the items that changed with their summaries."""
    _, versions = await _find_summaries(session, message, campaign_id)
    together = select(CampaignChange.item_id).where(
        CampaignChange.campaign_id == campaign_id, CampaignChange.version.in_(versions)
    )
    return set(await session.scalars(together)) if versions else set()


async def _find_retellings(
    session: AsyncSession, sealer: Sealer, message: Message, campaign_id: UUID
) -> set[UUID]:
    """Return the changes of scenes' summaries that contain a message, and of their chapters."""
    scenes, versions = await _find_summaries(session, message, campaign_id)
    chapters = await find_chapters(session, sealer, campaign_id, scenes)
    query = select(CampaignChange.id).where(
        CampaignChange.campaign_id == campaign_id,
        CampaignChange.actor == "compactor",
        or_(CampaignChange.version.in_(versions), CampaignChange.item_id.in_(chapters)),
    )
    return set(await session.scalars(query)) if versions else set()


async def _find_summaries(
    session: AsyncSession, message: Message, campaign_id: UUID
) -> tuple[set[UUID], set[int]]:
    """Return the scenes that summarise a message, and the versions of their summaries."""
    compressed = (
        select(CampaignChange.item_id, CampaignChange.version)
        .join(ChangeSource, ChangeSource.change_id == CampaignChange.id)
        .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
        .where(
            ChangeSource.chat_id == message.chat_id,
            ChangeSource.position >= message.position,
            CampaignChange.campaign_id == campaign_id,
            CampaignChange.actor == "compactor",
            ~IS_COMPACTED,
            CampaignChange.is_on_path,
            ~CampaignChange.is_undone,
            CampaignItem.kind == "scene",
        )
    )
    scenes: set[UUID] = set()
    versions: set[int] = set()
    for row in (await session.execute(compressed)).all():
        of_scene = select(CampaignChange.id).where(
            CampaignChange.item_id == row.item_id, CampaignChange.is_on_path
        )
        begun = await session.scalar(
            select(func.min(ChangeSource.position)).where(
                ChangeSource.chat_id == message.chat_id, ChangeSource.change_id.in_(of_scene)
            )
        )
        # It begins with the message that its first reply answers.
        if begun is not None and begun - 1 <= message.position:
            scenes.add(row.item_id)
            versions.add(row.version)
    return scenes, versions


MAX_NAME = 200
COPY_SUFFIX = " (copy)"

_RANK: Mapping[Actor, int] = {"user": 0, "import": 0, "tool": 1, "compactor": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldAtMessage:
    """The sealed campaign at the time of a message.

    `writers` are rows of (item, actor, time). `characters` are all of the user's.
    """

    campaign_id: UUID
    fields: CampaignFields
    compactions: int
    items: Sequence[Any]
    writers: Sequence[Any]
    characters: Sequence[UUID]


@dataclass(frozen=True, slots=True)
class WorldCopy:
    """The rows of a copied world, and the new ids of its entities by the old ones."""

    rows: CampaignRows
    draft: CampaignDraft


class WorldCopies(WorldCopied):
    """Creates a campaign for the copy of a campaign's chat. `checks_added` can refuse it."""

    def __init__(
        self,
        database: Database,
        outbox: IndexOutbox,
        pool: CpuPool,
        *,
        participants: Participants,
        checks_added: Collection[CheckAdded],
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._pool = pool
        self._participants = participants
        self._checks_added = checks_added

    async def world_copied(self, identity: Identity, chat_id: UUID, message_id: UUID) -> StoreWorld:
        """Copy the campaign of a chat at a message. Raises `ValidationError` if there is none.

        Storing raises `CampaignFullError`, `ChronicleFullError`, `StorageQuotaExceededError`.
        """
        world = await self._read(identity, chat_id, message_id)
        work = partial(copy_world, identity.sealer, world)
        copy = await self._pool.run(identity.user_id, work)

        async def store(session: AsyncSession, fork: Chat, copied: Mapping[UUID, UUID]) -> None:
            await self._store(session, identity, copy, fork)
            campaign_id = copy.rows.campaign.id
            await copy_marks(session, chat_id, fork.id, copied, campaign_id=campaign_id)

        return store

    async def _read(self, identity: Identity, chat_id: UUID, message_id: UUID) -> WorldAtMessage:
        """Read the world with the chat's path at a message. The path moves for this read only."""
        async with self._database.trial() as trial:
            chat = await get_chat(trial, chat_id, owner_id=identity.user_id, lock=True)
            if chat.campaign_id is None:
                raise ValidationError("`world`: the chat has no campaign to copy.")
            campaign = await get_campaign(trial, identity, chat.campaign_id, lock=True)
            above = await tree.choose_leaf(trial, chat, message_id)
            await ledger_paths.follow_path(trial, identity.sealer, campaign, chat_id, above=above)
            items = CampaignItem.campaign_id == campaign.id, CampaignItem.exists
            counting = (
                CampaignChange.campaign_id == campaign.id,
                CampaignChange.is_on_path,
                ~CampaignChange.is_undone,
            )
            columns = (
                CampaignItem.id,
                CampaignItem.kind,
                CampaignItem.uses,
                CampaignItem.sealed_state,
            )
            return WorldAtMessage(
                campaign_id=campaign.id,
                fields=open_campaign(identity.sealer, campaign),
                compactions=campaign.compactions,
                items=(
                    await trial.execute(
                        select(*columns).where(*items).order_by(CampaignItem.seq, CampaignItem.id)
                    )
                ).all(),
                writers=(
                    await trial.execute(
                        select(
                            CampaignChange.item_id,
                            CampaignChange.actor,
                            func.max(CampaignChange.created_at).label("at"),
                        )
                        .where(*counting)
                        .group_by(CampaignChange.item_id, CampaignChange.actor)
                    )
                ).all(),
                characters=(
                    await trial.scalars(
                        select(Character.id).where(Character.user_id == identity.user_id)
                    )
                ).all(),
            )

    async def _store(
        self, session: AsyncSession, identity: Identity, copy: WorldCopy, fork: Chat
    ) -> None:
        campaign, translate = copy.rows.campaign, copy.draft.audience
        await check_room(session, identity)
        if fork.chronicle_id is None:
            name = copy.draft.fields.name
            chronicle = await make_chronicle(session, identity, ChronicleFields(name=name))
            fork.chronicle_id = chronicle.id
        campaign.chronicle_id = fork.chronicle_id
        await insert_campaign(session, identity, self._outbox, copy.rows)
        fork.campaign_id = campaign.id
        await _renumber_viewpoint(session, identity.sealer, fork, copy.draft.ids)
        mine = Message.chat_id == fork.id, Message.user_id == identity.user_id
        await translate_audiences(session, Message.audience, translate, *mine)
        await session.flush()
        for part in self._participants.find_handlers(WorldParted):
            await part.world_parted(session, identity, fork, translate)
        for check in self._checks_added:
            await check(session, identity.user_id)


def copy_world(sealer: Sealer, world: WorldAtMessage) -> WorldCopy:
    """Return the rows of a campaign that begins with the state of another one. CPU-bound.

    Each item is created by one change. Its actor and time are those of the last change with the
    highest precedence in the old ledger, so that later work meets the same precedence.
    """
    items = filter_existing_items(open_items(sealer, world.items), world.characters)
    renumbered = IdMap({item_id: kind for item_id, kind, _ in items})
    ids = renumbered.ids
    writers = _read_writers(world.writers)
    draft = CampaignDraft(
        id=ids[world.campaign_id],
        fields=msgspec.structs.replace(
            world.fields, name=world.fields.name[: MAX_NAME - len(COPY_SUFFIX)] + COPY_SUFFIX
        ),
        kinds={ids[item_id]: kind for item_id, kind, _ in items},
        uses={ids[row.id]: row.uses for row in world.items if row.kind == "term"},
        # Characters are the same in both worlds.
        ids=ids | {each: each for each in world.characters},
        version=1,
        compactions=world.compactions,
    )
    for seq, (item_id, _, state) in enumerate(items, start=1):
        actor, at = writers[item_id]
        own = renumbered.value(state)
        if own.get("audience") == []:  # all characters who knew it are deleted
            own["audience"] = GM
        draft.lines.append(
            LedgerLine(
                item_id=ids[item_id],
                operations=Operations(set=own),
                seq=seq,
                version=1,
                actor=actor,
                created_at=at,
            )
        )
    return WorldCopy(make_campaign_rows(sealer, draft, settle_ledger(draft), ()), draft)


def _read_writers(rows: Iterable[Any]) -> dict[UUID, tuple[Actor, datetime]]:
    """Return the actor with the highest precedence for each item, and when they changed it."""
    found: dict[UUID, tuple[Actor, datetime]] = {}
    for row in sorted(rows, key=lambda row: (-_RANK[row.actor], row.at)):
        found[row.item_id] = row.actor, row.at
    return found


async def _renumber_viewpoint(
    session: AsyncSession, sealer: Sealer, fork: Chat, ids: Mapping[UUID, UUID]
) -> None:
    """Set the viewpoint in a chat's settings to the copied entity; remove it without a copy.

    The viewpoint of a character of the chat stays.
    """
    settings = read_settings(sealer, fork)
    try:
        viewpoint = UUID(settings.viewpoint)
    except (
        TypeError,
        ValueError,
    ):  # a fork without a viewpoint, or with the viewpoint of everyone or the game master
        return
    if viewpoint in (await load_group(session, fork.id)).members:
        return
    led = ids.get(viewpoint)
    settings = msgspec.structs.replace(
        settings, viewpoint=str(led) if led else None, chronicle_enabled=False, chronicle_id=None
    )
    fork.sealed_settings = sealer.seal_bytes(CHAT_SETTINGS, fork.id, msgspec.json.encode(settings))
