"""The entries of lorebooks as a source of memories: memory finds them by meaning, not by keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Select, exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.core.audience import GM, Viewpoint
from backend.database.base import get_table, skip_index, split_chunks
from backend.lorebooks.activation.compiled import split_decorators
from backend.lorebooks.authoring import counting
from backend.lorebooks.entries import BookFields, LoreEntry, find_mode
from backend.lorebooks.models import ENTRY, Lorebook, LoreEntryRow
from backend.lorebooks.records import LORE_ENTRY, open_book
from backend.memory.index.protocol import Kind
from backend.memory.indexing.documents import IndexDocument, build_lore_documents
from backend.memory.indexing.sources import (
    MemoryItem,
    SourceRow,
    SourceTable,
    TableSource,
    compute_version,
)
from backend.vault.sealing import Sealer

KIND: Final = "lore"


class LoreSource(TableSource):
    """Entries of lorebooks. `recall` drops those that may not be found by meaning."""

    kind: Kind = KIND
    table = SourceTable(
        containers=get_table(Lorebook),
        rows=get_table(LoreEntryRow),
        container_id=get_table(LoreEntryRow).c.lorebook_id,
        order=(LoreEntryRow.place,),
        is_listed=get_table(Lorebook).c.deleted_at.is_(None),
    )

    async def rows(
        self,
        session: AsyncSession,
        sealer: Sealer,
        container_id: UUID,
        source_ids: Sequence[UUID],
        *,
        neighbours: bool,  # noqa: ARG002  # an entry has no neighbours
    ) -> list[SourceRow]:
        """Return the entries of a book that may be found by meaning."""
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
    ) -> dict[UUID, MemoryItem]:
        """Return enabled entries that may be found by meaning.

        Entries of a branch that is no longer active are left out.
        """
        found: dict[UUID, MemoryItem] = {}
        fields: dict[UUID, BookFields] = {}
        for ids in split_chunks(list(source_ids)):
            query = _entries(ids, sealer.user_id).where(counting())
            for row in await session.execute(query):
                book_id = row.lorebook_id
                entry = _open(sealer, row)
                if book_id not in fields:
                    fields[book_id] = await _fields(session, sealer, book_id)
                # The index may still contain an entry that was disabled a moment ago.
                if _may_be_found(entry, fields[book_id]):
                    found[row.id] = MemoryItem(
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
            Lorebook.id == book_id, Lorebook.match_owner(sealer.user_id)
        )
    )
    return BookFields() if sealed is None else open_book(sealer, book_id, sealed)


def _may_be_found(entry: LoreEntry, fields: BookFields) -> bool:
    """True if an entry may be found by meaning. That is the default of entries and books."""
    return entry.enabled and find_mode(entry, fields) != "keys"


def _entries(entry_ids: Sequence[UUID], owner_id: UUID) -> Select[UUID, UUID, datetime, bytes]:
    """Build the query for entries of books that are not being deleted."""
    return select(
        LoreEntryRow.id,
        LoreEntryRow.lorebook_id,
        LoreEntryRow.updated_at,
        LoreEntryRow.sealed_entry,
    ).where(
        LoreEntryRow.id.in_(entry_ids),
        skip_index(LoreEntryRow.user_id) == owner_id,
        exists().where(Lorebook.id == LoreEntryRow.lorebook_id, Lorebook.deleted_at.is_(None)),
    )


def _open(sealer: Sealer, row: Any) -> LoreEntry:
    return LORE_ENTRY.decode(sealer.open_bytes(ENTRY, row.id, row.sealed_entry))


def _documents(sealer: Sealer, book_id: UUID, fields: BookFields, row: Any) -> list[IndexDocument]:
    """Build the documents of an entry; none if it is empty or may not be found by meaning."""
    entry = _open(sealer, row)
    _, content = split_decorators(entry.content)
    if not _may_be_found(entry, fields) or not content.strip():
        return []
    return build_lore_documents(
        row.id,
        book_id,
        title=entry.title,
        keys=entry.keys,
        content=content,
        version=compute_version(row.updated_at),
    )
