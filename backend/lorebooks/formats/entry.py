"""An entry, and what a book says of itself, out of a format's object and into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from backend.characters.cards.codec import Notes, Object, object_in
from backend.lorebooks.entries import BookFields, LoreEntry
from backend.lorebooks.formats.fields import (
    BOOK,
    ENTRIES,
    MATCHED,
    MAX_KEY,
    MAX_NAME,
    check_content,
)
from backend.lorebooks.formats.model import Format

Target = Literal["world_info", "character_book"]
"""A format that is written."""

_SILLYTAVERNS: Final = frozenset(
    {"useProbability", "selectiveLogic", "exclude_recursion", "display_index"}
)
"""Tools that write one of these write `use_regex: true` on every entry, and mean nothing by it."""


def read_entry(file_format: Format, raw: Mapping[str, Any], notes: Notes) -> LoreEntry:
    """An entry out of an object of any format. Raises `LoreLimitError`."""
    found = ENTRIES[file_format].read(raw, notes)
    matched = [field for field in MATCHED if found.pop(f"match_{field}", False)]
    if matched:
        found["match_fields"] = matched
    if found.pop("disabled", False):
        found["enabled"] = False
    if file_format == "character_book":
        _read_book_members(found, raw)
    elif file_format in {"risu", "kobold"}:
        # A blank key says nothing there.
        found["secondary_keys"] = [key for key in found.get("secondary_keys", []) if key]
    if file_format == "kobold":
        _read_anti_keys(found, raw)
    return LoreEntry(**found)


def _read_book_members(found: Object, raw: Mapping[str, Any]) -> None:
    """What `extensions` say wins over the entry's own members."""
    if object_in(raw, "extensions").get("position") is None:
        before = raw.get("position") in ("before_char", 0, "0")
        found["position"] = "before_character" if before else "after_character"
    if has_bare_patterns(raw):
        ignore_case = raw.get("case_sensitive") is False
        for name in ("keys", "secondary_keys"):
            found[name] = [_pattern(key, ignore_case=ignore_case) for key in found.get(name, [])]


def has_bare_patterns(raw: Mapping[str, Any]) -> bool:
    """Whether an entry's keys are patterns without the slashes that mark one here."""
    return bool(raw.get("use_regex")) and _SILLYTAVERNS.isdisjoint(object_in(raw, "extensions"))


def _pattern(key: str, *, ignore_case: bool) -> str:
    if _is_pattern(key):
        return key
    body = key.replace("\\/", "/").replace("/", "\\/")
    pattern = f"/{body}/i" if ignore_case else f"/{body}/"
    return pattern if len(pattern) <= MAX_KEY else key


def _is_pattern(key: str) -> bool:
    return len(key) > 1 and key.startswith("/") and "/" in key[1:]


def _read_anti_keys(found: Object, raw: Mapping[str, Any]) -> None:
    """Kobold's keys that must not occur.

    They become secondary keys, or a decorator of Character Card V3 where those are taken.
    """
    anti, secondary = found.pop("anti_keys", []), found["secondary_keys"]
    if raw.get("selective") is None:
        found["selective"] = bool(secondary)
    if anti and secondary and found["selective"]:
        found["content"] = f"@@exclude_keys {','.join(anti)}\n{found.get('content', '')}"
        check_content(found["content"])
    elif anti:
        found |= {"secondary_keys": anti, "selective": True, "logic": "not_any"}


def write_entry(entry: LoreEntry, target: Target) -> Object:
    """The entry as `target` holds it, but for its number; all that is known here, and no more."""
    values = msgspec.structs.asdict(entry)
    values["disabled"] = not entry.enabled
    values |= {f"match_{field}": field in entry.match_fields for field in MATCHED}
    written = ENTRIES[target].write(values)
    if target == "character_book":
        written["name"] = entry.title
        written["position"] = (
            "before_char" if entry.position == "before_character" else "after_char"
        )
        written["use_regex"] = bool(entry.keys) and all(map(_is_pattern, entry.keys))
        if entry.case_sensitive is not None:
            written["case_sensitive"] = entry.case_sensitive
    return written


def read_book(raw: Mapping[str, Any], notes: Notes, *, given_name: str) -> BookFields:
    """A book's own fields; `given_name` is its name where it has none."""
    fields = BookFields(**BOOK.read(raw, notes))
    name = fields.name.strip() or given_name[:MAX_NAME]
    return msgspec.structs.replace(fields, name=name)


def write_book(fields: BookFields) -> Object:
    """The same members, those that say something; `name`, `description`, `extensions` always."""
    return {"extensions": {}, **BOOK.write(msgspec.structs.asdict(fields))}
