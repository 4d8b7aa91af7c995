"""Lorebooks: listing, searching, making, changing, deleting, and their way in and out of files."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from anyio import CapacityLimiter, to_thread
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.idempotency import KEPT_FOR
from backend.accounts.identity import Identity
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.lorebooks import repository, views
from backend.lorebooks.entries import BookFields
from backend.lorebooks.exporting import ExportedFile, export_file
from backend.lorebooks.importing import LoreRows, import_rows, insert_entries
from backend.lorebooks.limits import check_books
from backend.lorebooks.models import Lorebook
from backend.lorebooks.recollection import KIND
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
from backend.vault.sealing import digest
from backend.wire import Page, check_revision, merge_patch, reject_unknown

SEARCHED_AT_ONCE = 5_000
"""Books that one request looks through: their names are sealed, so no index finds them."""

PLACES = 2
"""Threads that read and write files at one time."""

_BOOK_NAMES = BookFields.__struct_fields__


class LorebookService:
    """What a user does with lorebooks."""

    def __init__(self, database: Database, outbox: IndexOutbox) -> None:
        self._database = database
        self._outbox = outbox
        self._threads = CapacityLimiter(PLACES)

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
        follows: UUID | None = None
        async with self._database.read() as session:
            rows = await repository.list_books(
                session, owner_id=identity.user_id, limit=bound + 1, after=after
            )
            for looked_at, row in enumerate(rows):
                if looked_at == bound or len(found) == limit:
                    follows = rows[looked_at - 1].id
                    break
                if not words or _matches(open_book(identity.sealer, row).name, words):
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
            before = open_book(sealer, book)
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

    async def import_file(
        self, identity: Identity, data: bytes, name: str, *, key: str | None
    ) -> ImportedLorebook:
        """Make a book of a file, in one transaction. What is refused stores nothing.

        `name` is what the book is called where the file does not say. A file that comes again with
        the same `key` is the book that it made, also where its first answer was never given: the
        process may have died behind the transaction.

        Raises `LoreFileError`, `LoreLimitError`, `TooLargeError`, `LorebookFullError`.
        """
        rows = await to_thread.run_sync(
            import_rows, identity.sealer, data, name, limiter=self._threads
        )
        async with self._database.write() as session:
            if key is not None:
                made = await self._made_before(session, identity, rows, data, key)
                if made is not None:
                    return _imported(made, rows, None)
            check_books(await repository.count_books(session, owner_id=identity.user_id))
            session.add(rows.book)
            await session.flush()
            await insert_entries(session, rows.entries)
            job_id = await self._outbox.changed(
                session, identity, kind=KIND, container_id=rows.book.id, source_ids=None
            )
        made = views.view(rows.book, rows.fields, entry_count=len(rows.entries))
        return _imported(made, rows, job_id)

    async def _made_before(
        self, session: AsyncSession, identity: Identity, rows: LoreRows, data: bytes, key: str
    ) -> LorebookView | None:
        """The book that the same request made; else its rows are marked as this request's."""
        secret = identity.sealer.derived("lorebook-import")
        request = digest(secret, identity.slot_id.bytes, key.encode(), data)
        rows.book.import_digest = request
        book = await repository.find_imported(
            session,
            request,
            owner_id=identity.user_id,
            since=now() - KEPT_FOR,
        )
        return await views.stored_view(session, identity.sealer, book) if book else None

    async def export(
        self, identity: Identity, book_id: UUID, file_format: ExportFormat
    ) -> ExportedFile:
        """A file that imports back to the same book. Raises `LorebookNotFoundError`."""
        async with self._database.read() as session:
            book = await repository.get_book(
                session, book_id, owner_id=identity.user_id, source=True
            )
            entries = await repository.sealed_entries(session, book_id, source=True)
        return await to_thread.run_sync(
            export_file, identity.sealer, book, entries, file_format, limiter=self._threads
        )


def _imported(made: LorebookView, rows: LoreRows, job_id: UUID | None) -> ImportedLorebook:
    return ImportedLorebook(
        lorebook=made, skipped=rows.skipped, warnings=rows.warnings, job_id=job_id
    )


def _matches(name: str, words: list[str]) -> bool:
    folded = name.casefold()
    return all(word in folded for word in words)


def _book_fields(fields: LorebookFields) -> BookFields:
    return BookFields(**{name: getattr(fields, name) for name in _BOOK_NAMES})
