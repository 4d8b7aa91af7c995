"""An entry of SillyTavern's World Info."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.formats import fields
from backend.lorebooks.formats.coerce import Notes, content, flag, listed_keys, name

OWN_NAMES: Final = frozenset(
    {
        "key",
        "keysecondary",
        "comment",
        "content",
        "constant",
        "selective",
        "order",
        "disable",
    }
)
KNOWN: Final = OWN_NAMES | fields.WORLD_INFO_NAMES
BOOKKEEPING: Final = frozenset({"uid", "addMemo", "extensions"})
"""What an entry of another format has in another form."""


def read_entry(raw: Mapping[str, Any], notes: Notes) -> LoreEntry:
    """An entry out of World Info."""
    return LoreEntry(
        title=notes.read(raw, "comment", name, ""),
        content=notes.read(raw, "content", content, ""),
        keys=listed_keys(raw, "key", notes),
        secondary_keys=listed_keys(raw, "keysecondary", notes, blank=True),
        constant=notes.read(raw, "constant", flag, default=False),
        selective=notes.read(raw, "selective", flag, default=False),
        order=notes.read(raw, "order", fields.ORDER, 100),
        enabled=not notes.read(raw, "disable", flag, default=False),
        **fields.read_world_info(raw, notes),
    )


def write_entry(entry: LoreEntry) -> dict[str, Any]:
    """The entry as World Info holds it, but for its `uid`."""
    return {
        "key": entry.keys,
        "keysecondary": entry.secondary_keys,
        "comment": entry.title,
        "content": entry.content,
        "constant": entry.constant,
        "selective": entry.selective,
        "order": entry.order,
        "disable": not entry.enabled,
        **fields.write_world_info(entry),
    }
