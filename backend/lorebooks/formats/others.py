"""Entries of formats that are read and not written: Agnai's, Risu's, NovelAI's, Kobold's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.formats import fields
from backend.lorebooks.formats.coerce import (
    Notes,
    content,
    flag,
    listed_keys,
    name,
    number,
)

AGNAI: Final = frozenset({"name", "entry", "keywords", "weight", "enabled"})
RISU: Final = frozenset(
    {
        "key",
        "secondkey",
        "insertorder",
        "alwaysActive",
        "comment",
        "content",
        "selective",
        "activationPercent",
    }
)
NOVELAI: Final = frozenset({"text", "displayName", "keys", "enabled", "forceActivation"})
KOBOLD: Final = frozenset(
    {
        "key",
        "keysecondary",
        "keyanti",
        "content",
        "comment",
        "selective",
        "constant",
        "probability",
        "widisabled",
    }
)
_WORLD_INFOS: Final = frozenset({"uid", "order", "position", "disable", "addMemo"})
_PERCENT = number(0, 100)


def read_agnai(raw: Mapping[str, Any], notes: Notes) -> LoreEntry:
    """An entry of an Agnai memory book: `weight` is where it stands, the highest last."""
    return LoreEntry(
        title=notes.read(raw, "name", name, ""),
        content=notes.read(raw, "entry", content, ""),
        keys=listed_keys(raw, "keywords", notes),
        order=notes.read(raw, "weight", fields.ORDER, 100),
        enabled=notes.read(raw, "enabled", flag, default=True),
    )


def read_risu(raw: Mapping[str, Any], notes: Notes) -> LoreEntry:
    """An entry of Risu's: keys with commas between."""
    secondary = listed_keys(raw, "secondkey", notes)
    selective = notes.read(raw, "selective", flag, default=False)
    return LoreEntry(
        title=notes.read(raw, "comment", name, ""),
        content=notes.read(raw, "content", content, ""),
        keys=listed_keys(raw, "key", notes),
        secondary_keys=secondary,
        selective=selective,
        constant=notes.read(raw, "alwaysActive", flag, default=False),
        order=notes.read(raw, "insertorder", fields.ORDER, 100),
        probability=notes.read(raw, "activationPercent", _PERCENT, 100.0),
    )


def read_novelai(raw: Mapping[str, Any], notes: Notes) -> LoreEntry:
    """An entry of NovelAI's: its order is the priority that it has for the budget."""
    context = raw.get("contextConfig")
    settings = cast("dict[str, Any]", context) if isinstance(context, dict) else {}
    return LoreEntry(
        title=notes.read(raw, "displayName", name, ""),
        content=notes.read(raw, "text", content, ""),
        keys=listed_keys(raw, "keys", notes),
        constant=notes.read(raw, "forceActivation", flag, default=False),
        enabled=notes.read(raw, "enabled", flag, default=True),
        order=notes.read(settings, "budgetPriority", fields.ORDER, 100),
    )


def read_kobold(raw: Mapping[str, Any], notes: Notes) -> LoreEntry:
    """An entry of Kobold's. `keyanti` are keys that must not occur.

    They become secondary keys, or a decorator of Character Card V3 where those are taken.
    """
    secondary = listed_keys(raw, "keysecondary", notes)
    selective = notes.read(raw, "selective", flag, default=bool(secondary))
    said = notes.read(raw, "content", content, "")
    anti = listed_keys(raw, "keyanti", notes)
    if anti and secondary and selective:
        said = f"@@exclude_keys {','.join(anti)}\n{said}"
    elif anti:
        secondary, selective = anti, True
    return LoreEntry(
        title=notes.read(raw, "comment", name, "") or notes.read(raw, "title", name, ""),
        content=content(said, notes),
        keys=listed_keys(raw, "key", notes),
        secondary_keys=secondary,
        selective=selective,
        logic="not_any" if secondary and secondary == anti else "and_any",
        constant=notes.read(raw, "constant", flag, default=False),
        enabled=not notes.read(raw, "widisabled", flag, default=False),
        probability=notes.read(raw, "probability", _PERCENT, 100.0),
    )


def looks_like_kobold(raw: Mapping[str, Any]) -> bool:
    """Whether an entry is Kobold's rather than World Info's."""
    has_text = isinstance(raw.get("key"), str) and _WORLD_INFOS.isdisjoint(raw)
    return "keyanti" in raw or "wigroup" in raw or has_text
