"""Links of lorebooks to characters, personas and chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sqlalchemy import Select, bindparam, delete, literal, null, select, union_all
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.characters.events import CharacterCopied
from backend.characters.repository import get_character, get_persona
from backend.chats.models import Chat
from backend.chats.repository import get_chat, list_character_ids
from backend.database.base import new_id, upsert
from backend.database.engine import Database
from backend.database.types import Id
from backend.http.schemas import Page
from backend.lorebooks import records as views
from backend.lorebooks import repository
from backend.lorebooks.entries import BookFields, LinkSource, LoreEntry
from backend.lorebooks.errors import LorebookNotLinkedError
from backend.lorebooks.models import ChatLink, ChatLorebook, Lorebook, LorebookLink
from backend.lorebooks.records import open_book, open_entries
from backend.lorebooks.repository import SealedEntry, get_book, load_sealed_entries
from backend.lorebooks.schemas import ChatLorebookItem, ChatLorebookView, LorebookItem
from backend.vault.sealing import Sealer

_SOURCES: tuple[LinkSource, ...] = (
    "chat",
    "chronicle",
    "persona",
    "character",
    "character",
    "global",
)
"""Sources by rank: books of cards come before other books of a character."""


@dataclass(frozen=True, slots=True)
class ChatBook:
    """A book of a chat, the first source that it comes from, and whether it is disabled there.

    Its compiled form is cached by id and revision. Entries in the book of any chronicle
    (`is_chronicles`) may be inactive: see `authoring.inactive_entries`.
    """

    id: UUID
    revision: int
    source: LinkSource
    is_off: bool = False
    is_chronicles: bool = False


def _books_of_a_chat() -> Select[UUID, int, int, bool, bool]:
    """Build the query for a chat's books: (id, revision, rank, is_off, is_chronicles)."""
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
        select(book.id, literal(5)).where(book.match_owner(owner_id), book.is_global),
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
        .where(book.match_owner(owner_id))
        .order_by(found.c.rank, found.c.book_id)
    )


_BOOKS = _books_of_a_chat()
"""Built once, because building it costs more than running it."""


async def books_for_chat(
    session: AsyncSession,
    *,
    owner_id: UUID,
    chat_id: UUID,
    character_ids: Sequence[UUID],
    persona_id: UUID | None,
    with_off: bool = False,
) -> list[ChatBook]:
    """Return the books of a chat, each once, ordered by source. `with_off` adds disabled ones.

    The order is: chat, chronicle, persona, character (those of cards first), global. One query.
    The caller has checked that the chat, its characters and its persona belong to the owner.
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


async def load_single_book(session: AsyncSession, book_id: UUID, *, owner_id: UUID) -> ChatBook:
    """Return a book as if a chat had linked it. Raises `LorebookNotFoundError`."""
    book = await get_book(session, book_id, owner_id=owner_id)
    return ChatBook(book.id, book.revision, "chat", is_chronicles=book.chronicle_id is not None)


@dataclass(frozen=True, slots=True)
class SealedBook:
    """A sealed book with its entries in order."""

    id: UUID
    sealed_book: bytes
    entries: Sequence[SealedEntry]

    @property
    def size(self) -> int:
        """The number of bytes to open."""
        return len(self.sealed_book) + sum(len(entry.sealed_entry) for entry in self.entries)


async def load_book(session: AsyncSession, book_id: UUID, *, owner_id: UUID) -> SealedBook:
    """Raises `LorebookNotFoundError`."""
    book = await get_book(session, book_id, owner_id=owner_id)
    return SealedBook(book.id, book.sealed_book, await load_sealed_entries(session, book_id))


def open_sealed(
    sealer: Sealer, book: SealedBook
) -> tuple[BookFields, list[tuple[UUID, int, LoreEntry]]]:
    """Open a book. Return its fields and (id, place, entry) in order. CPU-bound."""
    opened = open_entries(sealer, ((row.id, row.sealed_entry) for row in book.entries))
    fields = open_book(sealer, book.id, book.sealed_book)
    return fields, [
        (UUID(bytes=row.id), row.place, entry)
        for row, entry in zip(book.entries, opened, strict=True)
    ]


Holder = Literal["character", "persona"]

_COLUMNS = {"character": LorebookLink.character_id, "persona": LorebookLink.persona_id}


class LorebookLinkService(CharacterCopied):
    """Links lorebooks to characters, personas and chats, and switches them off in chats."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_linked(
        self, identity: Identity, holder: Holder, holder_id: UUID
    ) -> Page[LorebookItem]:
        """List the books of a persona, or of a character with its card's own book first.

        Raises `CharacterNotFoundError` or `PersonaNotFoundError`.
        """
        owner_id = identity.user_id
        async with self._database.read() as session:
            await _check_holder(session, holder, holder_id, owner_id)
            query = (
                select(LorebookLink.lorebook_id)
                .join(Lorebook, Lorebook.id == LorebookLink.lorebook_id)
                .where(
                    _COLUMNS[holder] == holder_id,
                    LorebookLink.user_id == owner_id,
                    Lorebook.match_owner(owner_id),
                )
                .order_by(LorebookLink.id)
            )
            ids = list(await session.scalars(query))
            if holder == "character":
                own = await repository.find_book(
                    session, Lorebook.character_id == holder_id, owner_id=owner_id
                )
                ids = [own.id, *(each for each in ids if each != own.id)] if own else ids
            return Page(items=await _items(session, identity, ids))

    async def link(
        self, identity: Identity, holder: Holder, holder_id: UUID, book_id: UUID
    ) -> None:
        """Link a book to a character or persona. Idempotent.

        Raises `LorebookNotFoundError`, `CharacterNotFoundError` or `PersonaNotFoundError`.
        """
        owner_id = identity.user_id
        column = f"{holder}_id"
        values = {"id": new_id(), "user_id": owner_id, "lorebook_id": book_id, column: holder_id}
        async with self._database.write() as session:
            await _check_holder(session, holder, holder_id, owner_id)
            await repository.get_book(session, book_id, owner_id=owner_id)
            await upsert(session, LorebookLink, values, key=(column, "lorebook_id"))

    async def character_copied(
        self, session: AsyncSession, identity: Identity, source_id: UUID, copy_id: UUID
    ) -> None:
        """Link the copy to the books that the original is linked to."""
        query = (
            select(LorebookLink.lorebook_id)
            .where(LorebookLink.character_id == source_id, LorebookLink.user_id == identity.user_id)
            .order_by(LorebookLink.id)
        )
        session.add_all(
            LorebookLink(
                id=new_id(),
                user_id=identity.user_id,
                lorebook_id=book_id,
                character_id=copy_id,
            )
            for book_id in (await session.scalars(query)).all()
        )

    async def unlink(
        self, identity: Identity, holder: Holder, holder_id: UUID, book_id: UUID
    ) -> None:
        """Remove a link. Raises `LorebookNotLinkedError`, or as `link` does."""
        owner_id = identity.user_id
        async with self._database.write() as session:
            await _check_holder(session, holder, holder_id, owner_id)
            await repository.get_book(session, book_id, owner_id=owner_id)
            deleted = await session.scalars(
                delete(LorebookLink)
                .where(
                    _COLUMNS[holder] == holder_id,
                    LorebookLink.lorebook_id == book_id,
                    LorebookLink.user_id == owner_id,
                )
                .returning(LorebookLink.id)
            )
            if deleted.one_or_none() is None:
                raise LorebookNotLinkedError

    async def list_of_chat(self, identity: Identity, chat_id: UUID) -> Page[ChatLorebookItem]:
        """List the books of a chat from all sources. Raises `ChatNotFoundError`."""
        async with self._database.read() as session:
            books = await _books(session, identity, chat_id)
            items = await _items(session, identity, [book.id for book in books])
        return Page(
            items=[
                ChatLorebookItem(lorebook=item, source=book.source, is_off=book.is_off)
                for item, book in zip(items, books, strict=True)
            ]
        )

    async def get_in_chat(
        self, identity: Identity, chat_id: UUID, book_id: UUID
    ) -> ChatLorebookView:
        """Return a chat's setting of a book.

        Raises `ChatNotFoundError`, `LorebookNotFoundError`.
        """
        async with self._database.read() as session:
            return await _load_setting(session, identity, chat_id, book_id)

    async def set_in_chat(
        self, identity: Identity, chat_id: UUID, book_id: UUID, state: ChatLink
    ) -> ChatLorebookView:
        """Link a book to a chat, or disable it there. Raises as `get_in_chat` does."""
        values = {"chat_id": chat_id, "lorebook_id": book_id, "state": state}
        key = "chat_id", "lorebook_id"
        async with self._database.write() as session:
            await get_chat(session, chat_id, owner_id=identity.user_id)
            await repository.get_book(session, book_id, owner_id=identity.user_id)
            await upsert(session, ChatLorebook, values, key=key, update=("state",))
            return await _load_setting(session, identity, chat_id, book_id)

    async def clear_in_chat(self, identity: Identity, chat_id: UUID, book_id: UUID) -> None:
        """Remove the setting of a book. Raises `LorebookNotLinkedError`, or as `get_in_chat`."""
        async with self._database.write() as session:
            await get_chat(session, chat_id, owner_id=identity.user_id)
            await repository.get_book(session, book_id, owner_id=identity.user_id)
            deleted = await session.scalars(
                delete(ChatLorebook)
                .where(ChatLorebook.chat_id == chat_id, ChatLorebook.lorebook_id == book_id)
                .returning(ChatLorebook.lorebook_id)
            )
            if deleted.one_or_none() is None:
                raise LorebookNotLinkedError


async def _check_holder(
    session: AsyncSession, holder: Holder, holder_id: UUID, owner_id: UUID
) -> None:
    if holder == "character":
        await get_character(session, holder_id, owner_id=owner_id)
    else:
        await get_persona(session, holder_id, owner_id=owner_id)


async def _items(
    session: AsyncSession, identity: Identity, book_ids: list[UUID]
) -> list[LorebookItem]:
    found = await repository.find_books(session, book_ids, owner_id=identity.user_id)
    return await views.items(session, identity.sealer, [found[book_id] for book_id in book_ids])


async def _books(session: AsyncSession, identity: Identity, chat_id: UUID) -> list[ChatBook]:
    chat = await get_chat(session, chat_id, owner_id=identity.user_id)
    cast = await list_character_ids(session, [chat_id])
    return await books_for_chat(
        session,
        owner_id=identity.user_id,
        chat_id=chat_id,
        character_ids=cast[chat_id],
        persona_id=chat.persona_id,
        with_off=True,
    )


async def _load_setting(
    session: AsyncSession, identity: Identity, chat_id: UUID, book_id: UUID
) -> ChatLorebookView:
    books = await _books(session, identity, chat_id)
    await repository.get_book(session, book_id, owner_id=identity.user_id)
    state = await session.scalar(
        select(ChatLorebook.state).where(
            ChatLorebook.chat_id == chat_id, ChatLorebook.lorebook_id == book_id
        )
    )
    found = next((book for book in books if book.id == book_id), None)
    return ChatLorebookView(
        lorebook_id=book_id,
        state=state,
        source=found.source if found else None,
        is_off=state == "off",
    )
