"""Decides which drafts are written and which are proposed to the user.

Precedence: user edits, then tool calls, then compaction. A draft becomes a proposal if it changes a
locked field, a field that a higher precedence has changed since the draft's messages, or something
that the user undid. Its other fields are written. A draft never removes values that it does not
name. The functions do not commit; the caller has locked the campaign.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple, cast
from uuid import UUID

import msgspec
from msgspec import NODEFAULT
from msgspec.structs import fields
from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import (
    EXISTS,
    Change,
    Operations,
    State,
    apply_operations,
    exists,
    get_value,
)
from backend.campaigns.ledger.items import STRUCTS, Kind
from backend.campaigns.ledger.records import get_item_name, list_references, load_states
from backend.campaigns.ledger.store import get_audience, read_operations, read_state
from backend.campaigns.models import (
    Actor,
    Campaign,
    CampaignChange,
    CampaignItem,
    ChangeSource,
    ProposalReason,
)
from backend.campaigns.names.roster import make_slug
from backend.campaigns.play.table import find_locked_fields
from backend.chats.models import Message
from backend.core.audience import PUBLIC, intersect_audiences, may_all_know
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import split_chunks
from backend.errors import ValidationError
from backend.vault.sealing import Sealer

BATCH_ITEMS = 500


Authority = Literal["locked", "user", "tool", "compactor", "undone"]
"""The authority over a field: its lock, the actor who changed it, or the user who undid it."""


class RecentChange(NamedTuple):
    """A recent change of an item. `position` is its last message in the given chat.

    `is_creation` is True if it creates the item. `is_old` is True if it is older than the given
    time.
    """

    operations: Operations
    by: Authority
    at: datetime
    position: int | None
    is_creation: bool
    is_old: bool


async def find_recent_changes(
    session: AsyncSession,
    sealer: Sealer,
    item_ids: Collection[UUID],
    *,
    since: datetime,
    chat_id: UUID,
) -> dict[UUID, list[RecentChange]]:
    """Return the changes of each item since a time, and all that users undid, newest first."""
    last = select(func.max(ChangeSource.position)).where(
        ChangeSource.change_id == CampaignChange.id, ChangeSource.chat_id == chat_id
    )
    query = (
        select(
            CampaignChange.id,
            CampaignChange.item_id,
            CampaignItem.kind,
            CampaignChange.actor,
            CampaignChange.is_undone,
            CampaignChange.created_at,
            CampaignChange.sealed_operations,
            last.scalar_subquery().label("position"),
        )
        .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
        .where(
            CampaignChange.is_on_path,
            or_(CampaignChange.created_at >= since, CampaignChange.is_undone),
        )
        .order_by(CampaignChange.seq.desc())
    )
    found: dict[UUID, list[RecentChange]] = {}
    for part in split_chunks(list(item_ids), BATCH_ITEMS):
        rows = (await session.execute(query.where(CampaignChange.item_id.in_(part)))).all()
        async for row in iterate_in_slices(rows, lambda row: len(row.sealed_operations)):
            operations = read_operations(sealer, row.id, row.sealed_operations)
            by: Any = "user" if row.actor == "import" else row.actor
            is_creation = EXISTS in operations.set
            told = RecentChange(
                operations=keep_filled_fields(row.kind, operations) if is_creation else operations,
                by="undone" if row.is_undone else by,
                at=row.created_at,
                position=row.position,
                is_creation=is_creation,
                is_old=row.created_at < since,
            )
            found.setdefault(row.item_id, []).append(told)
    return found


def keep_filled_fields(kind: Kind, creation: Operations) -> Operations:
    """Return the fields of a creation that differ from the defaults."""
    usual = {
        each.name: each.default if each.default_factory is NODEFAULT else each.default_factory()
        for each in fields(STRUCTS[kind])
    }
    filled: dict[str, Any] = {}
    for key, value in creation.set.items():
        if key == EXISTS or value == usual.get(key, NODEFAULT):
            continue
        if isinstance(value, dict):
            filled |= {f"{key}.{name}": each for name, each in cast("State", value).items()}
        else:
            filled[key] = value
    return Operations(set=filled)


MAX_FACTS = 1_000
"""Number of facts in force that a new one is compared with, the last changed ones."""

MAX_TAKEN_BACK = 500
"""Number of deleted items, and of undone ones, that are not created again: the latest of each."""

Gist = tuple[Kind, str, str]
"""Equal for equal items: the kind, the subject, and the words of the name or text."""

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

Recorder = Literal["user", "tool", "compactor"]


@dataclass(slots=True)
class KnownItems:
    """Existing items that new ones are compared with.

    `facts` maps the gist of facts in force to their audiences, in the format of the column.
    `recorded` contains the change rows of facts that may be superseded.
    """

    facts: dict[Gist, list[str]] = field(default_factory=dict[Gist, list[str]])
    taken_back: Collection[Gist] = ()
    recorded: Mapping[UUID, Sequence[Any]] = field(default_factory=dict[UUID, Sequence[Any]])

    def add_fact(self, gist: Gist, audience: str) -> None:
        """Add a fact. Other kinds of items are ignored."""
        if gist[0] == "fact":
            self.facts.setdefault(gist, []).append(audience)

    def find_keeper(self, fact_id: UUID, line: Message) -> Recorder | None:
        """Return the recorder of a fact that a message must not supersede; None if it may."""
        rows = self.recorded.get(fact_id, ())
        if any(row.actor in {"user", "import"} for row in rows):
            return "user"
        return next((row.actor for row in rows if _is_later(row, line)), None)


def build_gist(kind: Kind, state: State) -> Gist:
    about = state.get("about_id") if kind == "fact" else ""
    return (
        kind,
        str(about or ""),
        make_slug(get_item_name(kind, state) if kind != "fact" else state["text"]),
    )


async def read_known(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    made: Sequence[tuple[Kind, State]],
    *,
    replaced: Sequence[UUID],
) -> KnownItems:
    """Load the items that the new items in `made` are compared with, and the superseded facts."""
    known = KnownItems()
    if not made:
        return known
    known.taken_back = await find_undone_items(
        session, sealer, campaign, {kind for kind, _ in made}
    )
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
            known.add_fact(build_gist("fact", state), row.audience)
    recorders = (
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
            CampaignChange.item_id.in_(replaced),
            CampaignChange.is_on_path,
            ~CampaignChange.is_undone,
        )
    )
    recorded: dict[UUID, list[Any]] = {}
    for change in await session.execute(recorders):
        recorded.setdefault(change.item_id, []).append(change)
    known.recorded = recorded
    return known


async def find_undone_items(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, kinds: Collection[Kind]
) -> set[Gist]:
    """Return items of some kinds that were deleted, or whose creation was undone."""
    these = CampaignItem.campaign_id == campaign.id, CampaignItem.kind.in_(kinds)
    deleted = _STATES.where(*these, ~CampaignItem.exists).limit(MAX_TAKEN_BACK)
    found: set[Gist] = set()
    for row in (await session.execute(deleted)).all():
        # An item whose messages are off the active path has no state.
        if state := read_state(sealer, row.id, row.sealed_state):
            found.add(build_gist(row.kind, state))
    for change in (await session.execute(_UNDONE.where(*these))).all():
        made = read_operations(sealer, change.id, change.sealed_operations).set
        if exists(made):
            found.add(build_gist(change.kind, made))
    return found


def _is_later(row: Any, line: Message) -> bool:
    """True if a fact was recorded after a message; in another chat, if it was written later."""
    if row.chat_id is None:
        return False
    if row.chat_id == line.chat_id:
        return bool(row.position > line.position)
    return row.created_at is not None and bool(row.created_at > line.created_at)


_PRECEDENCE: Mapping[str, int] = {"user": 0, "import": 0, "tool": 1, "compactor": 2}
_USERS_OWN = frozenset({"locked", "audience"})
"""Fields of an item that no draft changes."""


class Ambiguity(msgspec.Struct, frozen=True, kw_only=True):
    """An ambiguous mention. `field` is the draft's field; empty if it is the draft's own item."""

    mention: str
    candidates: list[UUID]
    field: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A change that was read from `message`.

    `replaces` is the fact that a new fact supersedes or contradicts. If the draft's own item is
    ambiguous (`unclear`), `item_id` is a new id.
    """

    kind: Kind
    item_id: UUID
    operations: Operations
    message: Message
    because: str = ""
    audience: str = PUBLIC
    replaces: UUID | None = None
    unclear: Ambiguity | None = None

    @property
    def change(self) -> Change:
        return Change(self.kind, self.item_id, self.operations)


class ProposalContent(msgspec.Struct, frozen=True, kw_only=True):
    """The sealed part of a proposal: its change, and the values at the time of the proposal.

    `conflicts` has the authority over each key. `against` is the text of the fact that it replaces.
    """

    operations: Operations
    name: str = ""
    because: str = ""
    before: Mapping[str, Any] = {}
    conflicts: Mapping[str, Authority] = {}
    replaces: UUID | None = None
    against: str = ""
    unclear: Ambiguity | None = None

    def values(self, kind: Kind, item_id: UUID) -> bytes:
        """Return the bytes that are equal for two proposals of the same change."""
        is_of_none = self.unclear is not None and not self.unclear.field
        is_new = exists(self.operations.set) or is_of_none
        same = kind, None if is_new else item_id, self.operations, self.replaces, self.unclear
        return msgspec.json.encode(same, order="deterministic")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft that its user decides on. `audience` may know both sides."""

    draft: Draft
    reason: ProposalReason
    audience: str
    content: ProposalContent


@dataclass(frozen=True, slots=True)
class Verdict:
    """Drafts that are written, in order, and drafts that are proposed to the user."""

    drafts: Sequence[Draft]
    proposals: Sequence[Proposal]


async def judge_drafts(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    drafts: Sequence[Draft],
    *,
    since: datetime,
    actor: Actor = "compactor",
) -> Verdict:
    """Decide which drafts `actor` may write now, and which become proposals.

    Drop drafts that change nothing, are invalid, or refer to a deleted item. A draft may depend on
    earlier ones. All drafts come from messages of one chat; the first message is from `since`.
    """
    if not drafts:
        return Verdict([], [])
    ids = {draft.item_id for draft in drafts}
    ids |= {each for draft in drafts for each in list_references(draft.operations)}
    ids |= {draft.replaces for draft in drafts if draft.replaces}
    ids |= {each for draft in drafts if draft.unclear for each in draft.unclear.candidates}
    created = [draft for draft in drafts if exists(draft.operations.set)]
    judgement = _Judge(
        actor=actor,
        states=await load_states(session, sealer, campaign, ids),
        told=await find_recent_changes(
            session, sealer, ids, since=since, chat_id=drafts[0].message.chat_id
        ),
        known=await read_known(
            session,
            sealer,
            campaign,
            [(draft.kind, draft.operations.set) for draft in created],
            replaced=[draft.replaces for draft in created if draft.replaces],
        ),
    )
    async for draft in iterate_in_slices(drafts):
        # It may have depended on a draft that is not written.
        with suppress(ValidationError):
            judgement.consider(draft)
    return Verdict(judgement.drafts, judgement.proposals)


@dataclass(slots=True)
class _Judge:
    """Considers drafts one by one. `states` contains the written drafts."""

    actor: Actor
    states: dict[UUID, State]
    told: Mapping[UUID, Sequence[RecentChange]]
    known: KnownItems
    drafts: list[Draft] = field(default_factory=list[Draft])
    proposals: list[Proposal] = field(default_factory=list[Proposal])

    def consider(self, draft: Draft) -> None:
        state = self.states.get(draft.item_id, {})
        if draft.unclear is not None:
            self._propose(draft, "uncertain", {})
        elif not all(exists(self.states.get(x, {})) for x in list_references(draft.operations)):
            return
        elif exists(state):
            self._change(draft, state)
        elif exists(draft.operations.set):
            self._create(draft)

    def _change(self, draft: Draft, state: State) -> None:
        careful = _narrow_operations(state, draft.operations)
        after = apply_operations(draft.kind, state, careful)
        whose: dict[str, Authority | None] = {
            key: self._find_authority(draft, key, state, careful)
            for key in careful.list_keys()
            if get_value(after, key) != get_value(state, key)
        }
        locked = {key: who for key, who in whose.items() if who == "locked"}
        # A later message is no conflict: it describes the present.
        changed = {key: who for key, who in whose.items() if who in {"user", "tool", "undone"}}
        for reason, conflicts in (("locked", locked), ("changed", changed)):
            if conflicts:
                part = replace(draft, operations=careful.select(conflicts))
                self._propose(part, cast("ProposalReason", reason), cast("Any", conflicts))
        if free := [key for key, who in whose.items() if who is None]:
            self._write(replace(draft, operations=careful.select(free)))

    def _create(self, draft: Draft) -> None:
        gist = build_gist(draft.kind, draft.operations.set)
        if any(
            may_all_know(get_audience(draft.operations.set), audience)
            for audience in self.known.facts.get(gist, ())
        ):
            return
        if gist in self.known.taken_back:
            self._propose(draft, "changed", {EXISTS: "undone"})
            return
        old_id = self._find_current(draft)
        if old_id is not None:
            against = replace(draft, replaces=old_id)
            if who := self._find_keeper(against, old_id):
                self._propose(against, "contradicts", {"text": who})
                return
        self._write(draft)
        self.known.add_fact(gist, get_audience(draft.operations.set))
        if old_id is not None:
            heir = Operations(set={"superseded_by": str(draft.item_id)})
            self._write(replace(draft, item_id=old_id, operations=heir, replaces=None))

    def _find_current(self, draft: Draft) -> UUID | None:
        """Return the fact in force that superseded the one that a draft replaces.

        None if there is none, or if someone knows it who may not know the draft.
        """
        seen: set[UUID] = set()
        fact_id, audience = draft.replaces, get_audience(draft.operations.set)
        while fact_id is not None and fact_id not in seen:
            seen.add(fact_id)
            state = self.states.get(fact_id, {})
            if not exists(state) or not may_all_know(get_audience(state), audience):
                return None
            if not state.get("superseded_by"):
                return fact_id
            fact_id = UUID(state["superseded_by"])
        return None

    def _find_keeper(self, draft: Draft, old_id: UUID) -> Authority | None:
        """Return the authority that keeps a fact against the draft; None if it may change."""
        heir = replace(draft, item_id=old_id)
        for key in ("superseded_by", "text"):
            if who := self._find_authority(
                heir, key, self.states[old_id], Operations(set={key: None})
            ):
                return who
        return self.known.find_keeper(old_id, draft.message)

    def _find_authority(
        self, draft: Draft, key: str, state: State, operations: Operations
    ) -> Authority | None:
        """Return the authority over a key of a draft's item; None if the draft may change it."""
        only = operations.select([key])
        if find_locked_fields(state, only):
            return "locked"
        for told in self.told.get(draft.item_id, ()):
            if told.is_old:
                if told.operations.select([key]) == only:
                    return "undone"
            elif not any(_have_overlap(key, each) for each in told.operations.list_keys()):
                continue
            elif told.is_creation and _is_newer(draft.message, told):
                continue  # The values of a creation have no authority over later changes.
            elif told.by == "undone" or _PRECEDENCE[told.by] < _PRECEDENCE[self.actor]:
                return told.by
            elif told.position is not None and told.position > draft.message.position:
                return "compactor"
        return None

    def _write(self, draft: Draft) -> None:
        state = self.states.get(draft.item_id, {})
        self.states[draft.item_id] = apply_operations(draft.kind, state, draft.operations)
        self.drafts.append(draft)

    def _propose(
        self, draft: Draft, reason: ProposalReason, conflicts: Mapping[str, Authority]
    ) -> None:
        state, made = self.states.get(draft.item_id, {}), draft.operations.set
        against = self.states.get(draft.replaces, {}) if draft.replaces else {}
        candidates = draft.unclear.candidates if draft.unclear else []
        concerned = [state, made, against, *(self.states.get(each, {}) for each in candidates)]
        self.proposals.append(
            Proposal(
                draft=draft,
                reason=reason,
                content=ProposalContent(
                    operations=draft.operations,
                    name=get_item_name(draft.kind, state, made),
                    because=draft.because,
                    before={key: get_value(state, key) for key in draft.operations.list_keys()},
                    conflicts=conflicts,
                    replaces=draft.replaces,
                    against=against.get("text", ""),
                    unclear=draft.unclear,
                ),
                audience=intersect_audiences(
                    [draft.audience, draft.message.audience, *map(get_audience, concerned)]
                ),
            )
        )


def _narrow_operations(state: State, operations: Operations) -> Operations:
    """Return the change without side effects: other members are kept, and lists are extended."""
    given: dict[str, Any] = {}
    for key, value in operations.set.items():
        if key == EXISTS or key in _USERS_OWN:
            continue
        if isinstance(value, dict) and isinstance(get_value(state, key), dict):
            given |= {f"{key}.{name}": each for name, each in cast("State", value).items()}
        else:
            given[key] = value
    kept: dict[str, Any] = {}
    added = dict(operations.add)
    for key, value in given.items():
        current = get_value(state, key)
        if isinstance(value, list):
            added[key] = [*added.get(key, ()), *value]
        elif isinstance(value, dict) and isinstance(current, dict):
            kept[key] = {**cast("State", current), **cast("State", value)}
        else:
            kept[key] = value
    return Operations(set=kept, add=added, remove=operations.remove)


def _is_newer(line: Message, told: RecentChange) -> bool:
    """True if a message is later than a change: in the chat, or by time if no message caused it."""
    if told.position is not None:
        return line.position >= told.position
    return line.created_at > told.at


def _have_overlap(one: str, other: str) -> bool:
    """True if two keys name the same value, or one names a member of the other."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
