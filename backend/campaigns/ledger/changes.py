"""The ledger: changes of a campaign's items, and the fold of changes into states.

A change contains operations on one item: `set` replaces fields; `add` and `remove` extend and
shorten lists, and increase and decrease numbers. A key such as `attributes.hp` names a member of a
field. An item exists between the changes that create and delete it.

A state is the fold of the active changes in the order of their numbers. A change is inactive while
its message is not on the active path, or after a user has undone it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import msgspec

from backend.campaigns.ledger.items import MAX_BEATS, MAX_DAY, STRUCTS, Item, Kind
from backend.core.logs import get_logger
from backend.errors import ValidationError

log = get_logger(__name__)

State = dict[str, Any]
Bounds = Mapping[str, tuple[int, int]]
"""The lowest and highest value of numbers, by their key."""

MAX_SUFFIX = "_max"
"""The suffix of an attribute that limits another attribute: `hp_max` limits `hp`."""

EXISTS = "exists"
"""The member of a state that is True from the item's creation to its deletion."""


class Operations(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The operations of one change, and the reason for users."""

    set: dict[str, Any] = {}
    add: dict[str, Any] = {}
    remove: dict[str, Any] = {}
    because: str = ""

    def list_fields(self) -> frozenset[str]:
        """Return the fields that change, without members: `attributes` for `attributes.hp`."""
        return frozenset(key.partition(".")[0] for key in self.list_keys())

    def list_keys(self) -> list[str]:
        """Return the keys that change, except the one for creation and deletion."""
        return [key for key in (*self.set, *self.add, *self.remove) if key != EXISTS]

    def select(self, keys: Collection[str]) -> Operations:
        put, added, removed = (
            {key: value for key, value in each.items() if key in keys}
            for each in (self.set, self.add, self.remove)
        )
        return Operations(set=put, add=added, remove=removed)


@dataclass(frozen=True, slots=True)
class Change:
    """Operations on one item of a kind, before they are written to the ledger."""

    kind: Kind
    item_id: UUID
    operations: Operations


def fold(kind: Kind, changes: Iterable[Operations], before: State | None = None) -> State:
    """Return the state after `changes`, in order, beginning with `before` or an empty state.

    Skip changes that are no longer valid, for example because an earlier change was undone.
    """
    state = before or {}
    for change in changes:
        try:
            state = apply_operations(kind, state, change)
        except ValidationError:
            # Its message may quote the user's text.
            log.warning("campaign.change_skipped", source=kind)
    return state


def apply_operations(kind: Kind, state: State, change: Operations) -> State:
    """Return `state` after a change, without modifying it. Raises `ValidationError`."""
    after = dict(state)
    for key, value in change.set.items():
        _put(after, key, value)
    for key, value in change.add.items():
        _put(after, key, _add(get_value(after, key), value))
    for key, value in change.remove.items():
        _put(after, key, _remove(get_value(after, key), value))
    for key, (least, most) in _find_bounds(kind, after).items():
        if _is_number(number := get_value(after, key)):
            _put(after, key, min(max(number, least), most))
    if exists(after):
        build_item(kind, after)
    return after


def build_state(item: Item) -> State:
    """Return the state of an existing item, with all its fields."""
    return {EXISTS: True, **msgspec.to_builtins(item)}


def exists(state: State) -> bool:
    """Return True if the item is created and not deleted."""
    return state.get(EXISTS) is True


def get_value(state: State, key: str) -> Any:
    """Return the value of a key in a state: a field or a member of one. None if there is none."""
    field, _, member = key.partition(".")
    value = state.get(field)
    if not member:
        return value
    return cast("State", value).get(member) if isinstance(value, dict) else None


def build_item(kind: Kind, state: State) -> Item:
    """Return the struct of a state. Raises `ValidationError`."""
    fields = {key: value for key, value in state.items() if key != EXISTS}
    try:
        return msgspec.convert(fields, STRUCTS[kind], strict=True)
    except msgspec.ValidationError as error:
        raise ValidationError(str(error)) from error


def build_creation(item: Item) -> Operations:
    return Operations(set={EXISTS: True, **msgspec.to_builtins(item)})


DELETION = Operations(set={EXISTS: False})


def compare_states(before: State, after: State) -> Operations:
    """Return the operations that lead from one state to another.

    Use `add` and `remove` for lists if they give the same list, so that changes by others to the
    same list are kept.
    """
    change = Operations()
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            _compare_members(change, key, cast("State", old), cast("State", new))
        else:
            _compare(change, key, old, new)
    return change


def _compare_members(change: Operations, key: str, old: State, new: State) -> None:
    if old.keys() - new.keys() or any("." in name for name in new):
        change.set[key] = new
        return
    for name, value in new.items():
        if name not in old or old[name] != value:
            _compare(change, f"{key}.{name}", old.get(name), value)


def _compare(change: Operations, key: str, old: Any, new: Any) -> None:
    if isinstance(old, list) and isinstance(new, list):
        gone, more = _remove(old, new), _remove(new, old)
        if _remove(_add(old, more), gone) == new:
            if more:
                change.add[key] = more
            if gone:
                change.remove[key] = gone
            return
    change.set[key] = new


def _put(state: State, key: str, value: Any) -> None:
    field, _, member = key.partition(".")
    if not member:
        state[field] = value
        return
    members = state.get(field)
    state[field] = (
        {**cast("State", members), member: value} if isinstance(members, dict) else {member: value}
    )


def _as_list(value: Any) -> list[Any]:
    """Return a list of a value: a copy of a list, an empty one for None."""
    if isinstance(value, list):
        return list(cast("Any", value))
    return [] if value is None else [value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _add(current: Any, value: Any) -> Any:
    if _is_number(value):
        return (current if _is_number(current) else 0) + value
    have = _as_list(current)
    known = set(map(_as_hashable, have))
    return [*have, *(one for one in _as_list(value) if _as_hashable(one) not in known)]


def _remove(current: Any, value: Any) -> Any:
    if _is_number(value):
        return (current if _is_number(current) else 0) - value
    gone = set(map(_as_hashable, _as_list(value)))
    return [one for one in _as_list(current) if _as_hashable(one) not in gone]


def _as_hashable(value: Any) -> str | bytes:
    """Return a hashable form of a JSON value, because lists may have thousands of members."""
    return value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic")


def _find_bounds(kind: Kind, state: State) -> Bounds:
    if kind == "clock":
        segments = state.get("segments", 6)
        return {"filled": (0, segments)} if isinstance(segments, int) else {}
    if kind == "relation":
        return {"score": (-100, 100)}
    if kind == "scene":
        return {"beats": (0, MAX_BEATS)}
    days: Bounds = {"day": (1, MAX_DAY)} if kind == "world" else {}
    attributes = state.get("attributes")
    return (
        {**days, **_find_maximums(cast("State", attributes))}
        if isinstance(attributes, dict)
        else days
    )


def _find_maximums(attributes: State) -> Bounds:
    """Return the bounds of attributes that have a maximum: 0 to `hp_max` for `hp`."""
    return {
        f"attributes.{name.removesuffix(MAX_SUFFIX)}": (0, most)
        for name, most in attributes.items()
        if name.endswith(MAX_SUFFIX) and isinstance(most, int)
    }
