"""The book of a chronicle, in which the agent writes entries with their origin.

An entry is active while the last message it comes from is on the active path. Entries without a
source message, and those of a deleted chat, are always active. The caller commits and updates the
index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import Chat, Message
from backend.database.base import new_id, upsert
from backend.lorebooks import repository
from backend.lorebooks.entries import BookFields, LoreEntry, check_books, check_room
from backend.lorebooks.errors import LorebookNotFoundError
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.lorebooks.records import open_entry, seal_book, seal_entry
from backend.vault.sealing import Sealer


@dataclass(frozen=True, slots=True)
class EntryOrigin:
    """The origin of an agent's entry: its run and the last message that the run read."""

    run_id: UUID
    chat_id: UUID
    message_id: UUID


class _EntrySnapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of an entry, complete enough to restore it."""

    id: UUID
    place: int
    revision: int
    entry: LoreEntry
    agent_revision: int | None = None
    run_id: UUID | None = None
    chat_id: UUID | None = None
    message_id: UUID | None = None


def counting() -> ColumnElement[bool]:
    """Return the condition on `lore_entries` that selects active entries."""
    on_path = exists().where(Message.id == LoreEntryRow.source_message_id, Message.is_active)
    return or_(LoreEntryRow.source_chat_id.is_(None), on_path)


async def inactive_entries(
    session: AsyncSession, book_ids: Sequence[UUID], *, owner_id: UUID
) -> set[UUID]:
    """Return the entries whose source message is not on the active path of its chat."""
    query = select(LoreEntryRow.id).where(
        LoreEntryRow.lorebook_id.in_(book_ids), LoreEntryRow.user_id == owner_id, ~counting()
    )
    return set(await session.scalars(query))


async def find_chronicle_book(
    session: AsyncSession, chronicle_id: UUID, *, owner_id: UUID, lock: bool = False
) -> Lorebook | None:
    """Return the book of a chronicle. `lock` makes other writers wait."""
    return await repository.find_book(
        session, Lorebook.chronicle_id == chronicle_id, owner_id=owner_id, lock=lock
    )


async def chronicle_book(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, *, name: str
) -> Lorebook:
    """Return the locked book of a chronicle of the sealer's owner. Create it if necessary.

    Raises `LorebookFullError` if the account has the maximum number of books.
    """
    owner_id = sealer.user_id
    found = await find_chronicle_book(session, chronicle_id, owner_id=owner_id, lock=True)
    if found is not None:
        return found
    check_books(await repository.count_books(session, owner_id=owner_id))
    book_id = new_id()
    values = {
        "id": book_id,
        "user_id": owner_id,
        "chronicle_id": chronicle_id,
        "sealed_book": seal_book(sealer, book_id, BookFields(name=name[:500] or "Chronicle")),
    }
    # Another process may insert it at the same time. The upsert leaves one row.
    await upsert(session, Lorebook, values, key=("chronicle_id",))
    made = await find_chronicle_book(session, chronicle_id, owner_id=owner_id, lock=True)
    if made is None:
        raise LorebookNotFoundError
    return made


async def add_entry(
    session: AsyncSession, sealer: Sealer, book: Lorebook, entry: LoreEntry, origin: EntryOrigin
) -> LoreEntryRow:
    """Add an entry of the agent after the others. `book` is locked.

    Raises `LorebookFullError`.
    """
    count, place = await repository.find_end(session, book.id)
    check_room(count)
    entry_id = new_id()
    row = LoreEntryRow(
        id=entry_id,
        user_id=book.user_id,
        lorebook_id=book.id,
        place=place,
        agent_run_id=origin.run_id,
        agent_revision=1,
        source_chat_id=origin.chat_id,
        source_message_id=origin.message_id,
        sealed_entry=seal_entry(sealer, entry_id, entry),
        revision=1,
    )
    session.add(row)
    repository.touch(book)
    await session.flush()
    return row


async def change_entry(
    session: AsyncSession,
    sealer: Sealer,
    book: Lorebook,
    row: LoreEntryRow,
    entry: LoreEntry,
    origin: EntryOrigin | None,
) -> None:
    """Replace an entry. `origin` is None if a user made the change.

    An entry that still belongs to the agent gets the new `origin`. Entries that a user created or
    changed stay the user's after any later change.
    """
    was_own = is_own(row)
    row.sealed_entry = seal_entry(sealer, row.id, entry)
    repository.touch(row)
    if origin is not None and was_own:
        row.agent_run_id, row.agent_revision = origin.run_id, row.revision
        row.source_chat_id, row.source_message_id = origin.chat_id, origin.message_id
    repository.touch(book)
    await session.flush()


async def remove_entry(session: AsyncSession, book: Lorebook, row: LoreEntryRow) -> None:
    await session.delete(row)
    repository.touch(book)
    await session.flush()


def is_own(row: LoreEntryRow) -> bool:
    """True if the agent created the entry and no one has changed it since."""
    return row.agent_revision == row.revision


def snapshot(sealer: Sealer, row: LoreEntryRow) -> dict[str, Any]:
    """Return the entry in clear text, for `restore`."""
    kept: dict[str, Any] = msgspec.to_builtins(
        _EntrySnapshot(
            id=row.id,
            place=row.place,
            revision=row.revision,
            entry=open_entry(sealer, row),
            agent_revision=row.agent_revision,
            run_id=row.agent_run_id,
            chat_id=row.source_chat_id,
            message_id=row.source_message_id,
        )
    )
    return kept


async def restore(
    session: AsyncSession, sealer: Sealer, book: Lorebook, snapshot: dict[str, Any]
) -> LoreEntryRow:
    """Restore an entry under its id as a new revision, even if it was deleted.

    Raises `LorebookFullError` if it was deleted and the book is full.
    """
    kept = msgspec.convert(snapshot, _EntrySnapshot)
    row = await session.scalar(
        select(LoreEntryRow).where(
            LoreEntryRow.id == kept.id,
            LoreEntryRow.lorebook_id == book.id,
            LoreEntryRow.user_id == sealer.user_id,
        )
    )
    if row is None:
        count, end = await repository.find_end(session, book.id)
        check_room(count)
        taken = await repository.load_places(session, book.id)
        row = LoreEntryRow(
            id=kept.id,
            user_id=sealer.user_id,
            lorebook_id=book.id,
            place=end if kept.place in taken.values() else kept.place,
            revision=kept.revision + 1,
        )
        session.add(row)
    else:
        repository.touch(row)
    row.sealed_entry = seal_entry(sealer, kept.id, kept.entry)
    row.agent_run_id = kept.run_id
    was_own = kept.agent_revision == kept.revision
    row.agent_revision = row.revision if was_own else kept.agent_revision
    row.source_message_id = kept.message_id
    row.source_chat_id = await session.scalar(  # None if the chat was deleted
        select(Chat.id).where(Chat.id == kept.chat_id, Chat.user_id == sealer.user_id)
    )
    repository.touch(book)
    await session.flush()
    return row
