"""The ledger: changes of a campaign's items, and the state that they fold to.

A change holds operations on one item: `set` gives fields new values, `add` and `remove` put into
lists and take out of them, and count numbers up and down. A key such as `attributes.hp` names a
member of a field. An item exists from the change that creates it to the one that deletes it.

State is what the changes that count come to, in the order of their numbers, so a change can stop
counting (its message is no longer on the active path, or a user has undone it) and count again.
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

MOST = "_max"
"""What the name of an attribute ends with that says how high another one may be."""

EXISTS = "exists"
"""The member of a state that says whether the item was created, and not deleted since."""


class Operations(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one change does to its item, and, for people, why."""

    set: dict[str, Any] = {}
    add: dict[str, Any] = {}
    remove: dict[str, Any] = {}
    because: str = ""

    def fields(self) -> frozenset[str]:
        """The fields that change, each without what follows its first dot."""
        return frozenset(key.partition(".")[0] for key in self.touched())

    def touched(self) -> list[str]:
        """The keys that it names, besides that an item is made or deleted."""
        return [key for key in (*self.set, *self.add, *self.remove) if key != EXISTS]

    def only(self, keys: Collection[str]) -> Operations:
        """What it does to some keys."""
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
    """The state that `changes` lead to, in order, from `before` or from nothing.

    One that would make of the item what its kind can't be changes nothing: what it built on may
    have stopped counting.
    """
    state = before or {}
    for change in changes:
        try:
            state = applied(kind, state, change)
        except ValidationError:
            # Its message may quote the user's text.
            log.warning("campaign.change_skipped", source=kind)
    return state


def applied(kind: Kind, state: State, change: Operations) -> State:
    """`state` after a change; `state` itself stays as it is.

    Raises:
        ValidationError: The item would have fields, or values, that its kind has not.
    """
    after = dict(state)
    for key, value in change.set.items():
        _put(after, key, value)
    for key, value in change.add.items():
        _put(after, key, _added(value_at(after, key), value))
    for key, value in change.remove.items():
        _put(after, key, _removed(value_at(after, key), value))
    for key, (least, most) in _bounds(kind, after).items():
        if _is_number(number := value_at(after, key)):
            _put(after, key, min(max(number, least), most))
    if exists(after):
        item_of(kind, after)
    return after


def state_of(item: Item) -> State:
    """The state of an item that exists, with all its fields."""
    return {EXISTS: True, **msgspec.to_builtins(item)}


def exists(state: State) -> bool:
    """Whether there is such an item."""
    return state.get(EXISTS) is True


def value_at(state: State, key: str) -> Any:
    """What a key names of a state: a field, or a member of one; None where it has none."""
    field, _, member = key.partition(".")
    value = state.get(field)
    if not member:
        return value
    return cast("State", value).get(member) if isinstance(value, dict) else None


def item_of(kind: Kind, state: State) -> Item:
    """The state as its struct.

    Raises:
        ValidationError: Its fields are not what that kind of item has.
    """
    fields = {key: value for key, value in state.items() if key != EXISTS}
    try:
        return msgspec.convert(fields, STRUCTS[kind], strict=True)
    except msgspec.ValidationError as error:
        raise ValidationError(str(error)) from error


def creation(item: Item) -> Operations:
    """The change that makes an item."""
    return Operations(set={EXISTS: True, **msgspec.to_builtins(item)})


DELETION = Operations(set={EXISTS: False})


def difference(before: State, after: State) -> Operations:
    """The change that leads from one state to another.

    Lists are added to and removed from where that gives the same list, so that what others put in
    and take out still counts beside it.
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
        gone, more = _removed(old, new), _removed(new, old)
        if _removed(_added(old, more), gone) == new:
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


def _values(value: Any) -> list[Any]:
    """A list as it is, nothing as an empty one, anything else as a list of it."""
    if isinstance(value, list):
        return list(cast("Any", value))
    return [] if value is None else [value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _added(current: Any, value: Any) -> Any:
    if _is_number(value):
        return (current if _is_number(current) else 0) + value
    have = _values(current)
    known = set(map(_comparable, have))
    return [*have, *(one for one in _values(value) if _comparable(one) not in known)]


def _removed(current: Any, value: Any) -> Any:
    if _is_number(value):
        return (current if _is_number(current) else 0) - value
    gone = set(map(_comparable, _values(value)))
    return [one for one in _values(current) if _comparable(one) not in gone]


def _comparable(value: Any) -> str | bytes:
    """A value of JSON as something that sets hold: lists may have thousands of members."""
    return value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic")


def _bounds(kind: Kind, state: State) -> Bounds:
    if kind == "clock":
        segments = state.get("segments", 6)
        return {"filled": (0, segments)} if isinstance(segments, int) else {}
    if kind == "relation":
        return {"score": (-100, 100)}
    if kind == "scene":
        return {"beats": (0, MAX_BEATS)}
    days: Bounds = {"day": (1, MAX_DAY)} if kind == "world" else {}
    attributes = state.get("attributes")
    return {**days, **_highest(cast("State", attributes))} if isinstance(attributes, dict) else days


def _highest(attributes: State) -> Bounds:
    """An attribute that has one named `<its name>_max` beside it, say `hp`, is 0 to that."""
    return {
        f"attributes.{name.removesuffix(MOST)}": (0, most)
        for name, most in attributes.items()
        if name.endswith(MOST) and isinstance(most, int)
    }
