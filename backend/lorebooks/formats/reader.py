"""A file or a JSON value into a lorebook, whichever of the field's formats it is of.

Formats are told apart by what is in them, never by the file's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from backend.characters.cards import charx, png
from backend.characters.cards.codec import Notes, Object, object_in
from backend.characters.cards.limits import check_file_size
from backend.characters.cards.reader import read_card
from backend.characters.cards.text import parse_text
from backend.characters.errors import CardError, CardLimitError
from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.errors import LoreFileError, LoreLimitError
from backend.lorebooks.formats.entry import read_book, read_entry
from backend.lorebooks.formats.fields import CONTENT
from backend.lorebooks.formats.model import BookSource, EntrySource, Format, ReadBook
from backend.lorebooks.limits import check_entries

_NO_LOREBOOK = "This is no lorebook: it has no entries of a kind that is known here."
_WORLD_INFOS: Final = frozenset({"uid", "order", "position", "disable", "addMemo"})


def read_file(data: bytes, *, given_name: str) -> ReadBook:
    """Read a lorebook out of a file: a lorebook of any format, or a card that has one in it.

    CPU-bound: up to some seconds for 20 MB. Call it in a thread.

    Args:
        data: The file: JSON, or a card as PNG, CHARX, JSON or YAML.
        given_name: What the book is called where it has no name of its own.

    Raises:
        LoreFileError: Broken, or no lorebook.
        LoreLimitError: Too many entries, too deep, or an entry that is too long.
        TooLargeError: A file of more than `MAX_FILE_BYTES`.
    """
    check_file_size(len(data))
    try:
        if data.startswith(png.SIGNATURE) or charx.is_archive(data):
            card = read_card(data).card
            book, name = card.character_book, card.name
        else:
            value = parse_text(data)
            if _is_card(value):
                card = read_card(data).card
                book, name = card.character_book, card.name
            else:
                return read_value(value, given_name=given_name)
    except CardLimitError as error:
        raise LoreLimitError(
            error.detail, limit=error.limit, allowed=error.allowed, found=error.found
        ) from error
    except CardError as error:
        raise LoreFileError(error.detail) from error
    if book is None:
        raise LoreFileError("This character card has no lorebook in it.")
    return read_card_book(book, given_name=name)


def read_card_book(book: Object, *, given_name: str) -> ReadBook:
    """Read a card's `character_book`. A book without entries is one, too.

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
        return _read("kobold", {"entries": value}, "entries", given_name=given_name)
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


def _is_card(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    raw = cast("Object", value)
    named = str(raw.get("spec", "")).startswith("chara_card")
    return named or "character_book" in raw or "character_book" in object_in(raw, "data")


def _format(raw: Object) -> Format:
    """Which format an object with `entries` is of: by its marks, else by its entries'."""
    entries: Any = raw.get("entries")
    if not isinstance(entries, dict | list):
        raise LoreFileError(_NO_LOREBOOK)
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
    for item in items:
        found = _format_of_entry(cast("Object", item)) if isinstance(item, dict) else None
        if found is not None:
            return found
    raise LoreFileError(_NO_LOREBOOK)


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
    for key, item in items:
        if not isinstance(item, dict) or _is_folder(found, cast("Object", item)):
            notes.add("Something among the entries was no entry and was left out")
            continue
        entry_raw = cast("Object", item)
        entry = read_entry(found, entry_raw, notes)
        is_short = isinstance(entry_raw.get(said), str)
        kept = {**entry_raw, said: None} if is_short else entry_raw
        entries.append((entry, EntrySource(found, kept, key, is_short)))
    skipped = len(items) - len(entries)
    beside = {name: value for name, value in raw.items() if name != member}
    fields = read_book(beside, notes, given_name=given_name)
    source = BookSource(found, beside, envelope or {}, given_name, len(items))
    return ReadBook(fields, source, entries, notes.sentences, skipped)


def _is_folder(found: Format, raw: Object) -> bool:
    return found == "risu" and raw.get("mode") == "folder"
