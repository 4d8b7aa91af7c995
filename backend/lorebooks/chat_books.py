"""The lorebooks that a chat has, and what a turn reads of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Select, bindparam, literal, null, select, union_all
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import Chat
from backend.database.types import Id
from backend.lorebooks.entries import BookFields, LinkSource, LoreEntry
from backend.lorebooks.models import ChatLorebook, Lorebook, LorebookLink
from backend.lorebooks.records import open_book, open_entries
from backend.lorebooks.repository import SealedEntry, get_book, sealed_entries
from backend.vault.sealing import Sealer

_SOURCES: tuple[LinkSource, ...] = (
    "chat",
    "chronicle",
    "persona",
    "character",
    "character",
    "global",
)
"""By rank: the books of cards stand before others that a character has."""


@dataclass(frozen=True, slots=True)
class ChatBook:
    """A book that a chat has: the first place that it has it from, and whether it is off there.

    By id and revision its compiled form is cached. Of the book of a chronicle (`is_chronicles`,
    of whichever) some entries may not count at the moment: see `authoring.inactive_entries`.
    """

    id: UUID
    revision: int
    source: LinkSource
    is_off: bool = False
    is_chronicles: bool = False


def _books_of_a_chat() -> Select[UUID, int, int, bool, bool]:
    """(book, revision, rank, whether it is off, whether it is a chronicle's) of a chat's books."""
    chat, link, book = ChatLorebook, LorebookLink, Lorebook
    chat_id, owner_id = bindparam("chat_id", type_=Id()), bindparam("owner_id", type_=Id())
    characters = bindparam("character_ids", type_=Id(), expanding=True)
    found = union_all(
        select(chat.lorebook_id.label("book_id"), literal(0).label("rank")).where(
            chat.chat_id == chat_id, chat.state == "linked"
        ),
        select(book.id, literal(1))
        .join(Chat, Chat.chronicle_id == book.chronicle_id)
        .where(Chat.id == chat_id),
        select(link.lorebook_id, literal(2)).where(
            link.persona_id == bindparam("persona_id", type_=Id())
        ),
        select(book.id, literal(3)).where(book.character_id.in_(characters)),
        select(link.lorebook_id, literal(4)).where(link.character_id.in_(characters)),
        select(book.id, literal(5)).where(book.user_id == owner_id, book.is_global),
    ).subquery()
    off = select(chat.lorebook_id).where(chat.chat_id == chat_id, chat.state == "off").subquery()
    return (
        select(
            found.c.book_id,
            book.revision,
            found.c.rank,
            off.c.lorebook_id.is_not(null()),
            book.chronicle_id.is_not(null()),
        )
        .join(book, book.id == found.c.book_id)
        .outerjoin(off, off.c.lorebook_id == book.id)
        .where(book.user_id == owner_id)
        .order_by(found.c.rank, found.c.book_id)
    )


_BOOKS = _books_of_a_chat()
"""Built once: building it costs more than running it."""


async def books_for_chat(
    session: AsyncSession,
    *,
    owner_id: UUID,
    chat_id: UUID,
    character_ids: Sequence[UUID],
    persona_id: UUID | None,
    with_off: bool = False,
) -> list[ChatBook]:
    """The books of a chat, each once, by where it has them from; `with_off`: those off, too.

    In the order chat, its chronicle, persona, character (the cards' own before others), global.
    One query. The chat, its characters and its persona are taken for the owner's.
    """
    rows = await session.execute(
        _BOOKS,
        {
            "owner_id": owner_id,
            "chat_id": chat_id,
            "character_ids": character_ids,
            "persona_id": persona_id,
        },
    )
    books: dict[UUID, ChatBook] = {}
    for book_id, revision, rank, is_off, is_chronicles in rows:
        if with_off or not is_off:
            source: LinkSource = _SOURCES[int(rank)]
            here = ChatBook(book_id, revision, source, bool(is_off), bool(is_chronicles))
            books.setdefault(book_id, here)
    return list(books.values())


async def book_by_itself(session: AsyncSession, book_id: UUID, *, owner_id: UUID) -> ChatBook:
    """A book as if a chat had linked it. Raises `LorebookNotFoundError`."""
    book = await get_book(session, book_id, owner_id=owner_id)
    return ChatBook(book.id, book.revision, "chat", is_chronicles=book.chronicle_id is not None)


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
