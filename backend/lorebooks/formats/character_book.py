"""An entry of a card's `character_book`, and of `lorebook_v3`, which is the same.

Source: https://github.com/kwaroran/character-card-spec-v3 (SPEC_V3.md, "Lorebook").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.formats import fields
from backend.lorebooks.formats.coerce import MAX_KEY, Notes, content, flag, listed_keys, name

KNOWN: Final = frozenset(
    {
        "keys",
        "secondary_keys",
        "comment",
        "name",
        "content",
        "constant",
        "selective",
        "insertion_order",
        "enabled",
        "position",
        "case_sensitive",
        "use_regex",
    }
)
REQUIRED: Final = ("keys", "content", "extensions", "enabled", "insertion_order")
REQUIRED_BY_V3: Final = (*REQUIRED, "use_regex")
_SILLYTAVERNS: Final = frozenset(
    {"useProbability", "selectiveLogic", "exclude_recursion", "display_index"}
)
"""Tools that write one of these write `use_regex: true` on every entry, and mean nothing by it."""


def extensions(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The `extensions` of an entry or of a book; empty where they are none."""
    found = raw.get("extensions")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def read_entry(raw: Mapping[str, Any], notes: Notes) -> LoreEntry:
    """An entry out of a book. What `extensions` say wins over the entry's own members."""
    extra = extensions(raw)
    before = raw.get("position") in ("before_char", 0, "0")
    own: dict[str, Any] = {"position": "before_character" if before else "after_character"}
    if raw.get("case_sensitive") is not None:
        own["case_sensitive"] = notes.read(raw, "case_sensitive", flag, default=False)
    title = notes.read(raw, "comment", name, "") or notes.read(raw, "name", name, "")
    found = listed_keys(raw, "keys", notes)
    secondary = listed_keys(raw, "secondary_keys", notes, blank=True)
    if has_bare_patterns(raw):
        found, secondary = (
            _patterns(each, ignore_case=raw.get("case_sensitive") is False)
            for each in (found, secondary)
        )
    return LoreEntry(
        title=title,
        content=notes.read(raw, "content", content, ""),
        keys=found,
        secondary_keys=secondary,
        constant=notes.read(raw, "constant", flag, default=False),
        selective=notes.read(raw, "selective", flag, default=False),
        order=notes.read(raw, "insertion_order", fields.ORDER, 100),
        enabled=notes.read(raw, "enabled", flag, default=True),
        **{**own, **fields.read_extensions(extra, notes)},
    )


def has_bare_patterns(raw: Mapping[str, Any]) -> bool:
    """Whether an entry's keys are patterns without the slashes that mark one here."""
    return bool(raw.get("use_regex")) and _SILLYTAVERNS.isdisjoint(extensions(raw))


def _patterns(found: list[str], *, ignore_case: bool) -> list[str]:
    return [key if _is_pattern(key) else _pattern(key, ignore_case=ignore_case) for key in found]


def _pattern(key: str, *, ignore_case: bool) -> str:
    body = key.replace("\\/", "/").replace("/", "\\/")
    pattern = f"/{body}/i" if ignore_case else f"/{body}/"
    return pattern if len(pattern) <= MAX_KEY else key


def _is_pattern(key: str) -> bool:
    return len(key) > 1 and key.startswith("/") and "/" in key[1:]


def write_entry(entry: LoreEntry) -> dict[str, Any]:
    """The entry as a book holds it, with the rest in `extensions`, as SillyTavern has it."""
    own: dict[str, Any] = {
        "keys": entry.keys,
        "secondary_keys": entry.secondary_keys,
        "comment": entry.title,
        "name": entry.title,
        "content": entry.content,
        "constant": entry.constant,
        "selective": entry.selective,
        "insertion_order": entry.order,
        "enabled": entry.enabled,
        "position": "before_char" if entry.position == "before_character" else "after_char",
        "use_regex": bool(entry.keys) and all(map(_is_pattern, entry.keys)),
        "extensions": fields.write_extensions(entry),
    }
    if entry.case_sensitive is not None:
        own["case_sensitive"] = entry.case_sensitive
    return own
