"""What a turn reads of lorebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.lorebooks.entries import BookFields, LinkSource, LoreEntry
from backend.lorebooks.links import find_chat_books
from backend.lorebooks.records import open_book, open_entries
from backend.lorebooks.repository import SealedEntry, get_book, sealed_entries
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


@dataclass(frozen=True, slots=True)
class SealedBook:
    """A book with its entries in their order, as it is stored."""

    id: UUID
    sealed_book: bytes
    entries: Sequence[SealedEntry]

    @property
    def size(self) -> int:
        """Bytes to be opened."""
        return len(self.sealed_book) + sum(len(entry.sealed_entry) for entry in self.entries)


async def load_book(session: AsyncSession, book_id: UUID, *, owner_id: UUID) -> SealedBook:
    """Raises `LorebookNotFoundError`."""
    book = await get_book(session, book_id, owner_id=owner_id)
    return SealedBook(book.id, book.sealed_book, await sealed_entries(session, book_id))


def open_sealed(
    sealer: Sealer, book: SealedBook
) -> tuple[BookFields, list[tuple[UUID, int, LoreEntry]]]:
    """What a book says of itself, and (id, place, entry) in order. CPU-bound."""
    opened = open_entries(sealer, ((row.id, row.sealed_entry) for row in book.entries))
    fields = open_book(sealer, book.id, book.sealed_book)
    return fields, [
        (UUID(bytes=row.id), row.place, entry)
        for row, entry in zip(book.entries, opened, strict=True)
    ]
