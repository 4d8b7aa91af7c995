"""Copy or clean up lorebook data when a chat is copied or deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import delete, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats.events import ChatCopied, ChatDeleted, MessageRemoved
from backend.chats.models import Chat, Message
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import new_id, now
from backend.database.types import Id
from backend.lorebooks import repository
from backend.lorebooks.activation.timed import TimedState
from backend.lorebooks.authoring import counting, find_chronicle_book, is_own
from backend.lorebooks.entries import check_books
from backend.lorebooks.files import insert_entries
from backend.lorebooks.index_source import KIND
from backend.lorebooks.models import LORE_STATE, ChatLorebook, Lorebook, LoreEntryRow, LoreState
from backend.lorebooks.records import open_book, open_entry, seal_book, seal_entry
from backend.memory.indexing.outbox import IndexOutbox
from backend.quotas.service import CheckAdded, check_nothing
from backend.vault.sealing import Sealer

BATCH_SIZE = 200
"""Entries read in one batch."""


class ChatLore(ChatCopied, ChatDeleted, MessageRemoved):
    """Copies a chat's lorebook data with it, and deletes entries of chats and messages."""

    def __init__(self, outbox: IndexOutbox, *, check_added: CheckAdded = check_nothing) -> None:
        self._outbox = outbox
        self._check_added = check_added

    async def chat_copied(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        fork_id: UUID,
        copied: Mapping[UUID, UUID],
    ) -> None:
        """Copy a chat's lorebook settings and the sticky and cooldown states along the copied path.

        `copied` maps messages to their copies. If the copy has a new chronicle, the book of the
        original chronicle is copied too, without entries whose source messages were not copied.
        Raises `LorebookFullError`, `StorageQuotaExceededError`.
        """
        links = select(literal(fork_id, Id()), ChatLorebook.lorebook_id, ChatLorebook.state).where(
            ChatLorebook.chat_id == source_id
        )
        await session.execute(
            insert(ChatLorebook).from_select(["chat_id", "lorebook_id", "state"], links)
        )
        entries = await self._copy_book(session, identity, source_id, fork_id, copied)
        await _copy_states(session, identity.sealer, source_id, fork_id, copied, entries)

    async def chat_deleted(self, session: AsyncSession, identity: Identity, chat: Chat) -> None:
        """Delete the chat's links and its inactive entries before the chat itself is deleted.

        Active entries become permanent, because the database clears their source chat.
        """
        rows = await session.execute(
            select(LoreEntryRow.id, LoreEntryRow.lorebook_id).where(
                LoreEntryRow.source_chat_id == chat.id,
                LoreEntryRow.user_id == identity.user_id,
                ~counting(),
            )
        )
        await session.execute(delete(ChatLorebook).where(ChatLorebook.chat_id == chat.id))
        left: dict[UUID, list[UUID]] = {}
        for entry_id, book_id in rows:
            left.setdefault(book_id, []).append(entry_id)
        for book_id, entry_ids in left.items():
            book = await _lock_book(session, identity, book_id)
            if book is None:
                continue
            await session.execute(delete(LoreEntryRow).where(LoreEntryRow.id.in_(entry_ids)))
            repository.touch(book)
            await self._outbox.changed(
                session, identity, kind=KIND, container_id=book_id, source_ids=entry_ids
            )

    async def message_removed(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,  # noqa: ARG002  # the entries name the message
        message: Message,
    ) -> None:
        """Delete the agent's entries that come from a removed message.

        Entries that a user has changed become permanent.
        """
        rows = await session.scalars(
            select(LoreEntryRow).where(
                LoreEntryRow.source_chat_id == message.chat_id,
                LoreEntryRow.source_message_id == message.id,
                LoreEntryRow.user_id == identity.user_id,
            )
        )
        found: dict[UUID, list[LoreEntryRow]] = {}
        for row in rows:
            found.setdefault(row.lorebook_id, []).append(row)
        for book_id, entries in found.items():
            book = await _lock_book(session, identity, book_id)
            if book is None:
                continue
            for row in entries:
                if is_own(row):
                    await session.delete(row)
                else:
                    row.source_chat_id = row.source_message_id = None
                    repository.touch(row)
            repository.touch(book)
            await session.flush()
            await self._outbox.changed(
                session,
                identity,
                kind=KIND,
                container_id=book_id,
                source_ids=[row.id for row in entries],
            )

    async def _copy_book(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        fork_id: UUID,
        copied: Mapping[UUID, UUID],
    ) -> dict[UUID, UUID]:
        """Copy the book of a chat's chronicle. Return the ids of the copies by original id."""
        owner_id, sealer = identity.user_id, identity.sealer
        query = select(Chat.id, Chat.chronicle_id).where(
            Chat.id.in_((source_id, fork_id)), Chat.user_id == owner_id
        )
        chronicles = dict((await session.execute(query)).all())
        source, fork = chronicles.get(source_id), chronicles.get(fork_id)
        if source is None or fork is None or source == fork:
            return {}
        book = await find_chronicle_book(session, source, owner_id=owner_id)
        if book is None:
            return {}
        check_books(await repository.count_books(session, owner_id=owner_id))
        copy_id = new_id()
        session.add(
            Lorebook(
                id=copy_id,
                user_id=owner_id,
                chronicle_id=fork,
                sealed_book=seal_book(
                    sealer, copy_id, open_book(sealer, book.id, book.sealed_book)
                ),
            )
        )
        await session.flush()
        rows: list[dict[str, Any]] = []
        entries: dict[UUID, UUID] = {}
        async for entry in _all_entries(session, book.id):
            if entry.source_chat_id != source_id or entry.source_message_id in copied:
                row = _copy_entry(sealer, entry, copy_id)
                if entry.source_chat_id == source_id and entry.source_message_id is not None:
                    row["source_chat_id"] = fork_id
                    row["source_message_id"] = copied[entry.source_message_id]
                rows.append(row)
                entries[entry.id] = row["id"]
        await insert_entries(session, rows)
        await self._check_added(session, owner_id)
        # The chat's setting of the original book applies to the copy.
        await session.execute(
            update(ChatLorebook)
            .where(ChatLorebook.chat_id == fork_id, ChatLorebook.lorebook_id == book.id)
            .values(lorebook_id=copy_id)
        )
        await self._outbox.changed(session, identity, kind=KIND, container_id=copy_id)
        return entries


async def _lock_book(session: AsyncSession, identity: Identity, book_id: UUID) -> Lorebook | None:
    """Lock a book for changes of its entries. None if it is being deleted with them."""
    return await repository.find_book(
        session, Lorebook.id == book_id, owner_id=identity.user_id, lock=True
    )


async def _all_entries(session: AsyncSession, book_id: UUID) -> AsyncIterator[LoreEntryRow]:
    """Yield a book's entries in order, with pauses for other tasks."""
    after: int | None = None
    while page := await repository.list_entries(session, book_id, limit=BATCH_SIZE, after=after):
        after = page[-1].place
        async for entry in iterate_in_slices(page, lambda entry: 2 * len(entry.sealed_entry)):
            yield entry


def _copy_entry(sealer: Sealer, entry: LoreEntryRow, book_id: UUID) -> dict[str, Any]:
    """Return a copy of a row without its run, so undoing that run keeps the copy."""
    copy_id, moment = new_id(), now()
    return {
        "id": copy_id,
        "user_id": entry.user_id,
        "lorebook_id": book_id,
        "place": entry.place,
        "agent_run_id": None,
        "agent_revision": 1 if is_own(entry) else None,
        "source_chat_id": entry.source_chat_id,
        "source_message_id": entry.source_message_id,
        "sealed_entry": seal_entry(sealer, copy_id, open_entry(sealer, entry)),
        "sealed_source": None,
        "revision": 1,
        "created_at": moment,
        "updated_at": moment,
    }


async def _copy_states(
    session: AsyncSession,
    sealer: Sealer,
    source_id: UUID,
    fork_id: UUID,
    copied: Mapping[UUID, UUID],
    entries: Mapping[UUID, UUID],
) -> None:
    """Copy sticky and cooldown states. `entries` maps entries to their copies."""
    states = await session.scalars(
        select(LoreState).where(LoreState.chat_id == source_id, LoreState.user_id == sealer.user_id)
    )
    for state in states.all():
        copy_id = copied.get(state.id)
        if copy_id is None:
            continue
        data = sealer.open_bytes(LORE_STATE, state.id, state.sealed_state)
        if entries:
            timed = TimedState.decode(data)
            effects = {entries.get(key, key): effect for key, effect in timed.effects.items()}
            data = TimedState(effects).encode()
        session.add(
            LoreState(
                id=copy_id,
                user_id=state.user_id,
                chat_id=fork_id,
                position=state.position,
                sealed_state=sealer.seal_bytes(LORE_STATE, copy_id, data),
            )
        )
