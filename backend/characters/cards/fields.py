"""The fields of a card by version, with readers for values of any type."""

from __future__ import annotations

from typing import Any, Final, cast

from backend.characters.cards.codec import (
    Codec,
    Field,
    Notes,
    Object,
    Reader,
    UnusableError,
    get_object,
    read_number,
    read_text,
)
from backend.characters.cards.model import (
    JSON_BYTES,
    LIST_ITEMS,
    NAME,
    SHORT_TEXT,
    TAG,
    TAGS,
    TEXT,
    CardAsset,
    Limit,
)

MAX_SECONDS = 2**53 - 1
"""The largest integer that every JSON reader represents exactly."""


def _make_text_reader(limit: Limit) -> Reader[str]:
    """Return a reader of texts. It raises `CardLimitError` instead of cutting one."""

    def read(value: object, notes: Notes) -> str:
        found = read_text(value, notes)
        limit.check(len(found), f"`{notes.member}`")
        return found

    return read


_read_text, _read_short = _make_text_reader(TEXT), _make_text_reader(SHORT_TEXT)


def _read_texts(value: object, notes: Notes, read: Reader[str] = _read_text) -> list[str]:
    """Read any value as a list of texts. A single text becomes a list, and null an empty list."""
    items = _list_items(value, notes)
    LIST_ITEMS.check(len(items), f"`{notes.member}`")
    return [read(item, notes) for item in items if item is not None]


def _list_items(value: object, notes: Notes) -> list[object]:
    match value:
        case list():
            return cast("list[object]", value)
        case None:
            notes.add_change("was null and is now an empty list")
            return []
        case dict():
            notes.add_change("was an object and is now the list of its values")
            return list(cast("Object", value).values())
        case "":
            return []
        case _:
            notes.add_change("was a single value and is now a list")
            return [value]


def _read_tags(value: object, notes: Notes) -> list[str]:
    """Read a list of tags without blank ones. A single text is split at commas."""
    if isinstance(value, str) and value.strip():
        notes.add_change("was a single text and was split at its commas")
        value = value.split(",")
    tags = [tag.strip() for tag in _read_texts(value, notes, _read_short) if tag.strip()]
    TAGS.check(len(tags), f"`{notes.member}`")
    for tag in tags:
        TAG.check(len(tag), f"A tag of `{notes.member}`")
    return tags


def _read_object(value: object, _: Notes) -> Object:
    """Read an object. An empty list is an empty object, as PHP writes it."""
    if isinstance(value, dict):
        return cast("Object", value)
    if value == []:
        return {}
    raise UnusableError("was not an object and was left out")


def _read_extensions(value: object, notes: Notes) -> Object:
    found = _read_object(value, notes)
    prompt = get_object(found, "depth_prompt").get("prompt")
    if isinstance(prompt, str):
        TEXT.check(len(prompt), "`extensions.depth_prompt.prompt`")
    public = get_object(found, "talekeeper").get("public")
    if isinstance(public, str):
        TEXT.check(len(public), "`extensions.talekeeper.public`")
    return found


def _read_book(value: object, notes: Notes) -> Object | None:
    return _read_object(value, notes) or None


def _read_multilingual(value: object, notes: Notes) -> dict[str, str]:
    found = _read_object(value, notes)
    LIST_ITEMS.check(len(found), f"`{notes.member}`")
    return {
        _read_short(language, notes): _read_text(note, notes) for language, note in found.items()
    }


def _read_seconds(value: object, notes: Notes) -> int:
    """Read a time in whole seconds since 1970."""
    try:
        seconds = int(read_number(value, notes))
    except UnusableError:
        seconds = -1
    if not 0 <= seconds <= MAX_SECONDS:
        raise UnusableError("was not a time in seconds and was left out")
    return seconds


def _read_uri(value: object, notes: Notes) -> str:
    # A `data:` URI contains a whole picture, so only the limit of the file applies.
    uri = read_text(value, notes)
    limit = JSON_BYTES if uri.startswith("data:") else SHORT_TEXT
    limit.check(len(uri), f"`{notes.member}`")
    return uri


_ASSET: Final = Codec(
    (
        Field("type", _read_short, {"": "type"}, is_required=True),
        Field("uri", _read_uri, {"": "uri"}, is_required=True),
        Field("name", _read_short, {"": "name"}, is_required=True),
        Field("ext", _read_short, {"": "ext"}, is_required=True),
    ),
    "",
)


def _read_assets(value: object, notes: Notes) -> list[CardAsset]:
    if not isinstance(value, list):
        raise UnusableError("was not a list and was left out")
    described = cast("list[object]", value)
    LIST_ITEMS.check(len(described), f"`{notes.member}`")
    assets = [
        CardAsset(**_ASSET.read(cast("Object", entry), notes))
        for entry in described
        if isinstance(entry, dict)
    ]
    if len(assets) < len(described):
        notes.add_change("had entries that are not objects; they were left out")
    return assets


def _find_places(name: str, synonyms: str) -> dict[str, str]:
    """Return the members of a field: its name, and the same in camel case, as some tools write it.

    Flat cards also have `synonyms`.
    """
    first, *words = name.split("_")
    camel = first + "".join(map(str.capitalize, words))
    names = name if camel == name else f"{name} {camel}"
    return {"data": names, "flat": f"{names} {synonyms}"}


def _define_required(name: str, read: Reader[Any], synonyms: str = "") -> Field:
    """Define a required field of V2 and V3. `synonyms` are names in flat cards of other tools."""
    return Field(name, read, _find_places(name, synonyms), is_required=True)


def _define_optional(name: str, read: Reader[Any], synonyms: str = "") -> Field:
    return Field(name, read, _find_places(name, synonyms))


V1_FIELDS: Final = (
    _define_required("name", _make_text_reader(NAME), "char_name charName displayName"),
    _define_required("description", _read_text, "char_persona charPersona context persona"),
    _define_required("personality", _read_text),
    _define_required("scenario", _read_text, "world_scenario worldScenario"),
    _define_required(
        "first_mes",
        _read_text,
        "char_greeting charGreeting greeting first_message firstMessage",
    ),
    _define_required(
        "mes_example",
        _read_text,
        "example_dialogue exampleDialogue example_dialogs exampleDialogs example_messages "
        "mes_examples mesExamples exampleMessages exampleMessage sampleChat",
    ),
)
_V2: Final = (
    _define_required("creator_notes", _read_text, "creatorcomment creatorComment"),
    _define_required("system_prompt", _read_text),
    _define_required("post_history_instructions", _read_text),
    _define_required("alternate_greetings", _read_texts),
    _define_required("tags", _read_tags),
    _define_required("creator", _read_short),
    _define_required("character_version", _read_short),
    _define_required("extensions", _read_extensions),
    _define_optional("character_book", _read_book, "embedded_lorebook"),
)
V3_FIELDS: Final = (
    _define_optional("nickname", _make_text_reader(NAME)),
    _define_optional("creator_notes_multilingual", _read_multilingual),
    _define_optional("source", _read_texts),
    _define_optional("group_only_greetings", _read_texts),
    _define_optional("creation_date", _read_seconds),
    _define_optional("modification_date", _read_seconds),
    _define_optional("assets", _read_assets),
)
CARD_FIELDS: Final = Codec((*V1_FIELDS, *_V2, *V3_FIELDS), "data")
FLAT_FIELDS: Final = Codec((*V1_FIELDS, *_V2, *V3_FIELDS), "flat")
REQUIRED: Final = frozenset(field.name for field in (*V1_FIELDS, *_V2) if field.is_required)
"""Members that V2 and V3 require. V3 also requires `group_only_greetings`."""
SPEECH: Final = Codec(V1_FIELDS[2:], "flat").members
"""Members that only a card has, unlike a name and a description."""
