"""Items in play, and which of them a model means by a name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import NamedTuple
from uuid import UUID

import msgspec

from backend.campaigns.items import Kind
from backend.campaigns.ledger import State, exists
from backend.campaigns.mentions import slug
from backend.campaigns.name_cache import Names
from backend.campaigns.play.tools import ToolRefusedError
from backend.campaigns.roster import Member, Roster

REF_LENGTH = 6
"""Of an item's id, the last digits: its short reference."""

MAX_SAID = 60
"""Characters of a name that are compared with others."""

MAX_NEAR = 5


ENTITY_KINDS = frozenset({"pc", "npc", "location", "item", "faction", "ability"})
_NAMED: frozenset[Kind] = frozenset({"entity", "thread", "clock"})


class Held(msgspec.Struct, frozen=True):
    """An item in play, as the turn's changes leave it."""

    kind: Kind
    state: State


class Reference(NamedTuple):
    """An item that a call names. `state` is None for an entity that is not in play."""

    id: UUID
    name: str
    state: State | None


class References:
    """The items that a turn may name: those in play, and entities of the campaign by name."""

    def __init__(self, items: Mapping[UUID, Held], names: Names | None) -> None:
        self._items = items
        self._names = names

    def find(self, said: str, kinds: Collection[str] = ()) -> Reference:
        """The item of a name, an alias, a short reference, or whatever else may mean it alone.

        Args:
            said: What the model calls it.
            kinds: Kinds of entities, `thread` or `clock`; any where empty.

        Raises:
            ToolRefusedError: There is none, or more than one; the text lists what there is.
        """
        wanted = said.strip().casefold()
        candidates = {
            item_id: held.state for item_id, held in self._items.items() if _is_of(held, kinds)
        }
        found = [item_id for item_id, state in candidates.items() if wanted in _said_of(state)]
        found = found or [
            item_id
            for item_id in candidates
            if wanted.removeprefix("#") in {item_id.hex[-REF_LENGTH:], str(item_id)}
        ]
        found = found or list(_roster(candidates, self._items).resolve(said))
        if len(found) == 1:
            state = candidates[found[0]]
            return Reference(found[0], called(state), state)
        if found:
            each = ", ".join(f"{called(candidates[i])} #{i.hex[-REF_LENGTH:]}" for i in found)
            raise ToolRefusedError(f"More than one is called {said[:MAX_SAID]}: {each}.")
        if elsewhere := self._elsewhere(wanted, kinds):
            return elsewhere
        raise ToolRefusedError(_unknown(said, [called(state) for state in candidates.values()]))

    def in_play(self, said: str, kinds: Collection[str] = ()) -> Reference:
        """`find`, of items whose state is known. Raises `ToolRefusedError`."""
        found = self.find(said, kinds)
        if found.state is None:
            raise ToolRefusedError(f"{found.name} is not here now, and does not change.")
        return found

    def _elsewhere(self, wanted: str, kinds: Collection[str]) -> Reference | None:
        """An entity by its whole name. What kind it is of is not known, so none may be asked."""
        if self._names is None or (kinds and not ENTITY_KINDS.issuperset(kinds)):
            return None
        found = [
            entity_id
            for entity_id in self._names.index.find(wanted)
            if entity_id not in self._items
            and wanted in {name.casefold() for name in self._names.by_id[entity_id]}
        ]
        if len(found) != 1:
            return None
        return Reference(found[0], self._names.by_id[found[0]][0], None)


def called(state: State) -> str:
    """What an item is called."""
    return str(state.get("name") or state.get("title") or state.get("text") or "")


def _is_of(held: Held, kinds: Collection[str]) -> bool:
    if held.kind not in _NAMED or not exists(held.state):
        return False
    kind = held.state["kind"] if held.kind == "entity" else held.kind
    return not kinds or kind in kinds


def _said_of(state: State) -> set[str]:
    names = [called(state), *state.get("aliases", ())]
    return {form for name in names for form in (name.casefold(), slug(name))}


def _roster(candidates: Mapping[UUID, State], items: Mapping[UUID, Held]) -> Roster:
    """Items by all that they may be called. Where each is does not count: they are in play."""
    return Roster(
        Member(
            id=item_id,
            kind=state.get("kind", "") if items[item_id].kind == "entity" else items[item_id].kind,
            names=(called(state), *state.get("aliases", ())),
            role=state.get("role", ""),
            place_id=None,
            audience="",
        )
        for item_id, state in candidates.items()
    )


def _unknown(said: str, names: list[str]) -> str:
    near = get_close_matches(said[:MAX_SAID], [name[:MAX_SAID] for name in names], MAX_NEAR, 0.5)
    listed = ", ".join(near or names[:MAX_NEAR]) or "none"
    return f"There is no {said[:MAX_SAID]!r} here. There is: {listed}."
