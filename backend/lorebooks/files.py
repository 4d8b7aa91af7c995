"""Conversion between lorebook files and rows. CPU-bound.

Invalid input is rejected here, before a transaction begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never
from uuid import UUID

import msgspec
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from backend.characters.card_rows import FileDownload
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
    seal_book,
    seal_book_source,
    seal_entry_source,
)
from backend.lorebooks.repository import SealedEntry
from backend.lorebooks.schemas import ExportFormat
from backend.vault.sealing import Sealer

DEFAULT_NAME = "Lorebook"
_BATCH_SIZE = 200


@dataclass(frozen=True, slots=True)
class LoreRows:
    """The rows of a lorebook to store, and the warnings for the user who imports it.

    `entries` are dictionaries, because thousands are inserted at once.
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
    return new_rows(sealer, read_file(data, given_name=given_name.strip() or DEFAULT_NAME))


def new_rows(
    sealer: Sealer,
    read: ReadBook,
    *,
    character_id: UUID | None = None,
    book_id: UUID | None = None,
) -> LoreRows:
    """Return sealed rows of a parsed book: a new one, or the new content of `book_id`.

    Raises `LoreFileError`.
    """
    book_id = book_id or new_id()
    moment = now()
    book = Lorebook(
        id=book_id,
        user_id=sealer.user_id,
        character_id=character_id,
        sealed_book=seal_book(sealer, book_id, read.fields),
        sealed_source=seal_book_source(sealer, book_id, read.source),
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
                "sealed_entry": sealer.seal_bytes(ENTRY, entry_id, _encode_entry(entry)),
                "sealed_source": seal_entry_source(sealer, entry_id, source),
                "revision": 1,
                "created_at": moment,
                "updated_at": moment,
            }
        )
    return LoreRows(read.fields, book, entries, read.warnings, read.skipped)


def _encode_entry(entry: LoreEntry) -> bytes:
    """Encode an entry. Raise `LoreFileError` if the result could not be decoded again."""
    data = msgspec.json.encode(entry)
    try:
        LORE_ENTRY.decode(data)
    except msgspec.ValidationError as error:
        raise LoreFileError(f"An entry cannot be stored: {error}.") from error
    return data


async def insert_entries(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> None:
    """Insert entries in batches so that other tasks can run in between."""
    for start in range(0, len(rows), _BATCH_SIZE):
        await session.execute(insert(LoreEntryRow), rows[start : start + _BATCH_SIZE])


def export_file(
    sealer: Sealer, book: Lorebook, entries: Sequence[SealedEntry], file_format: ExportFormat
) -> FileDownload:
    """Export a book that was loaded with its source as indented JSON."""
    fields, source, opened = _open_all(sealer, book, entries)
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
    return FileDownload(data, "application/json", fields.name, "json")


def card_book_object(
    sealer: Sealer, book: Lorebook, entries: Sequence[SealedEntry]
) -> dict[str, Any]:
    """Return a book that was loaded with its source as the `character_book` of its card."""
    return book_object(*_open_all(sealer, book, entries))


def _open_all(
    sealer: Sealer, book: Lorebook, entries: Sequence[SealedEntry]
) -> tuple[BookFields, BookSource | None, list[Sourced]]:
    opened = open_entries(sealer, ((row.id, row.sealed_entry) for row in entries))
    sources = (open_entry_source(sealer, row.id, row.sealed_source) for row in entries)
    sourced = list(zip(opened, sources, strict=True))
    return open_book(sealer, book.id, book.sealed_book), open_book_source(sealer, book), sourced
