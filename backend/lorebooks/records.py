"""What is sealed in the rows of lorebooks: JSON, one blob a column."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec

from backend.lorebooks.entries import BookFields, LoreEntry
from backend.lorebooks.formats.model import BookSource, EntrySource
from backend.lorebooks.models import (
    ENTRY,
    ENTRY_SOURCE,
    LOREBOOK_BOOK,
    LOREBOOK_SOURCE,
    Lorebook,
    LoreEntryRow,
)
from backend.vault.sealing import Sealer

_BY_KEYS_BEFORE = b'"semantic":false'
"""How books were stored that are found by their keys alone, until there were modes."""

_BOOK = msgspec.json.Decoder(BookFields)
LORE_ENTRY = msgspec.json.Decoder(LoreEntry)
_BOOK_SOURCE = msgspec.json.Decoder(BookSource)
_ENTRY_SOURCE = msgspec.json.Decoder(EntrySource)


def sealed_book(sealer: Sealer, book_id: UUID, fields: BookFields) -> bytes:
    """What a book says of itself, for its row."""
    return sealer.seal_bytes(LOREBOOK_BOOK, book_id, msgspec.json.encode(fields))


def open_book(sealer: Sealer, book_id: UUID, sealed: bytes) -> BookFields:
    """What a book says of itself."""
    stored = sealer.open_bytes(LOREBOOK_BOOK, book_id, sealed)
    return _BOOK.decode(stored.replace(_BY_KEYS_BEFORE, b'"mode":"keys"'))


def sealed_book_source(sealer: Sealer, book_id: UUID, source: BookSource) -> bytes:
    """How a book came in, for its row."""
    return sealer.seal_bytes(LOREBOOK_SOURCE, book_id, msgspec.json.encode(source))


def open_book_source(sealer: Sealer, row: Lorebook) -> BookSource | None:
    """How a book came in; None where it was made here."""
    if row.sealed_source is None:
        return None
    return _BOOK_SOURCE.decode(sealer.open_bytes(LOREBOOK_SOURCE, row.id, row.sealed_source))


def sealed_entry(sealer: Sealer, entry_id: UUID, entry: LoreEntry) -> bytes:
    """An entry, for its row."""
    return sealer.seal_bytes(ENTRY, entry_id, msgspec.json.encode(entry))


def open_entry(sealer: Sealer, row: LoreEntryRow) -> LoreEntry:
    """A row's entry."""
    return LORE_ENTRY.decode(sealer.open_bytes(ENTRY, row.id, row.sealed_entry))


def sealed_entry_source(sealer: Sealer, entry_id: UUID, source: EntrySource) -> bytes:
    """How an entry came in, for its row."""
    return sealer.seal_bytes(ENTRY_SOURCE, entry_id, msgspec.json.encode(source))


def open_entry_source(sealer: Sealer, entry_id: bytes, sealed: bytes | None) -> EntrySource | None:
    """How an entry came in; None where it was made here."""
    if sealed is None:
        return None
    return _ENTRY_SOURCE.decode(sealer.open_bytes(ENTRY_SOURCE, UUID(bytes=entry_id), sealed))


def open_entries(sealer: Sealer, rows: Iterable[tuple[bytes, bytes]]) -> list[LoreEntry]:
    """Entries by (id's 16 bytes, blob), in one pass: thousands at once."""
    return [LORE_ENTRY.decode(text) for text in sealer.open_many(ENTRY, rows)]
