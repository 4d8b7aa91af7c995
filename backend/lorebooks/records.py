"""Sealed columns of lorebook rows. Each is one JSON blob."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.lorebooks import repository
from backend.lorebooks.entries import BookFields, LoreEntry
from backend.lorebooks.formats.fields import BookSource, EntrySource
from backend.lorebooks.models import (
    ENTRY,
    ENTRY_SOURCE,
    LOREBOOK_BOOK,
    LOREBOOK_SOURCE,
    Lorebook,
    LoreEntryRow,
)
from backend.lorebooks.schemas import LorebookItem, LorebookLinks, LorebookView, LoreEntryView
from backend.vault.sealing import Sealer

_BY_KEYS_BEFORE = b'"semantic":false'
"""The stored form of "found by keys only" from before there were modes."""

_BOOK = msgspec.json.Decoder(BookFields)
LORE_ENTRY = msgspec.json.Decoder(LoreEntry)
_BOOK_SOURCE = msgspec.json.Decoder(BookSource)
_ENTRY_SOURCE = msgspec.json.Decoder(EntrySource)


def seal_book(sealer: Sealer, book_id: UUID, fields: BookFields) -> bytes:
    return sealer.seal_bytes(LOREBOOK_BOOK, book_id, msgspec.json.encode(fields))


def open_book(sealer: Sealer, book_id: UUID, sealed: bytes) -> BookFields:
    stored = sealer.open_bytes(LOREBOOK_BOOK, book_id, sealed)
    return _BOOK.decode(stored.replace(_BY_KEYS_BEFORE, b'"mode":"keys"'))


def seal_book_source(sealer: Sealer, book_id: UUID, source: BookSource) -> bytes:
    return sealer.seal_bytes(LOREBOOK_SOURCE, book_id, msgspec.json.encode(source))


def open_book_source(sealer: Sealer, row: Lorebook) -> BookSource | None:
    """Return the imported source of a book, or None if it was created here."""
    if row.sealed_source is None:
        return None
    return _BOOK_SOURCE.decode(sealer.open_bytes(LOREBOOK_SOURCE, row.id, row.sealed_source))


def seal_entry(sealer: Sealer, entry_id: UUID, entry: LoreEntry) -> bytes:
    return sealer.seal_bytes(ENTRY, entry_id, msgspec.json.encode(entry))


def open_entry(sealer: Sealer, row: LoreEntryRow) -> LoreEntry:
    return LORE_ENTRY.decode(sealer.open_bytes(ENTRY, row.id, row.sealed_entry))


def seal_entry_source(sealer: Sealer, entry_id: UUID, source: EntrySource) -> bytes:
    return sealer.seal_bytes(ENTRY_SOURCE, entry_id, msgspec.json.encode(source))


def open_entry_source(sealer: Sealer, entry_id: bytes, sealed: bytes | None) -> EntrySource | None:
    """Return the imported source of an entry, or None if it was created here."""
    if sealed is None:
        return None
    return _ENTRY_SOURCE.decode(sealer.open_bytes(ENTRY_SOURCE, UUID(bytes=entry_id), sealed))


def open_entries(sealer: Sealer, rows: Iterable[tuple[bytes, bytes]]) -> list[LoreEntry]:
    """Open entries given as (16 bytes of the id, blob). One pass, for thousands at once."""
    return [LORE_ENTRY.decode(text) for text in sealer.open_many(ENTRY, rows)]


async def items(
    session: AsyncSession, sealer: Sealer, books: Sequence[Lorebook]
) -> list[LorebookItem]:
    ids = [book.id for book in books]
    counts = await repository.count_entries(session, ids)
    links = await repository.load_links(session, ids)
    return [
        LorebookItem(
            name=open_book(sealer, book.id, book.sealed_book).name,
            **_columns(book, counts.get(book.id, 0), links[book.id]),
        )
        for book in books
    ]


async def load_view(session: AsyncSession, sealer: Sealer, book: Lorebook) -> LorebookView:
    """Return a book with its current counts and links."""
    counts = await repository.count_entries(session, [book.id])
    links = await repository.load_links(session, [book.id])
    fields = open_book(sealer, book.id, book.sealed_book)
    return view(book, fields, counts.get(book.id, 0), links[book.id])


def view(
    book: Lorebook, fields: BookFields, entry_count: int = 0, links: LorebookLinks | None = None
) -> LorebookView:
    columns = _columns(book, entry_count, links or LorebookLinks())
    return LorebookView(**msgspec.structs.asdict(fields), **columns)


def _columns(book: Lorebook, entry_count: int, links: LorebookLinks) -> dict[str, Any]:
    return {
        "id": book.id,
        "entry_count": entry_count,
        "is_global": book.is_global,
        "character_id": book.character_id,
        "chronicle_id": book.chronicle_id,
        "links": links,
        "revision": book.revision,
        "created_at": book.created_at,
        "updated_at": book.updated_at,
    }


def entry_view(row: LoreEntryRow, entry: LoreEntry) -> LoreEntryView:
    return LoreEntryView(
        **msgspec.structs.asdict(entry),
        id=row.id,
        lorebook_id=row.lorebook_id,
        place=row.place,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
