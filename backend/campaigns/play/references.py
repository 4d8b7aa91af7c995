"""Resolves the names in tool calls to items in play."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from difflib import get_close_matches
from typing import NamedTuple
from uuid import UUID

from backend.campaigns.ledger.changes import State, exists
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.store import get_audience
from backend.campaigns.names.roster import Member, Roster, make_slug
from backend.campaigns.rules.protocol import ToolRefusedError
from backend.campaigns.rules.state import ItemState
from backend.campaigns.state.snapshot import CampaignSnapshot
from backend.core.audience import GM, PUBLIC, AudienceMarks, put_mark

REF_LENGTH = 6
"""Length of an item's short reference: the last digits of its id."""

MAX_SAID = 60
"""Maximum length of a name that is compared with others."""

MAX_NEAR = 5


ENTITY_KINDS = frozenset({"pc", "npc", "location", "item", "faction", "ability"})
_NAMED: frozenset[Kind] = frozenset({"entity", "thread", "clock"})


class Reference(NamedTuple):
    """An item in a call. `state` is None for an entity that is not in play."""

    id: UUID
    name: str
    state: State | None


class ItemResolver:
    """Finds the items in tool calls. `secrets` collects limited audiences by the item's name."""

    def __init__(
        self,
        items: Mapping[UUID, ItemState],
        names: CampaignSnapshot | None,
        secrets: MutableMapping[str, str] | None = None,
    ) -> None:
        self._items = items
        self._names = names
        self._secrets = {} if secrets is None else secrets
        self._marks = AudienceMarks(self._find_name)

    def render_audience(self, state: State) -> str:
        """Return who knows an item; empty if it is for everyone."""
        return self._marks.words(get_audience(state))

    def mark(self, text: str, state: State) -> str:
        """Return a text about an item, with who knows the item if it is not for everyone."""
        return put_mark(text, self.render_audience(state)) if text else text

    def find(self, said: str, kinds: Collection[str] = ()) -> Reference:
        """Return the item with a name, alias, short reference or similar unambiguous name.

        `kinds` are kinds of entities, `thread` or `clock`; empty for all. Raises `ToolRefusedError`
        with the candidates if there is none, or more than one.
        """
        found = self._find(said, kinds)
        audience: str = PUBLIC
        if found.state is not None:
            audience = get_audience(found.state)
        elif self._names is not None:
            audience = self._names.find_audience(found.id)
        if words := self._marks.words(audience):
            self._secrets[found.name] = words
        return found

    def _find(self, said: str, kinds: Collection[str]) -> Reference:
        wanted = said.strip().casefold()
        candidates = {
            item_id: held.state for item_id, held in self._items.items() if _is_of_kind(held, kinds)
        }
        found = [item_id for item_id, state in candidates.items() if wanted in _list_names(state)]
        found = found or [
            item_id
            for item_id in candidates
            if wanted.removeprefix("#") in {item_id.hex[-REF_LENGTH:], str(item_id)}
        ]
        found = found or list(_build_roster(candidates, self._items).resolve(said))
        if len(found) == 1:
            state = candidates[found[0]]
            return Reference(found[0], get_name(state), state)
        if found:
            each = ", ".join(
                f"{self.mark(get_name(candidates[i]), candidates[i])} #{i.hex[-REF_LENGTH:]}"
                for i in found
            )
            raise ToolRefusedError(f"More than one is called {said[:MAX_SAID]}: {each}.")
        if elsewhere := self._find_elsewhere(wanted, kinds):
            return elsewhere
        shown = {
            get_name(state): self.mark(get_name(state), state) for state in candidates.values()
        }
        raise ToolRefusedError(_render_unknown(said, shown))

    def find_in_play(self, said: str, kinds: Collection[str] = ()) -> Reference:
        """Find an item whose state is known. Raises `ToolRefusedError`."""
        found = self.find(said, kinds)
        if found.state is None:
            raise ToolRefusedError(f"{found.name} is not here now, and does not change.")
        return found

    def _find_name(self, entity_id: UUID) -> str | None:
        held = self._items.get(entity_id)
        if held is not None:
            return get_name(held.state)
        return self._names.find_name(entity_id, GM) if self._names is not None else None

    def _find_elsewhere(self, wanted: str, kinds: Collection[str]) -> Reference | None:
        """Return an entity by its full name. Its kind is unknown, so no kind may be required."""
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


def get_name(state: State) -> str:
    return str(state.get("name") or state.get("title") or state.get("text") or "")


def _is_of_kind(held: ItemState, kinds: Collection[str]) -> bool:
    if held.kind not in _NAMED or not exists(held.state):
        return False
    kind = held.state["kind"] if held.kind == "entity" else held.kind
    return not kinds or kind in kinds


def _list_names(state: State) -> set[str]:
    names = [get_name(state), *state.get("aliases", ())]
    return {form for name in names for form in (name.casefold(), make_slug(name))}


def _build_roster(candidates: Mapping[UUID, State], items: Mapping[UUID, ItemState]) -> Roster:
    """Return a roster of items by their names. Places are omitted, because all are in play."""
    return Roster(
        Member(
            id=item_id,
            kind=state.get("kind", "") if items[item_id].kind == "entity" else items[item_id].kind,
            names=(get_name(state), *state.get("aliases", ())),
            role=state.get("role", ""),
            place_id=None,
            audience="",
        )
        for item_id, state in candidates.items()
    )


def _render_unknown(said: str, names: Mapping[str, str]) -> str:
    """Return an error that lists the nearest names; `names` maps them to how they are shown."""
    cut = {name[:MAX_SAID]: shown for name, shown in names.items()}
    near = get_close_matches(said[:MAX_SAID], cut, MAX_NEAR, 0.5) or list(cut)[:MAX_NEAR]
    listed = ", ".join(cut[name] for name in near) or "none"
    return f"There is no {said[:MAX_SAID]!r} here. There is: {listed}."
