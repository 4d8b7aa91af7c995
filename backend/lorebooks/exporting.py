"""A lorebook into a file that other tools read. CPU-bound, no database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never
from uuid import UUID

import msgspec

from backend.characters.exporting import ExportedFile
from backend.lorebooks.entries import BookFields
from backend.lorebooks.formats.character_book import REQUIRED
from backend.lorebooks.formats.merge import (
    Sourced,
    book_object,
    lorebook_v3_object,
    world_info_object,
)
from backend.lorebooks.formats.model import BookSource
from backend.lorebooks.models import Lorebook
from backend.lorebooks.records import open_book, open_book_source, open_entries, open_entry_source
from backend.lorebooks.repository import SealedEntry
from backend.lorebooks.schemas import ExportFormat
from backend.vault.sealing import Sealer

__all__ = ["ExportedFile", "card_book_object", "export_file"]


def export_file(
    sealer: Sealer, book: Lorebook, entries: Sequence[SealedEntry], file_format: ExportFormat
) -> ExportedFile:
    """A book, loaded with its source, as a JSON file, indented for people."""
    fields, source, opened = _opened(sealer, book, entries)
    value = _object(fields, source, opened, file_format)
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
    sources = (
        open_entry_source(sealer, UUID(bytes=row.id), row.sealed_source)
        if row.sealed_source is not None
        else None
        for row in entries
    )
    sourced = list(zip(opened, sources, strict=True))
    return open_book(sealer, book.id, book.sealed_book), open_book_source(sealer, book), sourced


def _object(
    fields: BookFields,
    source: BookSource | None,
    entries: Sequence[Sourced],
    file_format: ExportFormat,
) -> dict[str, Any]:
    match file_format:
        case "world_info":
            return world_info_object(fields, source, entries)
        case "v2":
            return book_object(fields, source, entries, required=REQUIRED)
        case "v3":
            return lorebook_v3_object(fields, source, entries)
        case _:
            assert_never(file_format)
