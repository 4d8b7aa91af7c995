"""Lorebook entries as a source of memories: what is found by meaning, without its keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.lorebooks.activation.decorators import split_decorators
from backend.lorebooks.authoring import counting
from backend.lorebooks.entries import BookFields, LoreEntry
from backend.lorebooks.models import ENTRY, LOREBOOK_BOOK, Lorebook
from backend.lorebooks.models import LoreEntry as EntryRow
from backend.memory.documents import Document, lore_documents
from backend.memory.index.protocol import Kind
from backend.memory.sources import Recalled, Stored, version_of
from backend.vault.sealing import Sealer

KIND: Final = "lore"
PARAMETERS = 5000


class LoreSource:
    """The entries of a user's lorebooks."""

    kind: Kind = KIND

    async def containers(self, session: AsyncSession, *, owner_id: UUID) -> list[UUID]:
        """A user's lorebooks."""
        return list(await session.scalars(select(Lorebook.id).where(Lorebook.user_id == owner_id)))

    async def inventory(
        self, session: AsyncSession, container_id: UUID, *, owner_id: UUID
    ) -> list[Stored] | None:
        """A book's entries in their order; None when there is no such book."""
        owned = Lorebook.id == container_id, Lorebook.user_id == owner_id
        if await session.scalar(select(Lorebook.id).where(*owned)) is None:
            return None
        rows = await session.execute(
            select(EntryRow.id, EntryRow.updated_at)
            .where(EntryRow.lorebook_id == container_id)
            .order_by(EntryRow.place)
        )
        return [Stored(source_id=row.id, version=version_of(row.updated_at)) for row in rows]

    async def documents(
        self,
        session: AsyncSession,
        sealer: Sealer,
        container_id: UUID,
        source_ids: Sequence[UUID],
        *,
        neighbours: bool,  # noqa: ARG002  # entries stand by themselves
    ) -> list[Document]:
        """Entries that say something and may be found by meaning."""
        documents: list[Document] = []
        if not (await _fields(session, sealer, container_id)).semantic:
            return documents
        for entry_id, changed_at, entry in await _entries(session, sealer, source_ids):
            _, content = split_decorators(entry.content)
            if entry.enabled and content.strip():
                documents += lore_documents(
                    entry_id,
                    container_id,
                    title=entry.title,
                    keys=entry.keys,
                    content=content,
                    version=version_of(changed_at),
                )
        return documents

    async def recall(
        self, session: AsyncSession, sealer: Sealer, source_ids: Collection[UUID]
    ) -> dict[UUID, Recalled]:
        """Entries that are there, enabled, and of books that may be found by meaning.

        One that comes from a branch which was left is not among them.
        """
        found: dict[UUID, Recalled] = {}
        is_semantic: dict[UUID, bool] = {}
        for ids in _chunks(list(source_ids)):
            rows = await session.execute(
                select(EntryRow.id, EntryRow.lorebook_id).where(
                    EntryRow.id.in_(ids), EntryRow.user_id == sealer.user_id, counting()
                )
            )
            books = dict(rows.all())
            for entry_id, _, entry in await _entries(session, sealer, list(books)):
                book_id = books[entry_id]
                if book_id not in is_semantic:
                    # What was indexed before somebody switched it off is still in the index.
                    is_semantic[book_id] = (await _fields(session, sealer, book_id)).semantic
                if entry.enabled and is_semantic[book_id]:
                    found[entry_id] = Recalled(
                        kind=self.kind,
                        source_id=entry_id,
                        container_id=book_id,
                        title=entry.title or ", ".join(entry.keys[:3]),
                        text=split_decorators(entry.content)[1],
                    )
        return found


async def _fields(session: AsyncSession, sealer: Sealer, book_id: UUID) -> BookFields:
    blob = await session.scalar(
        select(Lorebook.sealed_book).where(
            Lorebook.id == book_id, Lorebook.user_id == sealer.user_id
        )
    )
    if blob is None:
        return BookFields()
    return msgspec.json.decode(sealer.open_bytes(LOREBOOK_BOOK, book_id, blob), type=BookFields)


async def _entries(
    session: AsyncSession, sealer: Sealer, entry_ids: Sequence[UUID]
) -> list[tuple[UUID, datetime, LoreEntry]]:
    rows = await session.execute(
        select(EntryRow.id, EntryRow.updated_at, EntryRow.sealed_entry).where(
            EntryRow.id.in_(entry_ids), EntryRow.user_id == sealer.user_id
        )
    )
    return [
        (
            row.id,
            row.updated_at,
            msgspec.json.decode(sealer.open_bytes(ENTRY, row.id, row.sealed_entry), type=LoreEntry),
        )
        for row in rows
    ]


def _chunks(ids: list[UUID]) -> Iterator[list[UUID]]:
    for start in range(0, len(ids), PARAMETERS):
        yield ids[start : start + PARAMETERS]
