"""The fields of a card, version by version, and objects of any version read into one `Card`.

Three things are refused: what is no card, a card without a name, and a text over its limit.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, cast

import msgspec

from backend.characters.cards.codec import (
    Codec,
    Field,
    Notes,
    Object,
    Reader,
    Unusable,
    finite,
    object_in,
    text,
)
from backend.characters.cards.limits import (
    CARD_BYTES,
    JSON_BYTES,
    LIST_ITEMS,
    NAME,
    SHORT_TEXT,
    TAG,
    TAGS,
    TEXT,
    Limit,
)
from backend.characters.cards.model import Card, CardAsset, ImportedCard, Spec
from backend.characters.errors import CardError

MAX_SECONDS = 2**53 - 1
"""The largest integer that every JSON reader takes exactly."""

NEWEST_VERSION = 3.0
_SPEC_NAME = re.compile(r"\s*chara_card_v(\d{1,3})\s*", re.IGNORECASE)


def _text(limit: Limit) -> Reader[str]:
    """A reader of texts, which are never cut: it raises `CardLimitError`."""

    def read(value: object, notes: Notes) -> str:
        found = text(value, notes)
        limit.check(len(found), f"`{notes.member}`")
        return found

    return read


_read_text, _read_short = _text(TEXT), _text(SHORT_TEXT)


def _texts(value: object, notes: Notes, read: Reader[str] = _read_text) -> list[str]:
    """Any value as a list of texts; a single text is a list of one, null an empty list."""
    items = _items(value, notes)
    LIST_ITEMS.check(len(items), f"`{notes.member}`")
    return [read(item, notes) for item in items if item is not None]


def _items(value: object, notes: Notes) -> list[object]:
    match value:
        case list():
            return cast("list[object]", value)
        case None:
            notes.bent("was null and is now an empty list")
            return []
        case dict():
            notes.bent("was an object and is now the list of its values")
            return list(cast("Object", value).values())
        case "":
            return []
        case _:
            notes.bent("was a single value and is now a list")
            return [value]


def _tags(value: object, notes: Notes) -> list[str]:
    """A list of tags, none blank; a single text is split at its commas."""
    if isinstance(value, str) and value.strip():
        notes.bent("was a single text and was split at its commas")
        value = value.split(",")
    tags = [tag.strip() for tag in _texts(value, notes, _read_short) if tag.strip()]
    TAGS.check(len(tags), f"`{notes.member}`")
    for tag in tags:
        TAG.check(len(tag), f"A tag of `{notes.member}`")
    return tags


def _mapping(value: object, _: Notes) -> Object:
    """An object. PHP writes an empty one as a list."""
    if isinstance(value, dict):
        return cast("Object", value)
    if value == []:
        return {}
    raise Unusable("was no object and was left out")


def _extensions(value: object, notes: Notes) -> Object:
    found = _mapping(value, notes)
    prompt = object_in(found, "depth_prompt").get("prompt")
    if isinstance(prompt, str):
        TEXT.check(len(prompt), "`extensions.depth_prompt.prompt`")
    return found


def _book(value: object, notes: Notes) -> Object | None:
    return _mapping(value, notes) or None


def _multilingual(value: object, notes: Notes) -> dict[str, str]:
    found = _mapping(value, notes)
    LIST_ITEMS.check(len(found), f"`{notes.member}`")
    return {
        _read_short(language, notes): _read_text(note, notes) for language, note in found.items()
    }


def _seconds(value: object, notes: Notes) -> int:
    """A point in time in whole seconds."""
    try:
        seconds = int(finite(value, notes))
    except Unusable:
        seconds = -1
    if not 0 <= seconds <= MAX_SECONDS:
        raise Unusable("was no time in seconds and was left out")
    return seconds


def _uri(value: object, notes: Notes) -> str:
    # A `data:` URI holds a whole picture: only the file's own size bounds it.
    uri = text(value, notes)
    limit = JSON_BYTES if uri.startswith("data:") else SHORT_TEXT
    limit.check(len(uri), f"`{notes.member}`")
    return uri


_ASSET: Final = Codec(
    (
        Field("type", _read_short, {"": "type"}, is_required=True),
        Field("uri", _uri, {"": "uri"}, is_required=True),
        Field("name", _read_short, {"": "name"}, is_required=True),
        Field("ext", _read_short, {"": "ext"}, is_required=True),
    ),
    "",
)


def _assets(value: object, notes: Notes) -> list[CardAsset]:
    if not isinstance(value, list):
        raise Unusable("was no list and was left out")
    described = cast("list[object]", value)
    LIST_ITEMS.check(len(described), f"`{notes.member}`")
    assets = [
        CardAsset(**_ASSET.read(cast("Object", entry), notes))
        for entry in described
        if isinstance(entry, dict)
    ]
    if len(assets) < len(described):
        notes.bent("had entries that are no objects; they were left out")
    return assets


def _required(name: str, read: Reader[Any], synonyms: str = "") -> Field:
    """A field of V2 and V3. `synonyms` are names that flat cards of other tools have for it."""
    return Field(name, read, {"data": name, "flat": f"{name} {synonyms}"}, is_required=True)


def _optional(name: str, read: Reader[Any]) -> Field:
    return Field(name, read, {"data": name, "flat": name})


_V1: Final = (
    _required("name", _text(NAME), "char_name"),
    _required("description", _read_text, "char_persona context"),
    _required("personality", _read_text),
    _required("scenario", _read_text, "world_scenario"),
    _required("first_mes", _read_text, "char_greeting greeting"),
    _required("mes_example", _read_text, "example_dialogue"),
)
_V2: Final = (
    _required("creator_notes", _read_text, "creatorcomment"),
    _required("system_prompt", _read_text),
    _required("post_history_instructions", _read_text),
    _required("alternate_greetings", _texts),
    _required("tags", _tags),
    _required("creator", _read_short),
    _required("character_version", _read_short),
    _required("extensions", _extensions),
    _optional("character_book", _book),
)
_V3: Final = (
    _optional("nickname", _text(NAME)),
    _optional("creator_notes_multilingual", _multilingual),
    _optional("source", _texts),
    _optional("group_only_greetings", _texts),
    _optional("creation_date", _seconds),
    _optional("modification_date", _seconds),
    _optional("assets", _assets),
)
CARD_FIELDS: Final = Codec((*_V1, *_V2, *_V3), "data")
FLAT_FIELDS: Final = Codec((*_V1, *_V2, *_V3), "flat")
REQUIRED: Final = frozenset(field.name for field in (*_V1, *_V2) if field.is_required)
"""What V2 and V3 both ask for. V3 asks for `group_only_greetings` besides."""
_V1_NAMES: Final = [field.name for field in _V1]
_V3_NAMES: Final = {field.name for field in _V3}


def normalise(raw: object) -> ImportedCard:
    """Read a parsed JSON value as a character card.

    Raises:
        CardError: No card, or one without a name.
        CardLimitError: A text, a list or the whole is too long.
    """
    if not isinstance(raw, dict):
        raise CardError("This is no character card: a card is a JSON object.")
    source = cast("Object", raw)
    notes = Notes()
    spec, found = _read(source, notes)
    if not found.get("name", "").strip():
        raise CardError("The card has no name: `name` is missing or blank.")
    card = Card(**found)
    bookless = msgspec.structs.replace(card, character_book=None)
    CARD_BYTES.check(len(msgspec.json.encode(bookless)), "The card")
    return ImportedCard(card, source, spec, warnings=notes.sentences)


def _read(raw: Object, notes: Notes) -> tuple[Spec, Object]:
    """Tell the version, and read the fields: from `data` where there is one.

    SillyTavern repeats V1's fields beside `data`; they only fill in for what `data` lacks.
    """
    data = raw.get("data")
    if isinstance(data, dict):
        nested = cast("Object", data)
        _refuse_lorebook(raw, nested)
        spec = _nested_spec(raw, nested, notes)
        flat = {name: raw[name] for name in _V1_NAMES if raw.get(name) is not None}
        return spec, CARD_FIELDS.read(flat | nested, notes)
    _refuse_lorebook(raw, raw)
    if "spec" in raw:
        notes.add("The card names a version but has no `data`: it was read as V1")
    return "v1", FLAT_FIELDS.read(raw, notes)


def _refuse_lorebook(raw: Object, fields: Object) -> None:
    """Raise for a lorebook, and for an object that has nothing of a card's."""
    talks = any(name in fields for name in _V1_NAMES if name not in {"name", "description"})
    holds_lore = "entries" in fields or raw.get("type") == "risu"
    if _spec_name(raw).startswith("lorebook") or (holds_lore and not talks):
        raise CardError("This is a lorebook, not a character card: import it as a lorebook.")
    if FLAT_FIELDS.members.isdisjoint(fields) and "spec" not in raw:
        raise CardError("This is no character card: it has none of a card's fields.")


def _spec_name(raw: Object) -> str:
    name = raw.get("spec")
    return name if isinstance(name, str) else ""


def _nested_spec(raw: Object, data: Object, notes: Notes) -> Spec:
    named = _SPEC_NAME.fullmatch(_spec_name(raw))
    guess: Spec = "v2" if _V3_NAMES.isdisjoint(data) else "v3"
    if named is None:
        notes.add(f"The card names no known version: it was read as {guess.upper()}")
        return guess
    number = int(named[1])
    if number < math.floor(NEWEST_VERSION):
        return "v2"
    try:
        version = max(finite(raw.get("spec_version"), notes), number)
    except Unusable:
        notes.add("`spec_version` is no number; the card was read as 3.0")
    else:
        if version > NEWEST_VERSION:
            notes.add(
                f"The card is of version {version:g}, newer than {NEWEST_VERSION}: "
                "what is new in it is kept, but not used"
            )
    return "v3"
