"""What comes out of a lorebook file, and what is kept of the file beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from backend.lorebooks.entries import BookFields, LoreEntry

Format = Literal["world_info", "character_book", "agnai", "risu", "novelai", "kobold"]


class EntrySource(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry as it came in.

    `is_short` says that the text of its content is null here: it is in the entry, and need not be
    stored twice. `key` is the name that it had in World Info's object of entries.
    """

    format: Format
    raw: dict[str, Any]
    key: str | None = None
    is_short: bool = False


class BookSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """A book as it came in, without its entries.

    `envelope` is what stood around a `lorebook_v3`'s `data`. `given_name` is what the book was
    called here because it had no name of its own. `count` is how many entries it had.
    """

    format: Format
    raw: dict[str, Any]
    envelope: dict[str, Any] = {}
    given_name: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class ReadBook:
    """A lorebook out of a file.

    Attributes:
        fields: What the book says of itself.
        source: The book as it came.
        entries: Each entry with how it came, in the file's order.
        warnings: Sentences about what had to be bent, for the person who imports.
        skipped: How many entries were no entries at all, and were left out.
    """

    fields: BookFields
    source: BookSource
    entries: list[tuple[LoreEntry, EntrySource]]
    warnings: list[str] = field(default_factory=list[str])
    skipped: int = 0
