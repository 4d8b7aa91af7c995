"""Rows of lorebooks. The caller commits. Rows of other users are treated as absent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, delete, exists, func, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer
from sqlalchemy.types import NullType

from backend.database.base import now
from backend.jobs.deletions import queue_deletion
from backend.lorebooks.errors import LorebookNotFoundError, LoreEntryNotFoundError
from backend.lorebooks.models import ChatLorebook, Lorebook, LorebookLink, LoreEntryRow
from backend.lorebooks.schemas import LorebookLinks

_ENTRY_BATCH_SIZE = 500
"""Entries read in one batch."""

_BOOK_BATCH_SIZE = 250
"""Books read in one batch: a page of a list, and some more."""

_WITHOUT_SOURCE = defer(Lorebook.sealed_source, raiseload=True)
_ENTRY_WITHOUT_SOURCE = defer(LoreEntryRow.sealed_source, raiseload=True)


async def get_book(
    session: AsyncSession,
    book_id: UUID,
    *,
    owner_id: UUID,
    lock: bool = False,
    source: bool = False,
) -> Lorebook:
    """Return a book. Raises `LorebookNotFoundError` if it is absent or another user's.

    `lock` makes other writers of the book and its entries wait. `source` also loads the imported
    source.
    """
    book = await find_book(
        session, Lorebook.id == book_id, owner_id=owner_id, lock=lock, source=source
    )
    if book is None:
        raise LorebookNotFoundError
    return book


async def find_book(
    session: AsyncSession,
    which: ColumnElement[bool],
    *,
    owner_id: UUID,
    lock: bool = False,
    source: bool = False,
) -> Lorebook | None:
    """Return the only book that matches a condition, or None. Options as for `get_book`."""
    query = select(Lorebook).where(which, Lorebook.match_owner(owner_id))
    if not source:
        query = query.options(_WITHOUT_SOURCE)
    return await session.scalar(query.with_for_update() if lock else query)


async def books_after(
    session: AsyncSession, *, owner_id: UUID, after: UUID | None
) -> AsyncIterator[Lorebook]:
    """Yield a user's books after `after`, newest first, in batches on demand."""
    query = (
        select(Lorebook)
        .where(Lorebook.match_owner(owner_id))
        .order_by(Lorebook.id.desc())
        .limit(_BOOK_BATCH_SIZE)
        .options(_WITHOUT_SOURCE)
    )
    while True:
        behind = query if after is None else query.where(Lorebook.id < after)
        rows = list(await session.scalars(behind))
        for row in rows:
            yield row
        if len(rows) < _BOOK_BATCH_SIZE:
            return
        after = rows[-1].id


async def find_books(
    session: AsyncSession, book_ids: Sequence[UUID], *, owner_id: UUID
) -> dict[UUID, Lorebook]:
    query = select(Lorebook).where(Lorebook.id.in_(book_ids), Lorebook.match_owner(owner_id))
    return {book.id: book for book in await session.scalars(query.options(_WITHOUT_SOURCE))}


async def count_books(session: AsyncSession, *, owner_id: UUID) -> int:
    """Count a user's books, including those of cards."""
    query = select(func.count()).select_from(Lorebook).where(Lorebook.match_owner(owner_id))
    return await session.scalar(query) or 0


async def count_all_entries(session: AsyncSession, owner_id: UUID) -> int:
    """Count a user's entries in all lorebooks."""
    query = (
        select(func.count())
        .select_from(LoreEntryRow)
        .join(Lorebook, Lorebook.id == LoreEntryRow.lorebook_id)
        .where(LoreEntryRow.user_id == owner_id, Lorebook.match_owner(owner_id))
    )
    return await session.scalar(query) or 0


async def count_entries(session: AsyncSession, book_ids: Sequence[UUID]) -> dict[UUID, int]:
    """Return the number of entries by book. Empty books are left out."""
    rows = await session.execute(
        select(LoreEntryRow.lorebook_id, func.count())
        .where(LoreEntryRow.lorebook_id.in_(book_ids))
        .group_by(LoreEntryRow.lorebook_id)
    )
    return dict(rows.all())


async def load_links(session: AsyncSession, book_ids: Sequence[UUID]) -> dict[UUID, LorebookLinks]:
    found = {book_id: LorebookLinks() for book_id in book_ids}
    links = await session.scalars(
        select(LorebookLink).where(LorebookLink.lorebook_id.in_(book_ids)).order_by(LorebookLink.id)
    )
    for link in links:
        if link.character_id is not None:
            found[link.lorebook_id].character_ids.append(link.character_id)
        if link.persona_id is not None:
            found[link.lorebook_id].persona_ids.append(link.persona_id)
    chats = await session.execute(
        select(ChatLorebook.lorebook_id, ChatLorebook.chat_id)
        .where(ChatLorebook.lorebook_id.in_(book_ids), ChatLorebook.state == "linked")
        .order_by(ChatLorebook.chat_id)
    )
    for book_id, chat_id in chats:
        found[book_id].chat_ids.append(chat_id)
    return found


async def get_entry(
    session: AsyncSession, book_id: UUID, entry_id: UUID, *, owner_id: UUID
) -> LoreEntryRow:
    """Raises `LoreEntryNotFoundError` if absent, in another book, or another user's."""
    entry = await session.scalar(
        select(LoreEntryRow)
        .where(
            LoreEntryRow.id == entry_id,
            LoreEntryRow.lorebook_id == book_id,
            LoreEntryRow.user_id == owner_id,
            exists().where(Lorebook.id == book_id, Lorebook.match_owner(owner_id)),
        )
        .options(_ENTRY_WITHOUT_SOURCE)
    )
    if entry is None:
        raise LoreEntryNotFoundError
    return entry


async def list_entries(
    session: AsyncSession, book_id: UUID, *, limit: int | None, after: int | None
) -> list[LoreEntryRow]:
    """Return a book's entries in order, after the place `after`; all without `limit`."""
    query = (
        select(LoreEntryRow)
        .where(LoreEntryRow.lorebook_id == book_id)
        .order_by(LoreEntryRow.place)
        .limit(limit)
        .options(_ENTRY_WITHOUT_SOURCE)
    )
    if after is not None:
        query = query.where(LoreEntryRow.place > after)
    return list(await session.scalars(query))


class SealedEntry(NamedTuple):
    """A sealed entry with the 16 bytes of its id."""

    id: bytes
    place: int
    sealed_entry: bytes
    sealed_source: bytes | None = None


async def load_sealed_entries(
    session: AsyncSession, book_id: UUID, *, source: bool = False
) -> list[SealedEntry]:
    """Return all entries of a book in order. `source` also loads their imported sources.

    Reads batches without ORM objects, so that other tasks can run while thousands of entries are
    read.
    """
    columns: list[Any] = [LoreEntryRow.id, LoreEntryRow.place, LoreEntryRow.sealed_entry]
    if source:
        columns.append(LoreEntryRow.sealed_source)
    query = (
        # With NullType SQLAlchemy returns the driver's values unchanged.
        select(*(type_coerce(column, NullType()) for column in columns))
        .where(LoreEntryRow.lorebook_id == book_id)
        .order_by(LoreEntryRow.place)
        .limit(_ENTRY_BATCH_SIZE)
    )
    found: list[SealedEntry] = []
    last = -1
    while True:
        rows: Sequence[Any] = (await session.execute(query.where(LoreEntryRow.place > last))).all()
        found += (SealedEntry(_raw(row[0]), *row[1:]) for row in rows)
        if len(rows) < _ENTRY_BATCH_SIZE:
            return found
        last = found[-1].place


def _raw(entry_id: Any) -> bytes:
    """Return the bytes of an id. SQLite's driver returns bytes, PostgreSQL's a UUID."""
    return entry_id if isinstance(entry_id, bytes) else entry_id.bytes


async def load_places(session: AsyncSession, book_id: UUID) -> dict[UUID, int]:
    query = select(LoreEntryRow.id, LoreEntryRow.place).where(LoreEntryRow.lorebook_id == book_id)
    return dict((await session.execute(query)).all())


async def find_end(session: AsyncSession, book_id: UUID) -> tuple[int, int]:
    """Return the number of entries of a book and the next free place."""
    behind = func.coalesce(func.max(LoreEntryRow.place) + 1, 0)
    query = select(func.count(), behind).where(LoreEntryRow.lorebook_id == book_id)
    count, place = (await session.execute(query)).one()
    return count, place


async def hide_book(session: AsyncSession, book: Lorebook) -> None:
    """Hide a book that the caller has locked, and queue the deletion of its rows."""
    book.deleted_at, book.is_global = now(), False
    book.character_id = book.chronicle_id = None
    await session.flush()
    for link in (LorebookLink, ChatLorebook):
        await session.execute(delete(link).where(link.lorebook_id == book.id))
    await queue_deletion(session, "lorebook", book.id)


def touch(row: Lorebook | LoreEntryRow) -> None:
    """Count a change of a book or an entry. Call it for the book of a changed entry too."""
    row.revision += 1
    row.updated_at = now()
