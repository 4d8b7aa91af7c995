"""Which lorebooks a character, a persona or a chat is linked to."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.characters.repository import get_character, get_persona
from backend.chats.repository import character_ids, get_chat
from backend.database.base import new_id, upsert
from backend.database.engine import Database
from backend.lorebooks import repository, views
from backend.lorebooks.chat_books import ChatBook, books_for_chat
from backend.lorebooks.errors import LorebookNotLinkedError
from backend.lorebooks.models import ChatLink, ChatLorebook, Lorebook, LorebookLink
from backend.lorebooks.schemas import ChatLorebookItem, ChatLorebookView, LorebookItem
from backend.wire import Page

Holder = Literal["character", "persona"]

_COLUMNS = {"character": LorebookLink.character_id, "persona": LorebookLink.persona_id}


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
                own = await repository.find_book(
                    session, Lorebook.character_id == holder_id, owner_id=owner_id
                )
                ids = [own.id, *(each for each in ids if each != own.id)] if own else ids
            return Page(items=await _items(session, identity, ids))

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
            await upsert(session, LorebookLink, values, key=(column, "lorebook_id"))

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
            books = await _books(session, identity, chat_id)
            items = await _items(session, identity, [book.id for book in books])
        return Page(
            items=[
                ChatLorebookItem(lorebook=item, source=book.source, is_off=book.is_off)
                for item, book in zip(items, books, strict=True)
            ]
        )

    async def in_chat(self, identity: Identity, chat_id: UUID, book_id: UUID) -> ChatLorebookView:
        """What a chat says of a book. Raises `ChatNotFoundError`, `LorebookNotFoundError`."""
        async with self._database.read() as session:
            return await _in_chat(session, identity, chat_id, book_id)

    async def set_in_chat(
        self, identity: Identity, chat_id: UUID, book_id: UUID, state: ChatLink
    ) -> ChatLorebookView:
        """Link a book to a chat, or switch it off there. Raises as `in_chat` does."""
        values = {"chat_id": chat_id, "lorebook_id": book_id, "state": state}
        key = "chat_id", "lorebook_id"
        async with self._database.write() as session:
            await get_chat(session, chat_id, owner_id=identity.user_id)
            await repository.get_book(session, book_id, owner_id=identity.user_id)
            await upsert(session, ChatLorebook, values, key=key, update=("state",))
            return await _in_chat(session, identity, chat_id, book_id)

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
    """Books as they are listed, in that order."""
    found = await repository.find_books(session, book_ids, owner_id=identity.user_id)
    return await views.items(session, identity.sealer, [found[book_id] for book_id in book_ids])


async def _books(session: AsyncSession, identity: Identity, chat_id: UUID) -> list[ChatBook]:
    chat = await get_chat(session, chat_id, owner_id=identity.user_id)
    cast = await character_ids(session, [chat_id])
    return await books_for_chat(
        session,
        owner_id=identity.user_id,
        chat_id=chat_id,
        character_ids=cast[chat_id],
        persona_id=chat.persona_id,
        with_off=True,
    )


async def _in_chat(
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
