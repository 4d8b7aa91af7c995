"""Rows of lorebooks into what the API shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.lorebooks import repository
from backend.lorebooks.entries import BookFields, LoreEntry
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.lorebooks.records import open_book
from backend.lorebooks.schemas import LorebookItem, LorebookLinks, LorebookView, LoreEntryView
from backend.vault.sealing import Sealer


async def items(
    session: AsyncSession, sealer: Sealer, books: Sequence[Lorebook]
) -> list[LorebookItem]:
    """Books as they are listed, in the order given."""
    ids = [book.id for book in books]
    counts = await repository.entry_counts(session, ids)
    links = await repository.links_of(session, ids)
    return [
        LorebookItem(
            name=open_book(sealer, book.id, book.sealed_book).name,
            **_columns(book, counts.get(book.id, 0), links[book.id]),
        )
        for book in books
    ]


async def stored_view(session: AsyncSession, sealer: Sealer, book: Lorebook) -> LorebookView:
    """A book with its counts and links, as they are in the database."""
    counts = await repository.entry_counts(session, [book.id])
    links = await repository.links_of(session, [book.id])
    fields = open_book(sealer, book.id, book.sealed_book)
    return view(book, fields, counts.get(book.id, 0), links[book.id])


def view(
    book: Lorebook, fields: BookFields, entry_count: int = 0, links: LorebookLinks | None = None
) -> LorebookView:
    """A book."""
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
    """An entry."""
    return LoreEntryView(
        **msgspec.structs.asdict(entry),
        id=row.id,
        lorebook_id=row.lorebook_id,
        place=row.place,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
