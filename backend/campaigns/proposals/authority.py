"""What may be written of what was read in a story, and what its user decides.

A user's word is over a tool's, and a tool's over the compactor's. A draft becomes a proposal where
it touches what the user has locked, what somebody above has changed since the messages that it is
read from began, or what the user took back; of several fields the others are written. Nothing that
a draft does not name goes. Nothing here commits; the caller has locked the campaign's row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import EXISTS, Operations, State, applied, exists, value_at
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.recent_changes import Told, Who, changes_since
from backend.campaigns.ledger.records import item_name, item_states, named_items
from backend.campaigns.ledger.store import Change, audience_of
from backend.campaigns.models import (
    Actor,
    Campaign,
    ProposalReason,
)
from backend.campaigns.play.table import locked_fields
from backend.campaigns.state.known_items import KnownItems, gist_of, read_known
from backend.chats.models import Message
from backend.core.audience import PUBLIC, intersect_audiences, may_all_know
from backend.core.cpu_pool import iterate_in_slices
from backend.errors import ValidationError
from backend.vault.sealing import Sealer

_RANK: Mapping[str, int] = {"user": 0, "import": 0, "tool": 1, "compactor": 2}
_USERS_OWN = frozenset({"locked", "audience"})
"""Fields of an item that no draft changes."""


class Unclear(msgspec.Struct, frozen=True, kw_only=True):
    """A mention that may mean several items.

    `field` is the draft's field that names the item; empty where the draft's own item is unclear.
    """

    mention: str
    candidates: list[UUID]
    field: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A change that was read out of `message`.

    Attributes:
        audience: Who may know it, as a column holds it.
        replaces: The fact that a new fact supersedes or contradicts.
        unclear: Whom a mention in it means, if that is not clear. Where that is what the draft is
            about, `item_id` is any new id.
    """

    kind: Kind
    item_id: UUID
    operations: Operations
    message: Message
    because: str = ""
    audience: str = PUBLIC
    replaces: UUID | None = None
    unclear: Unclear | None = None

    @property
    def change(self) -> Change:
        """As the ledger takes it."""
        return Change(self.kind, self.item_id, self.operations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """A draft that its user decides on.

    `before` are the values of its keys now, `conflicts` says by key who has the last word,
    `against` is the text of the fact that it contradicts. `audience` may know both sides.
    """

    draft: Draft
    reason: ProposalReason
    name: str
    before: Mapping[str, Any]
    conflicts: Mapping[str, Who]
    against: str
    audience: str


@dataclass(frozen=True, slots=True)
class Judged:
    """Drafts that may be written, in order, and those that are proposed to the user."""

    drafts: Sequence[Draft]
    proposals: Sequence[Proposed]


async def judged(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    drafts: Sequence[Draft],
    *,
    since: datetime,
    actor: Actor = "compactor",
) -> Judged:
    """Which drafts `actor` may write, as things are now, and which become proposals.

    What is so already, what can't be, and what is about an item that is gone, is left out. Drafts
    may build on others before them. All come from messages of one chat, the first of which is from
    `since`.
    """
    if not drafts:
        return Judged([], [])
    ids = {draft.item_id for draft in drafts}
    ids |= {each for draft in drafts for each in named_items(draft.operations)}
    ids |= {draft.replaces for draft in drafts if draft.replaces}
    ids |= {each for draft in drafts if draft.unclear for each in draft.unclear.candidates}
    created = [draft for draft in drafts if exists(draft.operations.set)]
    judgement = _Judgement(
        actor=actor,
        states=await item_states(session, sealer, campaign, ids),
        told=await changes_since(
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
        # One may have been possible with others before it that are not written now.
        with suppress(ValidationError):
            judgement.consider(draft)
    return Judged(judgement.drafts, judgement.proposals)


@dataclass(slots=True)
class _Judgement:
    """Drafts are considered one by one; `states` are as those that are written leave them."""

    actor: Actor
    states: dict[UUID, State]
    told: Mapping[UUID, Sequence[Told]]
    known: KnownItems
    drafts: list[Draft] = field(default_factory=list[Draft])
    proposals: list[Proposed] = field(default_factory=list[Proposed])

    def consider(self, draft: Draft) -> None:
        """Write a draft, propose it, or leave it out."""
        state = self.states.get(draft.item_id, {})
        if draft.unclear is not None:
            self._propose(draft, "uncertain", {})
        elif not all(exists(self.states.get(x, {})) for x in named_items(draft.operations)):
            return
        elif exists(state):
            self._change(draft, state)
        elif exists(draft.operations.set):
            self._create(draft)

    def _change(self, draft: Draft, state: State) -> None:
        careful = _careful(state, draft.operations)
        after = applied(draft.kind, state, careful)
        whose: dict[str, Who | None] = {
            key: self._whose(draft, key, state, careful)
            for key in careful.touched()
            if value_at(after, key) != value_at(state, key)
        }
        locked = {key: who for key, who in whose.items() if who == "locked"}
        # A newer line of the story is no conflict: it is how things are.
        changed = {key: who for key, who in whose.items() if who in {"user", "tool", "undone"}}
        for reason, conflicts in (("locked", locked), ("changed", changed)):
            if conflicts:
                part = replace(draft, operations=careful.only(conflicts))
                self._propose(part, cast("ProposalReason", reason), cast("Any", conflicts))
        if free := [key for key, who in whose.items() if who is None]:
            self._write(replace(draft, operations=careful.only(free)))

    def _create(self, draft: Draft) -> None:
        gist = gist_of(draft.kind, draft.operations.set)
        if any(
            may_all_know(audience_of(draft.operations.set), audience)
            for audience in self.known.facts.get(gist, ())
        ):
            return
        if gist in self.known.taken_back:
            self._propose(draft, "changed", {EXISTS: "undone"})
            return
        old_id = self._in_force(draft)
        if old_id is not None:
            against = replace(draft, replaces=old_id)
            if who := self._keeps(against, old_id):
                self._propose(against, "contradicts", {"text": who})
                return
        self._write(draft)
        self.known.add_fact(gist, audience_of(draft.operations.set))
        if old_id is not None:
            heir = Operations(set={"superseded_by": str(draft.item_id)})
            self._write(replace(draft, item_id=old_id, operations=heir, replaces=None))

    def _in_force(self, draft: Draft) -> UUID | None:
        """The fact that says now what the one said which a draft replaces.

        None if none does; and if some know of it who may not know what replaces it.
        """
        seen: set[UUID] = set()
        fact_id, audience = draft.replaces, audience_of(draft.operations.set)
        while fact_id is not None and fact_id not in seen:
            seen.add(fact_id)
            state = self.states.get(fact_id, {})
            if not exists(state) or not may_all_know(audience_of(state), audience):
                return None
            if not state.get("superseded_by"):
                return fact_id
            fact_id = UUID(state["superseded_by"])
        return None

    def _keeps(self, draft: Draft, old_id: UUID) -> Who | None:
        """Who wants a fact to stay in force, whatever the draft says; None if it may go."""
        heir = replace(draft, item_id=old_id)
        for key in ("superseded_by", "text"):
            if who := self._whose(heir, key, self.states[old_id], Operations(set={key: None})):
                return who
        return self.known.keeper(old_id, draft.message)

    def _whose(self, draft: Draft, key: str, state: State, operations: Operations) -> Who | None:
        """Who has the last word on a key of a draft's item; None for the draft itself."""
        only = operations.only([key])
        if locked_fields(state, only):
            return "locked"
        for told in self.told.get(draft.item_id, ()):
            if told.is_old:
                if told.operations.only([key]) == only:
                    return "undone"
            elif not any(_overlap(key, each) for each in told.operations.touched()):
                continue
            elif told.is_creation and _is_news(draft.message, told):
                continue  # What an item was to begin with is no word on what becomes of it.
            elif told.by == "undone" or _RANK[told.by] < _RANK[self.actor]:
                return told.by
            elif told.position is not None and told.position > draft.message.position:
                return "compactor"
        return None

    def _write(self, draft: Draft) -> None:
        state = self.states.get(draft.item_id, {})
        self.states[draft.item_id] = applied(draft.kind, state, draft.operations)
        self.drafts.append(draft)

    def _propose(self, draft: Draft, reason: ProposalReason, conflicts: Mapping[str, Who]) -> None:
        state, made = self.states.get(draft.item_id, {}), draft.operations.set
        against = self.states.get(draft.replaces, {}) if draft.replaces else {}
        candidates = draft.unclear.candidates if draft.unclear else []
        concerned = [state, made, against, *(self.states.get(each, {}) for each in candidates)]
        self.proposals.append(
            Proposed(
                draft=draft,
                reason=reason,
                name=item_name(draft.kind, state, made),
                before={key: value_at(state, key) for key in draft.operations.touched()},
                conflicts=conflicts,
                against=against.get("text", ""),
                audience=intersect_audiences(
                    [draft.audience, draft.message.audience, *map(audience_of, concerned)]
                ),
            )
        )


def _careful(state: State, operations: Operations) -> Operations:
    """The same change without what it does not name: members stay, and a list is added to."""
    given: dict[str, Any] = {}
    for key, value in operations.set.items():
        if key == EXISTS or key in _USERS_OWN:
            continue
        if isinstance(value, dict) and isinstance(value_at(state, key), dict):
            given |= {f"{key}.{name}": each for name, each in cast("State", value).items()}
        else:
            given[key] = value
    kept: dict[str, Any] = {}
    added = dict(operations.add)
    for key, value in given.items():
        current = value_at(state, key)
        if isinstance(value, list):
            added[key] = [*added.get(key, ()), *value]
        elif isinstance(value, dict) and isinstance(current, dict):
            kept[key] = {**cast("State", current), **cast("State", value)}
        else:
            kept[key] = value
    return Operations(set=kept, add=added, remove=operations.remove)


def _is_news(line: Message, told: Told) -> bool:
    """Whether a line comes after a change: in the story, or by the clock if no line made that."""
    if told.position is not None:
        return line.position >= told.position
    return line.created_at > told.at


def _overlap(one: str, other: str) -> bool:
    """Whether two keys are of the same value, or one of a member of the other's."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
