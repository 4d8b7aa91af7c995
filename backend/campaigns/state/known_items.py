"""What a campaign knows already: facts in force, who recorded them, and what its user took back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import ColumnElement, bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import State, exists
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.records import item_name
from backend.campaigns.ledger.store import read_operations, read_state
from backend.campaigns.models import Campaign, CampaignChange, CampaignItem, ChangeSource
from backend.campaigns.names.mentions import slug
from backend.chats.models import Message
from backend.core.cpu_pool import iterate_in_slices
from backend.vault.sealing import Sealer

MAX_FACTS = 1_000
"""Facts in force that a new one is compared with, those that changed last."""

MAX_TAKEN_BACK = 500
"""Deleted items, and undone ones, that are not made again: the latest of each."""

Gist = tuple[Kind, str, str]
"""What makes two items the same: kind, whom it is about, and the words of its name or text."""

_STATES = select(
    CampaignItem.id, CampaignItem.kind, CampaignItem.audience, CampaignItem.sealed_state
).order_by(CampaignItem.seq.desc())
_UNDONE = (
    select(CampaignChange.id, CampaignItem.kind, CampaignChange.sealed_operations)
    .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
    .where(CampaignChange.is_on_path, CampaignChange.is_undone)
    .order_by(CampaignChange.seq.desc())
    .limit(MAX_TAKEN_BACK)
)
_RECORDED = (
    select(
        CampaignChange.item_id,
        CampaignChange.actor,
        ChangeSource.chat_id,
        ChangeSource.position,
        Message.created_at,
    )
    .outerjoin(ChangeSource, ChangeSource.change_id == CampaignChange.id)
    .outerjoin(Message, Message.id == ChangeSource.message_id)
    .where(
        CampaignChange.item_id.in_(bindparam("facts", expanding=True)),
        CampaignChange.is_on_path,
        ~CampaignChange.is_undone,
    )
)

Recorder = Literal["user", "tool", "compactor"]


@dataclass(slots=True)
class KnownItems:
    """What new items are compared with.

    `facts` are those in force, by their gist: who may know each, as columns hold it. `recorded` has
    the rows of changes that facts which may be superseded are made of.
    """

    facts: dict[Gist, list[str]] = field(default_factory=dict[Gist, list[str]])
    taken_back: Collection[Gist] = ()
    recorded: Mapping[UUID, Sequence[Any]] = field(default_factory=dict[UUID, Sequence[Any]])

    def add_fact(self, gist: Gist, audience: str) -> None:
        """Know one more fact; of other kinds of items nothing is kept."""
        if gist[0] == "fact":
            self.facts.setdefault(gist, []).append(audience)

    def keeper(self, fact_id: UUID, line: Message) -> Recorder | None:
        """Who recorded a fact that a line may not supersede; None where it may.

        It may not where its user has written or edited it, or a later line has.
        """
        rows = self.recorded.get(fact_id, ())
        if any(row.actor in {"user", "import"} for row in rows):
            return "user"
        return next((row.actor for row in rows if _is_later(row, line)), None)


def gist_of(kind: Kind, state: State) -> Gist:
    """What makes an item in this state the same as another."""
    about = state.get("about_id") if kind == "fact" else ""
    return kind, str(about or ""), slug(item_name(kind, state) if kind != "fact" else state["text"])


async def read_known(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    made: Sequence[tuple[Kind, State]],
    *,
    replaced: Sequence[UUID],
) -> KnownItems:
    """What items that are `made` are compared with, and the facts that may be superseded."""
    known = KnownItems()
    if not made:
        return known
    known.taken_back = await taken_back(session, sealer, campaign, {kind for kind, _ in made})
    subjects = {state.get("about_id") for kind, state in made if kind == "fact"}
    about = {UUID(str(each)) for each in subjects if each}
    same_subject: list[ColumnElement[bool]] = []
    if about:
        same_subject.append(CampaignItem.about_id.in_(about))
    if None in subjects:
        same_subject.append(CampaignItem.about_id.is_(None))
    for condition in same_subject:
        query = _STATES.where(
            CampaignItem.campaign_id == campaign.id,
            CampaignItem.kind == "fact",
            CampaignItem.is_live,
            condition,
        ).limit(MAX_FACTS)
        rows = (await session.execute(query)).all()
        async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
            state = read_state(sealer, row.id, row.sealed_state)
            known.add_fact(gist_of("fact", state), row.audience)
    recorded: dict[UUID, list[Any]] = {}
    for change in await session.execute(_RECORDED, {"facts": list(replaced)}):
        recorded.setdefault(change.item_id, []).append(change)
    known.recorded = recorded
    return known


async def taken_back(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, kinds: Collection[Kind]
) -> set[Gist]:
    """Items of some kinds that were deleted, or whose making was undone."""
    these = CampaignItem.campaign_id == campaign.id, CampaignItem.kind.in_(kinds)
    deleted = _STATES.where(*these, ~CampaignItem.exists).limit(MAX_TAKEN_BACK)
    found: set[Gist] = set()
    for row in (await session.execute(deleted)).all():
        # One whose messages are not told has no state.
        if state := read_state(sealer, row.id, row.sealed_state):
            found.add(gist_of(row.kind, state))
    for change in (await session.execute(_UNDONE.where(*these))).all():
        made = read_operations(sealer, change.id, change.sealed_operations).set
        if exists(made):
            found.add(gist_of(change.kind, made))
    return found


def _is_later(row: Any, line: Message) -> bool:
    """Whether what recorded a fact is told after a line; in another chat, written after it."""
    if row.chat_id is None:
        return False
    if row.chat_id == line.chat_id:
        return bool(row.position > line.position)
    return row.created_at is not None and bool(row.created_at > line.created_at)
