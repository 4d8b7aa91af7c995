"""Read and write JSON objects of other tools by a table of fields.

A table lists each field of a model, its member in each format, and a reader that converts any
value. Reading refuses no value for its type; it notes every conversion. `overlay` writes changes
into an object and keeps all other members.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")
Object = dict[str, Any]

MAX_NAMES = 20
"""Members that one warning names."""

MAX_NAME_CHARACTERS = 60

_FALSE_WORDS = frozenset({"", "0", "false", "no", "off"})
_UNSET: Any = msgspec.UNSET


class UnusableError(ValueError):
    """The value cannot be converted. `Notes` adds the text, if any, after the member's name."""


class Notes:
    """Collects sentences about converted values. Each one is kept once, with its count.

    `member` is the name of the member that is being read.
    """

    def __init__(self) -> None:
        self.member = ""
        self._counts: Counter[str] = Counter()

    def add(self, sentence: str) -> None:
        """Add a sentence for the user, without the full stop."""
        self._counts[sentence] += 1

    def add_change(self, how: str) -> None:
        self.add(f"`{self.member}` {how}")

    @property
    def sentences(self) -> list[str]:
        """The sentences, in the order of their first occurrence."""
        return [
            f"{sentence}." if count == 1 else f"{sentence} ({count:,} times)."
            for sentence, count in self._counts.items()
        ]


Reader = Callable[[Any, Notes], T]
"""Converts a value, or raises `UnusableError`."""


def omit_null(value: Any) -> Any:
    """Write nothing for null."""
    return _UNSET if value is None else value


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a model, and its members in formats.

    Attributes:
        places: By format, the members for the field, separated by spaces. The first one with a
            value is read. The first one is written. `a.b` is a member of the object `a`.
        write: Converts the value for the format. `msgspec.UNSET` leaves it out.
        default: The value if it is absent. `msgspec.UNSET` uses the default of the model.
        is_required: The format always has the member, so null is converted as any value is. For
            other members null means absent.
    """

    name: str
    read: Reader[Any]
    places: Mapping[str, str]
    write: Callable[[Any], Any] | None = None
    default: Any = _UNSET
    is_required: bool = False


class Codec:
    """Reads and writes the fields of a table that one format has.

    `members` are the names of the format, without those in nested objects, which are in `inner`.
    """

    def __init__(self, table: Iterable[Field], file_format: str) -> None:
        self._fields = [
            (field, [_split_place(place) for place in field.places[file_format].split()])
            for field in table
            if field.places.get(file_format)
        ]
        places = {place for _, field_places in self._fields for place in field_places}
        self._outer = {outer for outer, _ in places}
        self.members = frozenset(member for outer, member in places if not outer)
        self.inner = frozenset(member for outer, member in places if outer)

    def read(self, raw: Mapping[str, Any], notes: Notes) -> Object:
        """Return the fields that `raw` has, by their names in the model."""
        objects = {outer: reduce(get_object, outer, raw) for outer in self._outer}
        outer_member = notes.member
        prefix = f"{outer_member}." if outer_member else ""
        found: Object = {}
        for field, places in self._fields:
            value = _UNSET
            for outer, member in places:
                value = objects[outer].get(member, value)
                if value is not _UNSET and value is not None and value != "":
                    break
            if value is _UNSET or (value is None and not field.is_required):
                value = field.default
            else:
                notes.member = prefix + places[0][1]
                try:
                    value = field.read(value, notes)
                except UnusableError as error:
                    _note_unusable(notes, error)
                    value = field.default
            if value is not _UNSET:
                found[field.name] = value
        notes.member = outer_member
        return found

    def unread(self, raw: Mapping[str, Any]) -> list[str]:
        """List members that are not read because another member of the same field is."""
        objects = {outer: reduce(get_object, outer, raw) for outer in self._outer}
        lost: list[str] = []
        for _, places in self._fields:
            found = [(name, objects[outer].get(name)) for outer, name in places]
            found = [(name, value) for name, value in found if value is not None and value != ""]
            lost += [name for name, value in found[1:] if value != found[0][1]]
        return lost

    def write(self, values: Mapping[str, Any]) -> Object:
        """Return an object of the format from `values` by their names in the model."""
        written: Object = {}
        for field, places in self._fields:
            value = values[field.name]
            if field.write is not None:
                value = field.write(value)
            if value is not _UNSET:
                outer, member = places[0]
                holder = written
                for name in outer:
                    holder = holder.setdefault(name, {})
                holder[member] = value
        return written


def _split_place(place: str) -> tuple[tuple[str, ...], str]:
    """Return the names of the enclosing objects, from the outermost, and the name of the member."""
    *outer, member = place.split(".")
    return tuple(outer), member


def _note_unusable(notes: Notes, error: UnusableError) -> None:
    if how := str(error):
        notes.add_change(how)
    else:
        member = notes.member
        notes.add(f"A value of `{member}` could not be used, so the default is used")


def get_object(raw: Mapping[str, Any], member: str) -> Object:
    """Return the object in a member of `raw`, or an empty one."""
    found = raw.get(member)
    return cast("Object", found) if isinstance(found, dict) else {}


def omit(raw: Mapping[str, Any], members: Collection[str]) -> Object:
    return {member: value for member, value in raw.items() if member not in members}


def overlay(
    raw: Mapping[str, Any], before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `raw` with the differences between `before` and `now`, merged member by member."""
    found = dict(raw)
    for member in {**before, **now}:
        was, value = before.get(member, _UNSET), now.get(member, _UNSET)
        if was == value:
            continue
        if value is _UNSET:
            found.pop(member, None)
        elif isinstance(value, dict):
            found[member] = overlay(
                get_object(raw, member), get_object(before, member), cast("Object", value)
            )
        else:
            found[member] = value
    return found


def list_names(members: Iterable[str]) -> str:
    """Return names of members as text, limited in length and without control characters."""
    names = list(members)
    clean = ("".join(c if c.isprintable() else " " for c in each) for each in names[:MAX_NAMES])
    shown = ", ".join(f"`{each[:MAX_NAME_CHARACTERS].replace('`', ' ')}`" for each in clean)
    return f"{shown} and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else shown


def to_text(value: object) -> str:
    """Return any value as text. Null is empty."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_text(value: object, notes: Notes) -> str:
    """Return any value as text. A list of texts becomes lines."""
    match value:
        case str():
            return value
        case None:
            notes.add_change("was null and is now empty")
        case list() if all(isinstance(item, str) for item in cast("list[object]", value)):
            notes.add_change("was a list and is now its lines")
            return "\n".join(cast("list[str]", value))
        case _:
            notes.add_change("was not text and is now the text of its value")
    return to_text(value)


def read_flag(value: object, _: Notes) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in _FALSE_WORDS
    return bool(value)


def read_number(value: object, _: Notes) -> float:
    """Read a number, even from text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UnusableError
    try:
        found = float(value)
    except (ValueError, OverflowError) as error:
        raise UnusableError from error
    if not math.isfinite(found):
        raise UnusableError
    return found


def make_number_reader(low: float, high: float) -> Reader[float]:
    """Return a reader of numbers. A number out of range is set to the limit."""

    def read(value: object, notes: Notes) -> float:
        found = read_number(value, notes)
        bounded = min(max(found, low), high)
        if bounded != found:
            notes.add("A number was out of range and was set to the limit")
        return bounded

    return read


def make_integer_reader(low: int, high: int) -> Reader[int]:
    """Return a reader of integers. Fractions are rounded."""
    read_bounded = make_number_reader(low, high)

    def read(value: object, notes: Notes) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        return round(read_bounded(value, notes))

    return read


def make_choice_reader(choices: tuple[T, ...]) -> Reader[T]:
    """Return a reader of one of `choices`, by number or by name."""
    by_name = {str(choice): choice for choice in choices}

    def read(value: object, notes: Notes) -> T:
        if isinstance(value, str) and value in by_name:
            return by_name[value]
        place = read_number(value, notes)
        if place not in range(len(choices)):
            raise UnusableError
        return choices[int(place)]

    return read
