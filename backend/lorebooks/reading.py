"""What a turn reads of lorebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.lorebooks.entries import BookFields, LoreEntry
from backend.lorebooks.links import find_chat_books
from backend.lorebooks.records import open_book, open_entries
from backend.lorebooks.repository import get_book, sealed_entries
from backend.lorebooks.schemas import LinkSource
from backend.vault.sealing import Sealer


@dataclass(frozen=True, slots=True)
class BookRef:
    """A book that a chat has: by id and revision its compiled form is cached.

    Of the book of a chronicle (`is_chronicles`) some entries may not count at the moment: see
    `authoring.inactive_entries`.
    """

    id: UUID
    revision: int
    source: LinkSource
    is_chronicles: bool = False


async def books_for_chat(
    session: AsyncSession,
    *,
    owner_id: UUID,
    chat_id: UUID,
    character_ids: Sequence[UUID],
    persona_id: UUID | None,
) -> list[BookRef]:
    """The books of a chat but those that it switched off, each once, with its first source.

    In the order chat, its chronicle, persona, character (the cards' own before others), global.
    One query.
    """
    books = await find_chat_books(
        session,
        owner_id=owner_id,
        chat_id=chat_id,
        character_ids=character_ids,
        persona_id=persona_id,
    )
    return [
        BookRef(book.id, book.revision, book.source, book.is_chronicles)
        for book in books
        if not book.is_off
    ]


async def book_by_itself(session: AsyncSession, book_id: UUID, *, owner_id: UUID) -> BookRef:
    """A book as if a chat had linked it. Raises `LorebookNotFoundError`."""
    book = await get_book(session, book_id, owner_id=owner_id)
    return BookRef(book.id, book.revision, "chat", is_chronicles=book.chronicle_id is not None)


async def load_book(
    session: AsyncSession, sealer: Sealer, book_id: UUID
) -> tuple[BookFields, list[tuple[UUID, int, LoreEntry]]]:
    """A book of the sealer's owner: what it says of itself, and (id, place, entry) in order.

    Raises `LorebookNotFoundError`.
    """
    book = await get_book(session, book_id, owner_id=sealer.user_id)
    rows = await sealed_entries(session, book_id)
    opened = open_entries(sealer, ((row.id, row.sealed_entry) for row in rows))
    return open_book(sealer, book), [
        (UUID(bytes=row.id), row.place, entry) for row, entry in zip(rows, opened, strict=True)
    ]
