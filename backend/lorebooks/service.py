"""Create, read, change, delete, import and export lorebooks and their entries."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.idempotency import find_made_id, record_made
from backend.accounts.auth.identity import Identity
from backend.accounts.profile.settings import DEFAULT_LORE_MODE
from backend.characters.card_rows import FileDownload
from backend.core.cpu_pool import CpuPool
from backend.database.base import RecordCreated, new_id, record_nothing
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.http.schemas import Page, check_revision, merge_patch, reject_unknown
from backend.lorebooks import records as views
from backend.lorebooks import repository
from backend.lorebooks.entries import BookFields, LoreEntry, check_books, check_room
from backend.lorebooks.files import LoreRows, export_file, import_rows, insert_entries
from backend.lorebooks.index_source import KIND
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.lorebooks.records import open_book, open_entry, seal_book, seal_entry
from backend.lorebooks.schemas import (
    ExportFormat,
    ImportedLorebook,
    LorebookFields,
    LorebookItem,
    LorebookView,
    LoreEntryView,
    NewLorebook,
    NewLoreEntry,
)
from backend.memory.indexing.outbox import IndexOutbox
from backend.quotas.service import CheckAdded, check_nothing

MAX_SEARCHED_BOOKS = 5_000
"""Books that one request searches. Names are sealed, so there is no index of them."""

ORDER_BATCH_SIZE = 500
"""Entries whose places are written in one statement."""

_BOOK_NAMES = BookFields.__struct_fields__
_ENTRY_NAMES = LoreEntry.__struct_fields__


class LorebookService:
    """Operations of a user on lorebooks and entries. Changing an entry also changes its book.

    All methods raise `LorebookNotFoundError` or `LoreEntryNotFoundError` if the row does not exist
    or belongs to another user, and `PreconditionFailedError` if `if_match` is another revision.
    """

    def __init__(
        self,
        database: Database,
        outbox: IndexOutbox,
        *,
        pool: CpuPool,
        check_added: CheckAdded = check_nothing,
    ) -> None:
        self._check_added = check_added
        self._database = database
        self._outbox = outbox
        self._pool = pool

    async def list_page(
        self, identity: Identity, *, limit: int, after: UUID | None, search: str
    ) -> Page[LorebookItem]:
        """List books, newest first.

        `search` finds names that contain each of its words. A page ends after `MAX_SEARCHED_BOOKS`
        books even if few of them matched.
        """
        sealer = identity.sealer
        words = search.casefold().split()
        bound = MAX_SEARCHED_BOOKS if words else limit
        found: list[Lorebook] = []
        looked_at, last, follows = 0, after, None
        async with self._database.read() as session:
            async for row in repository.books_after(
                session, owner_id=identity.user_id, after=after
            ):
                if looked_at == bound or len(found) == limit:
                    follows = last
                    break
                looked_at, last = looked_at + 1, row.id
                name = open_book(sealer, row.id, row.sealed_book).name.casefold() if words else ""
                if all(word in name for word in words):
                    found.append(row)
            shown = await views.items(session, sealer, found)
        return Page(items=shown, next=str(follows) if follows else None)

    async def create(self, identity: Identity, new: NewLorebook) -> LorebookView:
        """Create a book without entries. Raises `LorebookFullError`."""
        fields, book_id = _book_fields(new), new_id()
        book = Lorebook(
            id=book_id,
            user_id=identity.user_id,
            is_global=new.is_global,
            sealed_book=seal_book(identity.sealer, book_id, fields),
        )
        async with self._database.write() as session:
            check_books(await repository.count_books(session, owner_id=identity.user_id))
            session.add(book)
        return views.view(book, fields)

    async def get(self, identity: Identity, book_id: UUID) -> LorebookView:
        async with self._database.read() as session:
            book = await repository.get_book(session, book_id, owner_id=identity.user_id)
            return await views.load_view(session, identity.sealer, book)

    async def patch(
        self, identity: Identity, book_id: UUID, patch: dict[str, Any], *, if_match: str | None
    ) -> LorebookView:
        """Merge `patch` into a book. Absent fields are kept, null resets one to its default.

        Raises `ValidationError`.
        """
        reject_unknown(patch, LorebookFields)
        sealer = identity.sealer
        async with self._database.write() as session:
            book = await repository.get_book(session, book_id, owner_id=identity.user_id, lock=True)
            check_revision(if_match, book.revision)
            before = open_book(sealer, book.id, book.sealed_book)
            current = LorebookFields(**msgspec.structs.asdict(before), is_global=book.is_global)
            changed = merge_patch(current, patch)
            if not changed.name.strip():
                raise ValidationError("A lorebook needs a name.")
            book.is_global = changed.is_global
            book.sealed_book = seal_book(sealer, book_id, _book_fields(changed))
            repository.touch(book)
            await self._outbox.changed(session, identity, kind=KIND, container_id=book_id)
            return await views.load_view(session, sealer, book)

    async def delete(self, identity: Identity, book_id: UUID, *, if_match: str | None) -> None:
        async with self._database.write() as session:
            book = await repository.get_book(session, book_id, owner_id=identity.user_id, lock=True)
            check_revision(if_match, book.revision)
            await repository.hide_book(session, book)
            await self._outbox.changed(session, identity, kind=KIND, container_id=book_id)

    async def import_file(
        self,
        identity: Identity,
        data: bytes,
        name: str,
        *,
        record: RecordCreated = record_nothing,
    ) -> ImportedLorebook:
        """Create a book from a file in one transaction. If it is refused, nothing is stored.

        `name` is used if the file contains no name. A repeated request returns the book that the
        first one created, even if the first response was lost.

        Raises `LoreFileError`, `LoreLimitError`, `TooLargeError`, `LorebookFullError`,
        `StorageQuotaExceededError`.
        """
        rows = await self._pool.run(
            identity.user_id, partial(import_rows, identity.sealer, data, name)
        )
        async with self._database.write() as session:
            if (made_id := find_made_id()) is not None:
                book = await repository.get_book(session, made_id, owner_id=identity.user_id)
                made = await views.load_view(session, identity.sealer, book)
                return _build_result(identity, made, rows, None)
            check_books(await repository.count_books(session, owner_id=identity.user_id))
            session.add(rows.book)
            await session.flush()
            await insert_entries(session, rows.entries)
            await record_made(session, rows.book.id)
            await record(session, rows.book.id)
            await self._check_added(session, identity.user_id)
            job_id = await self._outbox.changed(
                session, identity, kind=KIND, container_id=rows.book.id
            )
        made = views.view(rows.book, rows.fields, len(rows.entries))
        return _build_result(identity, made, rows, job_id)

    async def export(
        self, identity: Identity, book_id: UUID, file_format: ExportFormat
    ) -> FileDownload:
        """Return a file that imports as the same book."""
        async with self._database.read() as session:
            book = await repository.get_book(
                session, book_id, owner_id=identity.user_id, source=True
            )
            entries = await repository.load_sealed_entries(session, book_id, source=True)
        return await self._pool.run(
            identity.user_id, partial(export_file, identity.sealer, book, entries, file_format)
        )

    async def list_entries(
        self, identity: Identity, book_id: UUID, *, limit: int, after: int | None
    ) -> Page[LoreEntryView]:
        async with self._database.read() as session:
            await repository.get_book(session, book_id, owner_id=identity.user_id)
            rows = await repository.list_entries(session, book_id, limit=limit + 1, after=after)
        shown = [views.entry_view(row, open_entry(identity.sealer, row)) for row in rows[:limit]]
        return Page(items=shown, next=str(shown[-1].place) if len(rows) > limit else None)

    async def create_entry(
        self, identity: Identity, book_id: UUID, new: NewLoreEntry
    ) -> LoreEntryView:
        """Create an entry after the others.

        Raises `LorebookFullError`, `StorageQuotaExceededError`.
        """
        entry = LoreEntry(**{name: getattr(new, name) for name in _ENTRY_NAMES})
        entry_id = new_id()
        sealed = seal_entry(identity.sealer, entry_id, entry)
        async with self._database.write() as session:
            book = await repository.get_book(session, book_id, owner_id=identity.user_id, lock=True)
            count, place = await repository.find_end(session, book_id)
            check_room(count)
            row = LoreEntryRow(
                id=entry_id,
                user_id=identity.user_id,
                lorebook_id=book_id,
                place=place,
                sealed_entry=sealed,
            )
            session.add(row)
            repository.touch(book)
            await session.flush()
            await self._check_added(session, identity.user_id)
            await self._note_entry(session, identity, row)
        return views.entry_view(row, entry)

    async def get_entry(self, identity: Identity, book_id: UUID, entry_id: UUID) -> LoreEntryView:
        async with self._database.read() as session:
            row = await repository.get_entry(session, book_id, entry_id, owner_id=identity.user_id)
        return views.entry_view(row, open_entry(identity.sealer, row))

    async def patch_entry(
        self,
        identity: Identity,
        book_id: UUID,
        entry_id: UUID,
        patch: dict[str, Any],
        *,
        if_match: str | None,
    ) -> LoreEntryView:
        """Merge `patch` into an entry. Absent fields are kept, null resets one to its default.

        Raises `ValidationError`.
        """
        reject_unknown(patch, LoreEntry)
        sealer = identity.sealer
        async with self._database.write() as session:
            book = await repository.get_book(session, book_id, owner_id=identity.user_id, lock=True)
            row = await repository.get_entry(session, book_id, entry_id, owner_id=identity.user_id)
            check_revision(if_match, row.revision)
            entry = merge_patch(open_entry(sealer, row), patch)
            row.sealed_entry = seal_entry(sealer, entry_id, entry)
            repository.touch(row)
            repository.touch(book)
            await self._note_entry(session, identity, row)
        return views.entry_view(row, entry)

    async def delete_entry(
        self, identity: Identity, book_id: UUID, entry_id: UUID, *, if_match: str | None
    ) -> None:
        async with self._database.write() as session:
            book = await repository.get_book(session, book_id, owner_id=identity.user_id, lock=True)
            row = await repository.get_entry(session, book_id, entry_id, owner_id=identity.user_id)
            check_revision(if_match, row.revision)
            await session.delete(row)
            repository.touch(book)
            await self._note_entry(session, identity, row)

    async def order_entries(self, identity: Identity, book_id: UUID, entry_ids: list[UUID]) -> None:
        """Set the order of all entries of a book.

        Raises `ValidationError` unless each entry is named once.
        """
        async with self._database.write() as session:
            book = await repository.get_book(session, book_id, owner_id=identity.user_id, lock=True)
            places = await repository.load_places(session, book_id)
            if len(entry_ids) != len(places) or set(entry_ids) != places.keys():
                raise ValidationError("Send the id of each entry of the lorebook exactly once.")
            moved = [
                {"id": entry_id, "place": place}
                for place, entry_id in enumerate(entry_ids)
                if places[entry_id] != place
            ]
            for start in range(0, len(moved), ORDER_BATCH_SIZE):
                await session.execute(update(LoreEntryRow), moved[start : start + ORDER_BATCH_SIZE])
            if moved:
                repository.touch(book)

    async def _note_entry(
        self, session: AsyncSession, identity: Identity, row: LoreEntryRow
    ) -> None:
        await self._outbox.changed(
            session, identity, kind=KIND, container_id=row.lorebook_id, source_ids=[row.id]
        )


def _build_result(
    identity: Identity, made: LorebookView, rows: LoreRows, job_id: UUID | None
) -> ImportedLorebook:
    return ImportedLorebook(
        lorebook=made,
        skipped=rows.skipped,
        warnings=rows.warnings,
        found_by=made.mode or identity.settings.lore.mode or DEFAULT_LORE_MODE,
        job_id=job_id,
    )


def _book_fields(fields: LorebookFields) -> BookFields:
    return BookFields(**{name: getattr(fields, name) for name in _BOOK_NAMES})
