"""Objects of any version of the card format, or of another program, read into one `Card`.

Refused are other kinds of files, a card without a name, a text over its limit, and a file of
an unknown kind that would leave the card with nothing but a name.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Final, cast

import msgspec

from backend.characters.cards.codec import (
    Codec,
    Notes,
    Object,
    UnusableError,
    read_number,
    list_names,
    omit,
)
from backend.characters.cards.fields import CARD_FIELDS, FLAT_FIELDS, V1_FIELDS, V3_FIELDS
from backend.characters.cards.translation import translate
from backend.characters.cards.kinds import CARD, find_kind, is_card
from backend.characters.cards.model import CARD_BYTES, Card, CardImport, Spec
from backend.characters.cards.translation import is_set
from backend.characters.errors import CardError

NEWEST_VERSION = 3.0
_BEYOND_NAME: Final = FLAT_FIELDS.members - Codec(V1_FIELDS[:1], "flat").members

_SPEC_NAME = re.compile(r"\s*chara_card_v(\d{1,3})\s*", re.IGNORECASE)

_UNSAID: Final = frozenset(
    {
        "spec", "spec_version", "data", "avatar", "chat", "create_date", "creatorcomment", "fav",
        "talkativeness", "json_data", "metadata", "shallow", "date_added", "date_last_chat",
        "chat_size", "data_size", "file_name",
    }
)  # fmt: skip
"""Members that need no warning: SillyTavern and card editors write them about the file."""


def normalise(raw: object) -> CardImport:
    """Read a parsed JSON value as a character card: of the card format, or of another program.

    Raises:
        CardError: Another kind of file, no name, or nothing but a name.
        CardLimitError: A text, a list or the whole is too long.
    """
    kind = find_kind(raw)
    if isinstance(raw, dict) and is_card(cast("Object", raw)):
        return _read_card(cast("Object", raw))
    if kind is not None:
        raise CardError(kind.explain(CARD))
    if isinstance(raw, list):
        return normalise(_single(cast("list[object]", raw)))
    if not isinstance(raw, dict):
        raise CardError("This is not a character card: a card is a JSON object.")
    source = cast("Object", raw)
    translation = translate(source)
    if translation is None and FLAT_FIELDS.members.isdisjoint(source) and "spec" not in source:
        raise CardError("This is not a character card: it has none of a card's fields.")
    found = _read_card(translation.card if translation else source)
    more = list(translation.warnings) if translation else []
    unknown = [each for each in source if each not in FLAT_FIELDS.members and is_set(source[each])]
    if unknown and not _says_something(found.card):
        if translation is None and not any(is_set(source.get(each)) for each in _BEYOND_NAME):
            raise CardError(
                "This is not a known kind of character card: it has a name, but no "
                f"description, greeting or examples. Unknown fields: {list_names(unknown)}."
            )
        more.append("The card has no description, greeting or examples.")
    return replace(found, warnings=[*more, *found.warnings])


def _single(values: list[object]) -> Object:
    objects = [cast("Object", value) for value in values if isinstance(value, dict)]
    if not objects:
        raise CardError("This is not a character card: a card is a JSON object.")
    if len(values) > 1:
        raise CardError(
            f"This is a list of {len(values):,} objects. Import each character as a separate file."
        )
    return objects[0]


def _says_something(card: Card) -> bool:
    """True if a card says who its character is, or how it speaks."""
    texts = card.description, card.personality, card.first_mes, card.mes_example, card.system_prompt
    return any(text.strip() for text in (*texts, *card.alternate_greetings))


def _has_words(value: object) -> bool:
    """True if a value contains text with letters: numbers, dates and flags need no warning."""
    match value:
        case str():
            return any(map(str.isalpha, value))
        case dict():
            return any(map(_has_words, cast("Object", value).values()))
        case list():
            return any(map(_has_words, cast("list[object]", value)))
        case _:
            return False


def _read_card(source: Object) -> CardImport:
    notes = Notes()
    spec, found = _read(source, notes)
    if not found.get("name", "").strip():
        raise CardError("The card has no name: `name` is missing or blank.")
    card = Card(**found)
    bookless = msgspec.structs.replace(card, character_book=None)
    CARD_BYTES.check(len(msgspec.json.encode(bookless)), "The card")
    return CardImport(card, source, spec, warnings=notes.sentences)


def _read(raw: Object, notes: Notes) -> tuple[Spec, Object]:
    """Tell the version, and read the fields: from `data` where there is one.

    SillyTavern repeats V1's fields beside `data`; they only fill in for what `data` lacks.
    """
    data = raw.get("data")
    if isinstance(data, dict):
        nested = cast("Object", data)
        spec = _nested_spec(raw, nested, notes)
        flat = {each.name: raw[each.name] for each in V1_FIELDS if raw.get(each.name) is not None}
        fields = flat | nested
        beside = omit(raw, CARD_FIELDS.members)
        _note_unused({**beside, **nested}, fields, CARD_FIELDS, notes)
        return spec, CARD_FIELDS.read(fields, notes)
    if "spec" in raw:
        notes.add("The card names a version but has no `data`: it was read as V1")
    _note_unused(raw, raw, FLAT_FIELDS, notes)
    return "v1", FLAT_FIELDS.read(raw, notes)


def _note_unused(raw: Object, fields: Object, codec: Codec, notes: Notes) -> None:
    """Name the members that say something and become no field of the card."""
    unknown = [
        member
        for member, value in raw.items()
        if member not in codec.members and member not in _UNSAID and _has_words(value)
    ]
    if unknown:
        notes.add(f"Not used here, and kept for the export: {list_names(unknown)}")
    if unread := codec.unread(fields):
        notes.add(f"Left out, because another member has its place: {list_names(unread)}")


def _spec_name(raw: Object) -> str:
    name = raw.get("spec")
    return name if isinstance(name, str) else ""


def _nested_spec(raw: Object, data: Object, notes: Notes) -> Spec:
    named = _SPEC_NAME.fullmatch(_spec_name(raw))
    guess: Spec = "v2" if {field.name for field in V3_FIELDS}.isdisjoint(data) else "v3"
    if named is None:
        notes.add(f"The card names no known version: it was read as {guess.upper()}")
        return guess
    number = int(named[1])
    if number < math.floor(NEWEST_VERSION):
        return "v2"
    try:
        version = max(read_number(raw.get("spec_version"), notes), number)
    except UnusableError:
        notes.add("`spec_version` is no number; the card was read as 3.0")
    else:
        if version > NEWEST_VERSION:
            notes.add(
                f"The card is of version {version:g}, newer than {NEWEST_VERSION}: "
                "what is new in it is kept, but not used"
            )
    return "v3"
