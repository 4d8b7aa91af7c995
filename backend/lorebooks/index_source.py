"""Lorebook entries as a source of memories: what is found by meaning, without its keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.core.audience import GM, Viewpoint
from backend.database.base import skip_index, split_chunks
from backend.lorebooks.activation.compiled import split_decorators
from backend.lorebooks.authoring import counting
from backend.lorebooks.entries import BookFields, LoreEntry, mode_of
from backend.lorebooks.models import ENTRY, Lorebook, LoreEntryRow
from backend.lorebooks.records import LORE_ENTRY, open_book
from backend.memory.index.protocol import Kind
from backend.memory.indexing.documents import Document, lore_documents
from backend.memory.indexing.sources import Recalled, SourceRow, count_of, inventory_of, version_of
from backend.vault.sealing import Sealer

KIND: Final = "lore"


class LoreSource:
    """The entries of a user's lorebooks."""

    kind: Kind = KIND

    async def containers(self, session: AsyncSession, *, owner_id: UUID) -> list[UUID]:
        """A user's lorebooks."""
        return list(await session.scalars(select(Lorebook.id).where(Lorebook.user_id == owner_id)))

    async def count(
        self,
        session: AsyncSession,
        *,
        owner_id: UUID,
        container_ids: Sequence[UUID] | None = None,
    ) -> int:
        """See `Source`."""
        owned = select(func.count()).where(LoreEntryRow.user_id == owner_id)
        return await count_of(session, owned, LoreEntryRow.lorebook_id, container_ids)

    async def inventory(
        self, session: AsyncSession, container_id: UUID, *, owner_id: UUID
    ) -> dict[UUID, int] | None:
        """A book's entries in their order; None when there is no such book."""
        owned = Lorebook.id == container_id, Lorebook.user_id == owner_id
        if await session.scalar(select(Lorebook.id).where(*owned)) is None:
            return None
        rows = await session.execute(
            select(LoreEntryRow.id, LoreEntryRow.updated_at)
            .where(LoreEntryRow.lorebook_id == container_id)
            .order_by(LoreEntryRow.place)
        )
        return await inventory_of(rows)

    async def rows(
        self,
        session: AsyncSession,
        sealer: Sealer,
        container_id: UUID,
        source_ids: Sequence[UUID],
        *,
        neighbours: bool,  # noqa: ARG002  # entries stand by themselves
    ) -> list[SourceRow]:
        """Entries of a book that may be found by meaning."""
        fields = await _fields(session, sealer, container_id)
        return [
            SourceRow(
                source_id=row.id,
                size=len(row.sealed_entry),
                documents=partial(_documents, sealer, container_id, fields, row),
            )
            for row in await session.execute(_entries(source_ids, sealer.user_id))
        ]

    async def recall(
        self,
        session: AsyncSession,
        sealer: Sealer,
        source_ids: Collection[UUID],
        *,
        viewpoint: Viewpoint = GM,  # noqa: ARG002  # lore is for everyone
    ) -> dict[UUID, Recalled]:
        """Entries that are there, enabled, and may be found by meaning.

        One that comes from a branch which was left is not among them.
        """
        found: dict[UUID, Recalled] = {}
        fields: dict[UUID, BookFields] = {}
        for ids in split_chunks(list(source_ids)):
            query = _entries(ids, sealer.user_id).where(counting())
            for row in await session.execute(query):
                book_id = row.lorebook_id
                entry = _open(sealer, row)
                if book_id not in fields:
                    fields[book_id] = await _fields(session, sealer, book_id)
                # What was indexed before somebody switched it off is still in the index.
                if _may_be_found(entry, fields[book_id]):
                    found[row.id] = Recalled(
                        kind=self.kind,
                        source_id=row.id,
                        container_id=book_id,
                        title=entry.title or ", ".join(entry.keys[:3]),
                        text=split_decorators(entry.content)[1],
                    )
        return found


async def _fields(session: AsyncSession, sealer: Sealer, book_id: UUID) -> BookFields:
    sealed = await session.scalar(
        select(Lorebook.sealed_book).where(
            Lorebook.id == book_id, Lorebook.user_id == sealer.user_id
        )
    )
    return BookFields() if sealed is None else open_book(sealer, book_id, sealed)


def _may_be_found(entry: LoreEntry, fields: BookFields) -> bool:
    """Whether an entry may be found by its meaning; where neither it nor its book says, it may."""
    return entry.enabled and mode_of(entry, fields) != "keys"


def _entries(entry_ids: Sequence[UUID], owner_id: UUID) -> Select[UUID, UUID, datetime, bytes]:
    """The query for what is needed of entries."""
    return select(
        LoreEntryRow.id,
        LoreEntryRow.lorebook_id,
        LoreEntryRow.updated_at,
        LoreEntryRow.sealed_entry,
    ).where(LoreEntryRow.id.in_(entry_ids), skip_index(LoreEntryRow.user_id) == owner_id)


def _open(sealer: Sealer, row: Any) -> LoreEntry:
    return LORE_ENTRY.decode(sealer.open_bytes(ENTRY, row.id, row.sealed_entry))


def _documents(sealer: Sealer, book_id: UUID, fields: BookFields, row: Any) -> list[Document]:
    """What is indexed of an entry: nothing where it says nothing, or is switched off."""
    entry = _open(sealer, row)
    _, content = split_decorators(entry.content)
    if not _may_be_found(entry, fields) or not content.strip():
        return []
    return lore_documents(
        row.id,
        book_id,
        title=entry.title,
        keys=entry.keys,
        content=content,
        version=version_of(row.updated_at),
    )
