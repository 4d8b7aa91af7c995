"""Which lorebooks a chat, a character or a persona has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sqlalchemy import delete, literal, null, select, union_all
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.characters.repository import get_character, get_persona
from backend.chats.models import Chat
from backend.chats.repository import character_ids, get_chat
from backend.database.base import new_id, upsert
from backend.database.engine import Database
from backend.lorebooks import repository, views
from backend.lorebooks.entries import LinkSource
from backend.lorebooks.errors import LorebookNotLinkedError
from backend.lorebooks.models import ChatLink, ChatLorebook, Lorebook, LorebookLink
from backend.lorebooks.schemas import (
    ChatLorebookItem,
    ChatLorebookView,
    LorebookItem,
)
from backend.wire import Page

Holder = Literal["character", "persona"]

_SOURCES: tuple[LinkSource, ...] = (
    "chat",
    "chronicle",
    "persona",
    "character",
    "character",
    "global",
)
"""By rank: the books of cards stand before others that a character has."""

_COLUMNS = {"character": LorebookLink.character_id, "persona": LorebookLink.persona_id}


@dataclass(frozen=True, slots=True)
class ChatBook:
    """A book that a chat has: the first place that it has it from, and whether it is off there.

    `is_chronicles` marks the book of a chronicle, of whichever: some of its entries may not count.
    """

    id: UUID
    revision: int
    source: LinkSource
    is_off: bool
    is_chronicles: bool


async def find_chat_books(
    session: AsyncSession,
    *,
    owner_id: UUID,
    chat_id: UUID,
    character_ids: Sequence[UUID],
    persona_id: UUID | None,
) -> list[ChatBook]:
    """The books of a chat, each once, by where it has them from; those that are off among them.

    One query. The chat, its characters and its persona are taken for the owner's.
    """
    chat, link, book = ChatLorebook, LorebookLink, Lorebook
    ranks = [
        select(chat.lorebook_id.label("book_id"), literal(0).label("rank")).where(
            chat.chat_id == chat_id, chat.state == "linked"
        ),
        select(book.id, literal(1))
        .join(Chat, Chat.chronicle_id == book.chronicle_id)
        .where(Chat.id == chat_id),
        select(book.id, literal(5)).where(book.user_id == owner_id, book.is_global),
    ]
    if persona_id is not None:
        ranks.append(select(link.lorebook_id, literal(2)).where(link.persona_id == persona_id))
    if character_ids:
        ranks.append(select(book.id, literal(3)).where(book.character_id.in_(character_ids)))
        ranks.append(
            select(link.lorebook_id, literal(4)).where(link.character_id.in_(character_ids))
        )
    found = union_all(*ranks).subquery()
    off = select(chat.lorebook_id).where(chat.chat_id == chat_id, chat.state == "off").subquery()
    rows = await session.execute(
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
    books: dict[UUID, ChatBook] = {}
    for book_id, revision, rank, is_off, is_chronicles in rows:
        source: LinkSource = _SOURCES[int(rank)]
        book_here = ChatBook(book_id, revision, source, bool(is_off), bool(is_chronicles))
        books.setdefault(book_id, book_here)
    return list(books.values())


class LorebookLinkService:
    """Links lorebooks to characters, personas and chats, and switches them off in chats."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_of(
        self, identity: Identity, holder: Holder, holder_id: UUID
    ) -> Page[LorebookItem]:
        """The books of a character, its card's own first, or of a persona.

        Raises `CharacterNotFoundError` or `PersonaNotFoundError`.
        """
        owner_id = identity.user_id
        async with self._database.read() as session:
            await _check_holder(session, holder, holder_id, owner_id)
            query = (
                select(LorebookLink.lorebook_id)
                .where(_COLUMNS[holder] == holder_id, LorebookLink.user_id == owner_id)
                .order_by(LorebookLink.id)
            )
            ids = list(await session.scalars(query))
            if holder == "character":
                own = await repository.find_card_book(session, holder_id, owner_id=owner_id)
                ids = [own.id, *(each for each in ids if each != own.id)] if own else ids
            found = await repository.find_books(session, ids, owner_id=owner_id)
            shown = await views.items(session, identity.sealer, [found[each] for each in ids])
        return Page(items=shown)

    async def link(
        self, identity: Identity, holder: Holder, holder_id: UUID, book_id: UUID
    ) -> None:
        """Link a book to a character or persona; done again, it changes nothing.

        Raises `LorebookNotFoundError`, `CharacterNotFoundError` or `PersonaNotFoundError`.
        """
        owner_id = identity.user_id
        column = f"{holder}_id"
        values = {"id": new_id(), "user_id": owner_id, "lorebook_id": book_id, column: holder_id}
        async with self._database.write() as session:
            await _check_holder(session, holder, holder_id, owner_id)
            await repository.get_book(session, book_id, owner_id=owner_id)
            await upsert(session, LorebookLink, values, key=[column, "lorebook_id"], update={})

    async def unlink(
        self, identity: Identity, holder: Holder, holder_id: UUID, book_id: UUID
    ) -> None:
        """Raises `LorebookNotLinkedError`, or as `link` does."""
        owner_id = identity.user_id
        async with self._database.write() as session:
            await _check_holder(session, holder, holder_id, owner_id)
            await repository.get_book(session, book_id, owner_id=owner_id)
            gone = await session.scalars(
                delete(LorebookLink)
                .where(
                    _COLUMNS[holder] == holder_id,
                    LorebookLink.lorebook_id == book_id,
                    LorebookLink.user_id == owner_id,
                )
                .returning(LorebookLink.id)
            )
            if gone.one_or_none() is None:
                raise LorebookNotLinkedError

    async def list_of_chat(self, identity: Identity, chat_id: UUID) -> Page[ChatLorebookItem]:
        """The books of a chat, from wherever it has them. Raises `ChatNotFoundError`."""
        async with self._database.read() as session:
            books = await self._books(session, identity, chat_id)
            found = await repository.find_books(
                session, [book.id for book in books], owner_id=identity.user_id
            )
            shown = await views.items(session, identity.sealer, [found[book.id] for book in books])
        return Page(
            items=[
                ChatLorebookItem(lorebook=item, source=book.source, is_off=book.is_off)
                for item, book in zip(shown, books, strict=True)
            ]
        )

    async def in_chat(self, identity: Identity, chat_id: UUID, book_id: UUID) -> ChatLorebookView:
        """What a chat says of a book. Raises `ChatNotFoundError`, `LorebookNotFoundError`."""
        async with self._database.read() as session:
            return await self._in_chat(session, identity, chat_id, book_id)

    async def set_in_chat(
        self, identity: Identity, chat_id: UUID, book_id: UUID, state: ChatLink
    ) -> ChatLorebookView:
        """Link a book to a chat, or switch it off there. Raises as `in_chat` does."""
        values = {"chat_id": chat_id, "lorebook_id": book_id, "state": state}
        async with self._database.write() as session:
            await get_chat(session, chat_id, owner_id=identity.user_id)
            await repository.get_book(session, book_id, owner_id=identity.user_id)
            await upsert(
                session,
                ChatLorebook,
                values,
                key=["chat_id", "lorebook_id"],
                update={"state": state},
            )
            return await self._in_chat(session, identity, chat_id, book_id)

    async def clear_in_chat(self, identity: Identity, chat_id: UUID, book_id: UUID) -> None:
        """Let a chat say nothing of a book. Raises `LorebookNotLinkedError`, or as `in_chat`."""
        async with self._database.write() as session:
            await get_chat(session, chat_id, owner_id=identity.user_id)
            await repository.get_book(session, book_id, owner_id=identity.user_id)
            gone = await session.scalars(
                delete(ChatLorebook)
                .where(ChatLorebook.chat_id == chat_id, ChatLorebook.lorebook_id == book_id)
                .returning(ChatLorebook.lorebook_id)
            )
            if gone.one_or_none() is None:
                raise LorebookNotLinkedError

    async def _in_chat(
        self, session: AsyncSession, identity: Identity, chat_id: UUID, book_id: UUID
    ) -> ChatLorebookView:
        books = await self._books(session, identity, chat_id)
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

    async def _books(
        self, session: AsyncSession, identity: Identity, chat_id: UUID
    ) -> list[ChatBook]:
        chat = await get_chat(session, chat_id, owner_id=identity.user_id)
        cast = await character_ids(session, [chat_id])
        return await find_chat_books(
            session,
            owner_id=identity.user_id,
            chat_id=chat_id,
            character_ids=cast[chat_id],
            persona_id=chat.persona_id,
        )


async def _check_holder(
    session: AsyncSession, holder: Holder, holder_id: UUID, owner_id: UUID
) -> None:
    if holder == "character":
        await get_character(session, holder_id, owner_id=owner_id)
    else:
        await get_persona(session, holder_id, owner_id=owner_id)
