"""Entries of lorebooks: each change is a change of its book."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.database.base import new_id
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.lorebooks import repository
from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.index_source import KIND
from backend.lorebooks.limits import check_room
from backend.lorebooks.models import LoreEntryRow
from backend.lorebooks.records import open_entry, sealed_entry
from backend.lorebooks.schemas import LoreEntryView, NewLoreEntry
from backend.lorebooks.views import entry_view
from backend.memory.outbox import IndexOutbox
from backend.quotas.service import CheckAdded, unlimited
from backend.wire import Page, check_revision, merge_patch, reject_unknown

_ENTRY_NAMES = LoreEntry.__struct_fields__


MOVED_AT_ONCE = 500
"""Entries whose places are written in one go."""


class LoreEntryService:
    """What a user does with the entries of a lorebook."""

    def __init__(
        self, database: Database, outbox: IndexOutbox, *, check_added: CheckAdded = unlimited
    ) -> None:
        self._check_added = check_added
        self._database = database
        self._outbox = outbox

    async def list_page(
        self, identity: Identity, book_id: UUID, *, limit: int, after: int | None
    ) -> Page[LoreEntryView]:
        """A book's entries in their order. Raises `LorebookNotFoundError`."""
        async with self._database.read() as session:
            await repository.get_book(session, book_id, owner_id=identity.user_id)
            rows = await repository.list_entries(session, book_id, limit=limit + 1, after=after)
        shown = [entry_view(row, open_entry(identity.sealer, row)) for row in rows[:limit]]
        return Page(items=shown, next=str(shown[-1].place) if len(rows) > limit else None)

    async def create(self, identity: Identity, book_id: UUID, new: NewLoreEntry) -> LoreEntryView:
        """Put an entry after the others.

        Raises `LorebookNotFoundError`, `LorebookFullError`, `StorageQuotaExceededError`.
        """
        entry = LoreEntry(**{name: getattr(new, name) for name in _ENTRY_NAMES})
        entry_id = new_id()
        sealed = sealed_entry(identity.sealer, entry_id, entry)
        async with self._database.write() as session:
            book = await repository.get_book(session, book_id, owner_id=identity.user_id, lock=True)
            count, place = await repository.end_of_book(session, book_id)
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
            await self._note(session, identity, book_id, entry_id)
        return entry_view(row, entry)

    async def get(self, identity: Identity, book_id: UUID, entry_id: UUID) -> LoreEntryView:
        """Raises `LoreEntryNotFoundError`."""
        async with self._database.read() as session:
            row = await repository.get_entry(session, book_id, entry_id, owner_id=identity.user_id)
        return entry_view(row, open_entry(identity.sealer, row))

    async def patch(
        self,
        identity: Identity,
        book_id: UUID,
        entry_id: UUID,
        patch: dict[str, Any],
        *,
        if_match: str | None,
    ) -> LoreEntryView:
        """Merge into an entry: what is absent stays, null goes back to the default.

        Raises `LorebookNotFoundError`, `LoreEntryNotFoundError`, `PreconditionFailedError`,
        `ValidationError`.
        """
        reject_unknown(patch, LoreEntry)
        sealer = identity.sealer
        async with self._database.write() as session:
            book = await repository.get_book(session, book_id, owner_id=identity.user_id, lock=True)
            row = await repository.get_entry(session, book_id, entry_id, owner_id=identity.user_id)
            check_revision(if_match, row.revision)
            entry = merge_patch(open_entry(sealer, row), patch)
            row.sealed_entry = sealed_entry(sealer, entry_id, entry)
            repository.touch(row)
            repository.touch(book)
            await self._note(session, identity, book_id, entry_id)
        return entry_view(row, entry)

    async def delete(
        self, identity: Identity, book_id: UUID, entry_id: UUID, *, if_match: str | None
    ) -> None:
        """Delete an entry.

        Raises `LorebookNotFoundError`, `LoreEntryNotFoundError`, `PreconditionFailedError`.
        """
        async with self._database.write() as session:
            book = await repository.get_book(session, book_id, owner_id=identity.user_id, lock=True)
            row = await repository.get_entry(session, book_id, entry_id, owner_id=identity.user_id)
            check_revision(if_match, row.revision)
            await session.delete(row)
            repository.touch(book)
            await self._note(session, identity, book_id, entry_id)

    async def reorder(self, identity: Identity, book_id: UUID, entry_ids: list[UUID]) -> None:
        """Put all entries of a book in this order.

        Raises `LorebookNotFoundError`, and `ValidationError` unless each entry is named once.
        """
        async with self._database.write() as session:
            book = await repository.get_book(session, book_id, owner_id=identity.user_id, lock=True)
            places = await repository.places(session, book_id)
            if len(entry_ids) != len(places) or set(entry_ids) != places.keys():
                raise ValidationError("Name each entry of the lorebook once, and no other.")
            moved = [
                {"id": entry_id, "place": place}
                for place, entry_id in enumerate(entry_ids)
                if places[entry_id] != place
            ]
            for start in range(0, len(moved), MOVED_AT_ONCE):
                await session.execute(update(LoreEntryRow), moved[start : start + MOVED_AT_ONCE])
            if moved:
                repository.touch(book)

    async def _note(
        self, session: AsyncSession, identity: Identity, book_id: UUID, entry_id: UUID
    ) -> None:
        await self._outbox.changed(
            session, identity, kind=KIND, container_id=book_id, source_ids=[entry_id]
        )
