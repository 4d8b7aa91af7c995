"""Lorebooks: listing, searching, making, changing, deleting, and their way in and out of files."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from backend.accounts.idempotency import made_before, note_made
from backend.accounts.identity import Identity
from backend.accounts.settings import DEFAULT_MODE
from backend.cpu_pool import CpuPool
from backend.database.base import new_id
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.lorebooks import repository, views
from backend.lorebooks.entries import BookFields
from backend.lorebooks.exporting import ExportedFile, export_file
from backend.lorebooks.importing import LoreRows, import_rows, insert_entries
from backend.lorebooks.index_source import KIND
from backend.lorebooks.limits import check_books
from backend.lorebooks.models import Lorebook
from backend.lorebooks.records import open_book, sealed_book
from backend.lorebooks.schemas import (
    ExportFormat,
    ImportedLorebook,
    LorebookFields,
    LorebookItem,
    LorebookView,
    NewLorebook,
)
from backend.memory.outbox import IndexOutbox
from backend.quotas.service import CheckAdded, unlimited
from backend.wire import Page, check_revision, merge_patch, reject_unknown

SEARCHED_AT_ONCE = 5_000
"""Books that one request looks through: their names are sealed, so no index finds them."""

_BOOK_NAMES = BookFields.__struct_fields__


class LorebookService:
    """What a user does with lorebooks."""

    def __init__(
        self,
        database: Database,
        outbox: IndexOutbox,
        *,
        pool: CpuPool,
        check_added: CheckAdded = unlimited,
    ) -> None:
        self._check_added = check_added
        self._database = database
        self._outbox = outbox
        self._pool = pool

    async def list_page(
        self, identity: Identity, *, limit: int, after: UUID | None, search: str
    ) -> Page[LorebookItem]:
        """Books, newest first.

        With a `search`, those in whose name each of its words occurs; a page ends after
        `SEARCHED_AT_ONCE` books, however few were found among them.
        """
        words = search.casefold().split()
        bound = SEARCHED_AT_ONCE if words else limit
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
                if not words or _matches(
                    open_book(identity.sealer, row.id, row.sealed_book).name, words
                ):
                    found.append(row)
            shown = await views.items(session, identity.sealer, found)
        return Page(items=shown, next=str(follows) if follows else None)

    async def create(self, identity: Identity, new: NewLorebook) -> LorebookView:
        """Make a book without entries. Raises `LorebookFullError`."""
        fields, book_id = _book_fields(new), new_id()
        book = Lorebook(
            id=book_id,
            user_id=identity.user_id,
            is_global=new.is_global,
            sealed_book=sealed_book(identity.sealer, book_id, fields),
        )
        async with self._database.write() as session:
            check_books(await repository.count_books(session, owner_id=identity.user_id))
            session.add(book)
        return views.view(book, fields)

    async def get(self, identity: Identity, book_id: UUID) -> LorebookView:
        """Raises `LorebookNotFoundError`."""
        async with self._database.read() as session:
            book = await repository.get_book(session, book_id, owner_id=identity.user_id)
            return await views.stored_view(session, identity.sealer, book)

    async def patch(
        self, identity: Identity, book_id: UUID, patch: dict[str, Any], *, if_match: str | None
    ) -> LorebookView:
        """Merge into a book: what is absent stays, null goes back to the default.

        Raises `LorebookNotFoundError`, `PreconditionFailedError`, `ValidationError`.
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
            book.sealed_book = sealed_book(sealer, book_id, _book_fields(changed))
            repository.touch(book)
            await self._outbox.changed(
                session, identity, kind=KIND, container_id=book_id, source_ids=None
            )
            return await views.stored_view(session, sealer, book)

    async def delete(self, identity: Identity, book_id: UUID, *, if_match: str | None) -> None:
        """Delete a book with its entries and links.

        Raises `LorebookNotFoundError`, `PreconditionFailedError`.
        """
        async with self._database.write() as session:
            book = await repository.get_book(session, book_id, owner_id=identity.user_id, lock=True)
            check_revision(if_match, book.revision)
            await session.delete(book)
            await self._outbox.changed(
                session, identity, kind=KIND, container_id=book_id, source_ids=None
            )

    async def import_file(self, identity: Identity, data: bytes, name: str) -> ImportedLorebook:
        """Make a book of a file, in one transaction. What is refused stores nothing.

        `name` is what the book is called where the file does not say. A request that comes again
        is answered with the book that it made, also where its first answer was never given.

        Raises `LoreFileError`, `LoreLimitError`, `TooLargeError`, `LorebookFullError`,
        `StorageQuotaExceededError`.
        """
        rows = await self._pool.run(
            identity.user_id, partial(import_rows, identity.sealer, data, name)
        )
        async with self._database.write() as session:
            if (made_id := made_before()) is not None:
                book = await repository.get_book(session, made_id, owner_id=identity.user_id)
                made = await views.stored_view(session, identity.sealer, book)
                return _imported(identity, made, rows, None)
            check_books(await repository.count_books(session, owner_id=identity.user_id))
            session.add(rows.book)
            await session.flush()
            await insert_entries(session, rows.entries)
            await note_made(session, rows.book.id)
            await self._check_added(session, identity.user_id)
            job_id = await self._outbox.changed(
                session, identity, kind=KIND, container_id=rows.book.id, source_ids=None
            )
        made = views.view(rows.book, rows.fields, entry_count=len(rows.entries))
        return _imported(identity, made, rows, job_id)

    async def export(
        self, identity: Identity, book_id: UUID, file_format: ExportFormat
    ) -> ExportedFile:
        """A file that imports back to the same book. Raises `LorebookNotFoundError`."""
        async with self._database.read() as session:
            book = await repository.get_book(
                session, book_id, owner_id=identity.user_id, source=True
            )
            entries = await repository.sealed_entries(session, book_id, source=True)
        return await self._pool.run(
            identity.user_id, partial(export_file, identity.sealer, book, entries, file_format)
        )


def _imported(
    identity: Identity, made: LorebookView, rows: LoreRows, job_id: UUID | None
) -> ImportedLorebook:
    return ImportedLorebook(
        lorebook=made,
        skipped=rows.skipped,
        warnings=rows.warnings,
        found_by=made.mode or identity.settings.lore.mode or DEFAULT_MODE,
        job_id=job_id,
    )


def _matches(name: str, words: list[str]) -> bool:
    folded = name.casefold()
    return all(word in folded for word in words)


def _book_fields(fields: LorebookFields) -> BookFields:
    return BookFields(**{name: getattr(fields, name) for name in _BOOK_NAMES})
