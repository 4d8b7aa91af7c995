"""A lorebook into rows: read, checked, all of it sealed. CPU-bound, no database.

Everything that can be refused is refused here, before a transaction begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.base import new_id, now
from backend.lorebooks.entries import BookFields, LoreEntry
from backend.lorebooks.errors import LoreFileError
from backend.lorebooks.formats.model import EntrySource, ReadBook
from backend.lorebooks.formats.reader import read_file
from backend.lorebooks.models import ENTRY, Lorebook, LoreEntryRow
from backend.lorebooks.records import (
    LORE_ENTRY,
    sealed_book,
    sealed_book_source,
    sealed_entry_source,
)
from backend.vault.sealing import Sealer

UNNAMED = "Lorebook"
_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class LoreRows:
    """A lorebook as it will be stored, and what to tell the person who imports."""

    fields: BookFields
    book: Lorebook
    entries: list[dict[str, Any]]
    warnings: list[str]
    skipped: int


def import_rows(sealer: Sealer, data: bytes, given_name: str) -> LoreRows:
    """Read a lorebook file for the owner of `sealer`.

    Raises `LoreFileError`, `LoreLimitError`, `TooLargeError`.
    """
    return new_rows(sealer, read_file(data, given_name=given_name.strip() or UNNAMED))


def new_rows(
    sealer: Sealer,
    read: ReadBook,
    *,
    character_id: UUID | None = None,
    book_id: UUID | None = None,
) -> LoreRows:
    """Rows of a book that was read, sealed: a new one, or one in the place of `book_id`.

    Raises `LoreFileError`.
    """
    book_id = book_id or new_id()
    book = Lorebook(
        id=book_id,
        user_id=sealer.user_id,
        character_id=character_id,
        sealed_book=sealed_book(sealer, book_id, read.fields),
        sealed_source=sealed_book_source(sealer, book_id, read.source),
    )
    entries = entry_rows(sealer, book_id, read.entries)
    return LoreRows(read.fields, book, entries, read.warnings, read.skipped)


def entry_rows(
    sealer: Sealer, book_id: UUID, entries: Sequence[tuple[LoreEntry, EntrySource]]
) -> list[dict[str, Any]]:
    """The rows of a book's entries, sealed: dictionaries, for thousands go in at once."""
    moment = now()
    rows: list[dict[str, Any]] = []
    for place, (entry, source) in enumerate(entries):
        entry_id = new_id()
        rows.append(
            {
                "id": entry_id,
                "user_id": sealer.user_id,
                "lorebook_id": book_id,
                "place": place,
                "sealed_entry": sealer.seal_bytes(ENTRY, entry_id, _checked(entry)),
                "sealed_source": sealed_entry_source(sealer, entry_id, source),
                "revision": 1,
                "created_at": moment,
                "updated_at": moment,
            }
        )
    return rows


async def insert_entries(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> None:
    """Store entries, in pieces, so that others get their turn while thousands are bound."""
    for start in range(0, len(rows), _AT_ONCE):
        await session.execute(insert(LoreEntryRow), rows[start : start + _AT_ONCE])


def _checked(entry: LoreEntry) -> bytes:
    """An entry as it is stored: what could not be read again is not stored."""
    data = msgspec.json.encode(entry)
    try:
        LORE_ENTRY.decode(data)
    except msgspec.ValidationError as error:
        raise LoreFileError(f"An entry can't be kept: {error}.") from error
    return data
