"""What a turn reads of lorebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import TypeCoerce, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.types import NullType

from backend.lorebooks.entries import BookFields, LoreEntry
from backend.lorebooks.links import find_chat_books
from backend.lorebooks.models import ENTRY
from backend.lorebooks.models import LoreEntry as EntryRow
from backend.lorebooks.records import LORE_ENTRY, open_book
from backend.lorebooks.repository import get_book
from backend.lorebooks.schemas import LinkSource
from backend.vault.sealing import Sealer

_AT_ONCE = 500
"""Ids in one query: databases bound the number of parameters."""


@dataclass(frozen=True, slots=True)
class BookRef:
    """A book that a chat has: by id and revision its compiled form is cached."""

    id: UUID
    revision: int
    source: LinkSource


async def books_for_chat(
    session: AsyncSession,
    *,
    owner_id: UUID,
    chat_id: UUID,
    character_ids: Sequence[UUID],
    persona_id: UUID | None,
) -> list[BookRef]:
    """The books of a chat but those that it switched off, each once, with its first source.

    In the order chat, persona, character (the cards' own before others), global. One query.
    """
    books = await find_chat_books(
        session,
        owner_id=owner_id,
        chat_id=chat_id,
        character_ids=character_ids,
        persona_id=persona_id,
    )
    return [BookRef(book.id, book.revision, book.source) for book in books if not book.is_off]


async def load_book(
    session: AsyncSession, sealer: Sealer, book_id: UUID
) -> tuple[BookFields, list[tuple[UUID, int, LoreEntry]]]:
    """A book of the sealer's owner: what it says of itself, and (id, place, entry) in order.

    Raises `LorebookNotFoundError`.
    """
    book = await get_book(session, book_id, owner_id=sealer.user_id)
    columns: list[TypeCoerce[Any]] = [
        type_coerce(column, NullType())
        for column in (EntryRow.id, EntryRow.place, EntryRow.sealed_entry)
    ]
    found = await session.execute(
        # Without a type SQLAlchemy hands on what the driver gives, untouched.
        select(*columns).where(EntryRow.lorebook_id == book_id).order_by(EntryRow.place)
    )
    every: Sequence[Any] = found.all()
    rows: list[tuple[Any, int, bytes]] = [(row[0], row[1], row[2]) for row in every]
    opened = _opened(sealer, [(entry_id, blob) for entry_id, _, blob in rows])
    return open_book(sealer, book), [
        (_uuid(entry_id), place, entry)
        for (entry_id, place, _), entry in zip(rows, opened, strict=True)
    ]


async def load_entries(
    session: AsyncSession, sealer: Sealer, entry_ids: Sequence[UUID], owner_id: UUID
) -> dict[UUID, LoreEntry]:
    """Entries by id; those that are gone or not the owner's are left out."""
    found: dict[UUID, LoreEntry] = {}
    for start in range(0, len(entry_ids), _AT_ONCE):
        rows = (
            await session.execute(
                select(EntryRow.id, EntryRow.sealed_entry).where(
                    EntryRow.id.in_(entry_ids[start : start + _AT_ONCE]),
                    EntryRow.user_id == owner_id,
                )
            )
        ).all()
        opened = _opened(sealer, [(row.id, row.sealed_entry) for row in rows])
        found.update(zip((row.id for row in rows), opened, strict=True))
    return found


def _opened(sealer: Sealer, rows: Sequence[tuple[Any, bytes]]) -> list[LoreEntry]:
    texts = sealer.open_many(ENTRY, ((_raw(entry_id), blob) for entry_id, blob in rows))
    return [LORE_ENTRY.decode(text) for text in texts]


def _raw(entry_id: Any) -> bytes:
    """SQLite's driver gives bytes, PostgreSQL's a UUID."""
    return entry_id if isinstance(entry_id, bytes) else entry_id.bytes


def _uuid(entry_id: Any) -> UUID:
    return UUID(bytes=entry_id) if isinstance(entry_id, bytes) else entry_id
