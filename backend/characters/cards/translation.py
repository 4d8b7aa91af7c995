"""Translate objects of other programs into cards, member by member."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from backend.characters.cards.codec import Object, list_names, get_object, omit

CHAT_MEMBERS: Final = frozenset({"chats", "Chat", "chatPage", "messages"})
"""Members that hold whole chats. They are left out, because they can be larger than a card."""


@dataclass(slots=True)
class Translation:
    """A translated card. `card` is an object of version 3 of the card format.

    Members without a field are kept in the card's `extensions`.
    """

    card: Object
    warnings: list[str] = field(default_factory=list[str])


def is_set(value: Any) -> bool:
    """True unless a value is null, false or empty."""
    return value not in (None, "", False, [], {})


def take_fields(raw: Mapping[str, Any], names: Mapping[str, str]) -> tuple[Object, Object]:
    """Return the card's fields that an object has, and its other members that say something.

    Args:
        raw: The object of another program.
        names: By field of the card: the object's members for it, separated by blanks. The first
            that says something is taken.
    """
    data: Object = {}
    used: set[str] = set()
    for name, members in names.items():
        said = next((each for each in members.split() if is_set(raw.get(each))), None)
        if said is not None:
            data[name] = raw[said]
            used.add(said)
    rest = {member: value for member, value in raw.items() if member not in used and is_set(value)}
    return data, rest


def build_translation(
    program: str,
    key: str,
    data: Object,
    rest: Mapping[str, Any],
    *,
    known: Collection[str] = (),
    warnings: Iterable[str] = (),
) -> Translation:
    """Build a translation.

    Args:
        program: The program's name, for the person who imports.
        key: Its place in the card's `extensions`.
        data: The card's fields.
        rest: Members without a field.
        known: Those of `rest` that need no warning, such as ids and dates.
        warnings: More sentences.
    """
    kept = omit(rest, CHAT_MEMBERS)
    found = [f"It was translated from {program}."]
    if unknown := [member for member in kept if member not in known]:
        found.append(f"Not used here, and kept for the export: {list_names(unknown)}.")
    if chats := rest.keys() & CHAT_MEMBERS:
        found.append(f"Its chats are left out: {list_names(sorted(chats))}.")
    if kept:
        extensions = get_object(data, "extensions")
        own = {**kept, **get_object(extensions, key)}
        data = {**data, "extensions": {**extensions, key: own}}
    card = {"spec": "chara_card_v3", "spec_version": "3.0", "data": data}
    return Translation(card, [*found, *warnings])
