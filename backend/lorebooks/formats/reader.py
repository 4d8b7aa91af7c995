"""Read a lorebook from a file or a JSON value in any supported format.

The format is detected from the content, never from the file name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from backend.characters.cards import charx, png
from backend.characters.cards.codec import Notes, Object, get_object, list_names, to_text
from backend.characters.cards.kinds import AS_LOREBOOK, LOREBOOK, find_kind
from backend.characters.cards.model import Card, check_file_size
from backend.characters.cards.reader import normalise, read_card
from backend.characters.cards.text import parse_text
from backend.characters.cards.translation import translate
from backend.characters.errors import CardError, CardLimitError
from backend.lorebooks.entries import LoreEntry, check_entries
from backend.lorebooks.errors import LoreFileError, LoreLimitError
from backend.lorebooks.formats.fields import (
    CONTENT,
    ENTRIES,
    BookSource,
    EntrySource,
    Format,
    ReadBook,
    read_book,
    read_entry,
)

_NO_LOREBOOK = "This is no lorebook: it has no entries of a kind that is known here."
_OF_FILES: Final = frozenset({"type", "id", "name", "title", "scenarioVersion", "gamestarted"})
"""Members of a file around a lorebook that are ignored without a warning."""

_OF_ENTRIES: Final = frozenset(
    {"id", "_id", "uid", "folder", "mode", "category", "contextConfig", "lastUpdatedAt", "wigroup"}
)
"""Members of entries that are ignored without a warning: they order a book or are read in part."""

_READ_ALONE: Final[frozenset[Format]] = frozenset({"agnai", "risu", "novelai", "kobold"})
"""Formats that are read but not written. The other formats may have any members."""

_WORLD_INFOS: Final = frozenset({"uid", "order", "position", "disable", "addMemo"})


def read_file(data: bytes, *, given_name: str) -> ReadBook:
    """Read a lorebook from a file of any format, or from a card, module or story.

    CPU-bound: up to some seconds for 20 MB. Call it in a thread.

    Args:
        data: The file: JSON, or a card as PNG, CHARX, JSON or YAML.
        given_name: The name if the book has none.

    Raises:
        LoreFileError: The file is broken or is not a lorebook.
        LoreLimitError: Too many entries, too deep nesting, or an entry that is too long.
        TooLargeError: The file is larger than `MAX_FILE_BYTES`.
    """
    check_file_size(len(data))
    try:
        if data.startswith(png.SIGNATURE) or charx.is_archive(data):
            return _read_from_card(read_card(data).card)
        value: Any = parse_text(data)
        if isinstance(value, dict):
            raw = cast("Object", value)
            if (inside := _read_inside(raw, given_name=given_name)) is not None:
                return inside
            if _is_card(raw):
                return _read_from_card(normalise(raw).card)
        return read_value(cast("object", value), given_name=given_name)
    except CardLimitError as error:
        raise LoreLimitError(
            error.detail, limit=error.limit, allowed=error.allowed, found=error.found
        ) from error
    except CardError as error:
        raise LoreFileError(error.detail) from error


def _read_from_card(card: Card) -> ReadBook:
    if card.character_book is None:
        raise LoreFileError("This character card contains no lorebook.")
    return read_card_book(card.character_book, given_name=card.name)


def _read_inside(raw: Object, *, given_name: str) -> ReadBook | None:
    """Read the lorebook in a file with other content, or return None if there is none.

    The other content is left out and named in a warning.
    """
    module = get_object(raw, "module") or raw
    definition = get_object(get_object(raw, "node") or raw, "definition")
    book: Object
    if raw.get("type") == "risuModule":
        name, around, member = "a module of RisuAI", module, "lorebook"
        book = {"type": "risu", "data": module.get("lorebook") or []}
    elif isinstance(raw.get("worldinfo"), list):
        name, around, member = "a story of KoboldAI", raw, "worldinfo"
        book = {"folders": {}, "entries": raw["worldinfo"]}
    elif "scenarioVersion" in raw and get_object(raw, "lorebook"):
        name, around, member = "a story of NovelAI", raw, "lorebook"
        book = get_object(raw, "lorebook")
    elif get_object(definition, "embedded_lorebook"):
        name, around, member = "a download of Chub", definition, "embedded_lorebook"
        book = get_object(definition, "embedded_lorebook")
    else:
        return None
    own_name = to_text(around.get("name") or around.get("title")).strip()
    found = read_value(book, given_name=own_name or given_name)
    rest = [each for each, value in around.items() if value and each not in {member, *_OF_FILES}]
    if rest:
        found.warnings.append(f"Of {name} only the lore is read, not {list_names(rest)}.")
    return found


def read_card_book(book: Object, *, given_name: str) -> ReadBook:
    """Read a card's `character_book`, which may have no entries.

    Raises `LoreLimitError`.
    """
    try:
        return read_value(book, given_name=given_name)
    except LoreLimitError:
        raise
    except LoreFileError:
        return _read("character_book", book, "entries", given_name=given_name)


def read_value(value: object, *, given_name: str) -> ReadBook:
    """Read a parsed JSON value as a lorebook. Raises `LoreFileError`, `LoreLimitError`."""
    if isinstance(value, list):
        listed: list[Any] = cast("Any", value)
        found = _format_of_entries(listed) if listed else "kobold"
        if found is None:
            raise LoreFileError(_refusal(listed))
        return _read(found, {"entries": listed}, "entries", given_name=given_name)
    if not isinstance(value, dict):
        raise LoreFileError(_NO_LOREBOOK)
    raw = cast("Object", value)
    data = raw.get("data")
    if isinstance(data, dict) and str(raw.get("spec", "")).startswith("lorebook"):
        envelope = {member: each for member, each in raw.items() if member not in {"spec", "data"}}
        return _read(
            "character_book",
            cast("Object", data),
            "entries",
            given_name=given_name,
            envelope=envelope,
        )
    if raw.get("type") == "risu" and isinstance(data, list):
        return _read("risu", raw, "data", given_name=given_name)
    return _read(_format(raw), raw, "entries", given_name=given_name)


def _is_card(raw: Object) -> bool:
    named = str(raw.get("spec", "")).startswith("chara_card")
    has_book = "character_book" in raw or "character_book" in get_object(raw, "data")
    return named or has_book or translate(raw) is not None


def _refusal(value: object) -> str:
    """Explain why a JSON value is not a lorebook, based on its kind of file."""
    kind = find_kind(value)
    if kind is None or kind.advice.startswith(AS_LOREBOOK):
        return _NO_LOREBOOK
    return kind.explain(LOREBOOK)


def _format(raw: Object) -> Format:
    """Detect the format of an object with `entries` by its own members, else by its entries."""
    entries: Any = raw.get("entries")
    if not isinstance(entries, dict | list):
        raise LoreFileError(_refusal(raw))
    items: list[Any] = [item for _, item in _items(cast("object", entries))]
    marks: dict[Format, bool] = {
        "novelai": "lorebookVersion" in raw,
        "agnai": raw.get("kind") == "memory",
        "kobold": "folders" in raw,
        "world_info": not items and isinstance(entries, dict),
        "character_book": not items and isinstance(entries, list),
    }
    of_book = _first(marks)
    if of_book is not None:
        return of_book
    found = _format_of_entries(items)
    if found is None:
        raise LoreFileError(_NO_LOREBOOK)
    return found


def _format_of_entries(items: list[Any]) -> Format | None:
    """Return the first known format among entries."""
    for item in items:
        found = _format_of_entry(cast("Object", item)) if isinstance(item, dict) else None
        if found is not None:
            return found
    return None


def _first(marks: Mapping[Format, bool]) -> Format | None:
    return next((each for each, is_marked in marks.items() if is_marked), None)


def _format_of_entry(entry: Object) -> Format | None:
    marks: dict[Format, bool] = {
        "agnai": {"keywords", "entry"} <= entry.keys(),
        "kobold": _looks_like_kobold(entry),
        "world_info": "key" in entry or "keysecondary" in entry,
        "novelai": "text" in entry and "content" not in entry,
        "character_book": "keys" in entry or "content" in entry,
    }
    return _first(marks)


def _looks_like_kobold(raw: Object) -> bool:
    has_text = isinstance(raw.get("key"), str) and _WORLD_INFOS.isdisjoint(raw)
    return "keyanti" in raw or "wigroup" in raw or has_text


def _items(entries: object) -> Iterator[tuple[str | None, object]]:
    match entries:
        case dict():
            yield from cast("Object", entries).items()
        case list():
            yield from ((None, entry) for entry in cast("list[object]", entries))
        case _:
            return


def _read(
    found: Format, raw: Object, member: str, *, given_name: str, envelope: Object | None = None
) -> ReadBook:
    notes = Notes()
    items = list(_items(raw.get(member)))
    check_entries(len(items))
    said = CONTENT[found]
    entries: list[tuple[LoreEntry, EntrySource]] = []
    unused: dict[str, None] = {}
    for key, item in items:
        if not isinstance(item, dict) or _is_folder(found, cast("Object", item)):
            notes.add("Something among the entries was no entry and was left out")
            continue
        entry_raw = cast("Object", item)
        entry = read_entry(found, entry_raw, notes)
        if found in _READ_ALONE:
            known = ENTRIES[found].members | _OF_ENTRIES
            unused |= {each: None for each in entry_raw if each not in known and entry_raw[each]}
        is_short = isinstance(entry_raw.get(said), str)
        kept = {**entry_raw, said: None} if is_short else entry_raw
        entries.append((entry, EntrySource(found, kept, key, is_short)))
    if unused:
        notes.add(f"Of its entries, not used here, and kept for the export: {list_names(unused)}")
    skipped = len(items) - len(entries)
    beside = {name: value for name, value in raw.items() if name != member}
    fields = read_book(beside, notes, given_name=given_name)
    source = BookSource(found, beside, envelope or {}, given_name, len(items))
    return ReadBook(fields, source, entries, notes.sentences, skipped)


def _is_folder(found: Format, raw: Object) -> bool:
    return found == "risu" and raw.get("mode") == "folder"
