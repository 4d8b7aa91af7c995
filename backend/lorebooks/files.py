"""Lorebooks into rows and out of them, between files and the database. CPU-bound.

Everything that can be refused is refused here, before a transaction begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never
from uuid import UUID

import msgspec
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from backend.characters.exporting import ExportedFile
from backend.database.base import new_id, now
from backend.lorebooks.entries import BookFields, LoreEntry
from backend.lorebooks.errors import LoreFileError
from backend.lorebooks.formats.fields import BookSource, ReadBook
from backend.lorebooks.formats.reader import read_file
from backend.lorebooks.formats.writer import (
    REQUIRED,
    Sourced,
    book_object,
    lorebook_v3_object,
    world_info_object,
)
from backend.lorebooks.models import ENTRY, Lorebook, LoreEntryRow
from backend.lorebooks.records import (
    LORE_ENTRY,
    open_book,
    open_book_source,
    open_entries,
    open_entry_source,
    sealed_book,
    sealed_book_source,
    sealed_entry_source,
)
from backend.lorebooks.repository import SealedEntry
from backend.lorebooks.schemas import ExportFormat
from backend.vault.sealing import Sealer

UNNAMED = "Lorebook"
_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class LoreRows:
    """A lorebook as it will be stored, and what to tell the person who imports.

    `entries` are dictionaries, for thousands go in at once.
    """

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
    moment = now()
    book = Lorebook(
        id=book_id,
        user_id=sealer.user_id,
        character_id=character_id,
        sealed_book=sealed_book(sealer, book_id, read.fields),
        sealed_source=sealed_book_source(sealer, book_id, read.source),
    )
    entries: list[dict[str, Any]] = []
    for place, (entry, source) in enumerate(read.entries):
        entry_id = new_id()
        entries.append(
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
    return LoreRows(read.fields, book, entries, read.warnings, read.skipped)


def _checked(entry: LoreEntry) -> bytes:
    """An entry as it is stored: what could not be read again is not stored."""
    data = msgspec.json.encode(entry)
    try:
        LORE_ENTRY.decode(data)
    except msgspec.ValidationError as error:
        raise LoreFileError(f"An entry cannot be stored: {error}.") from error
    return data


async def insert_entries(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> None:
    """Store entries, in pieces, so that others get their turn while thousands are bound."""
    for start in range(0, len(rows), _AT_ONCE):
        await session.execute(insert(LoreEntryRow), rows[start : start + _AT_ONCE])


def export_file(
    sealer: Sealer, book: Lorebook, entries: Sequence[SealedEntry], file_format: ExportFormat
) -> ExportedFile:
    """A book, loaded with its source, as a JSON file, indented for people."""
    fields, source, opened = _opened(sealer, book, entries)
    match file_format:
        case "world_info":
            value = world_info_object(fields, source, opened)
        case "v2":
            value = book_object(fields, source, opened, required=REQUIRED)
        case "v3":
            value = lorebook_v3_object(fields, source, opened)
        case _:
            assert_never(file_format)
    data = msgspec.json.format(msgspec.json.encode(value), indent=2)
    return ExportedFile(data, "application/json", fields.name, "json")


def card_book_object(
    sealer: Sealer, book: Lorebook, entries: Sequence[SealedEntry]
) -> dict[str, Any]:
    """A book, loaded with its source, as its card holds it (`character_book`)."""
    return book_object(*_opened(sealer, book, entries))


def _opened(
    sealer: Sealer, book: Lorebook, entries: Sequence[SealedEntry]
) -> tuple[BookFields, BookSource | None, list[Sourced]]:
    opened = open_entries(sealer, ((row.id, row.sealed_entry) for row in entries))
    sources = (open_entry_source(sealer, row.id, row.sealed_source) for row in entries)
    sourced = list(zip(opened, sources, strict=True))
    return open_book(sealer, book.id, book.sealed_book), open_book_source(sealer, book), sourced
