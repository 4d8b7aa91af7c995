"""Lorebooks of character cards. Implements `CardBooks` of `characters`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.characters.card_rows import BookImport, LazyBook
from backend.characters.errors import CardError, CardLimitError
from backend.characters.schemas import CardLorebook
from backend.errors import ConflictError
from backend.lorebooks import repository
from backend.lorebooks.errors import LoreFileError, LoreLimitError
from backend.lorebooks.files import LoreRows, card_book_object, insert_entries, new_rows
from backend.lorebooks.formats.fields import ReadBook
from backend.lorebooks.formats.reader import read_card_book
from backend.lorebooks.formats.writer import book_object
from backend.lorebooks.index_source import KIND
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.memory.indexing.outbox import IndexOutbox
from backend.quotas.service import CheckAdded, check_nothing
from backend.vault.sealing import Sealer


class CardBookService:
    """Stores the books of cards as lorebooks."""

    def __init__(self, outbox: IndexOutbox, *, check_added: CheckAdded = check_nothing) -> None:
        self._outbox = outbox
        self._check_added = check_added

    def prepare(
        self,
        sealer: Sealer,
        book: dict[str, Any],
        *,
        character_id: UUID,
        name: str,
        replaced: UUID | None,
    ) -> BookImport:
        """Read a card's book. CPU-bound, no database. Raises `CardLimitError`, `CardError`."""
        with _as_card_errors():
            read = read_card_book(book, given_name=name)
            rows = new_rows(sealer, read, character_id=character_id, book_id=replaced)
        summary = CardLorebook(
            id=rows.book.id,
            name=rows.fields.name,
            entry_count=len(rows.entries),
            mode=rows.fields.mode,
        )
        return BookImport(summary, _shown(read), rows.warnings, partial(self._store, rows))

    async def _store(self, rows: LoreRows, session: AsyncSession, identity: Identity) -> None:
        """Store the book for its character and replace an existing one.

        The lorebook keeps its id, links and switches. Its entries are replaced. The character is
        locked.
        """
        new = rows.book
        if new.character_id is None:
            raise ValueError("A card's book belongs to a character.")
        old = await repository.find_book(
            session,
            Lorebook.character_id == new.character_id,
            owner_id=identity.user_id,
            lock=True,
            source=True,
        )
        if old is None:
            session.add(new)
            await session.flush()
        elif old.id == new.id:
            old.sealed_book, old.sealed_source = new.sealed_book, new.sealed_source
            repository.touch(old)
            await session.execute(delete(LoreEntryRow).where(LoreEntryRow.lorebook_id == old.id))
        else:
            raise ConflictError("Another request changed its lorebook. Send the change again.")
        await insert_entries(session, rows.entries)
        await self._check_added(session, identity.user_id)
        await self._outbox.changed(session, identity, kind=KIND, container_id=new.id)

    def preview(self, book: dict[str, Any], *, name: str) -> dict[str, Any]:
        """Return a card's book as it will be shown once stored. CPU-bound, raises as `prepare`."""
        with _as_card_errors():
            return _shown(read_card_book(book, given_name=name))

    async def find(
        self, session: AsyncSession, identity: Identity, character_id: UUID
    ) -> LazyBook | None:
        book = await repository.find_book(
            session, Lorebook.character_id == character_id, owner_id=identity.user_id, source=True
        )
        if book is None:
            return None
        entries = await repository.load_sealed_entries(session, book.id, source=True)
        return LazyBook(book.id, partial(card_book_object, identity.sealer, book, entries))

    async def drop(self, session: AsyncSession, identity: Identity, character_id: UUID) -> None:
        book = await repository.find_book(
            session, Lorebook.character_id == character_id, owner_id=identity.user_id, lock=True
        )
        if book is not None:
            await repository.hide_book(session, book)
            await self._outbox.changed(session, identity, kind=KIND, container_id=book.id)


@contextmanager
def _as_card_errors() -> Generator[None]:
    try:
        yield
    except LoreLimitError as error:
        raise CardLimitError(
            f"In the card's lorebook: {error.detail}",
            limit=error.limit,
            allowed=error.allowed,
            found=error.found,
        ) from error
    except LoreFileError as error:
        raise CardError(f"In the card's lorebook: {error.detail}") from error


def _shown(read: ReadBook) -> dict[str, Any]:
    """Return the book as it will be exported once stored."""
    value = book_object(read.fields, read.source, read.entries)
    return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, Any])
