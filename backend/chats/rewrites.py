"""Change stored messages in place: new texts, and which of them are hidden.

A message keeps its id, its children, and the records that belong to it. In the page, an edit adds a
sibling instead; a client that sends its whole list again has only one version of each message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats import repository, tree
from backend.chats.errors import EmptyMessageError, MessageNotFoundError
from backend.chats.events import MessageShown, MessagesRewritten
from backend.chats.index_source import find_windows_below
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.chats.text_digests import TextDigester
from backend.chats.token_counting import CountUnit
from backend.core.cpu_pool import CpuPool, check_stopped
from backend.core.events import Participants
from backend.database.base import now, split_chunks
from backend.database.engine import Database
from backend.memory.indexing.outbox import IndexOutbox
from backend.vault.sealing import OVERHEAD, Sealer


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageChanges:
    """Changes of messages of one chat. A message with a new text may be shown or hidden as well.

    Attributes:
        texts: New texts by message.
        hides: Messages to exclude from prompts.
        shows: Messages to include in prompts again.
    """

    texts: Mapping[UUID, str] = field(default_factory=dict[UUID, str])
    hides: Collection[UUID] = ()
    shows: Collection[UUID] = ()

    def __bool__(self) -> bool:
        return bool(self.texts or self.hides or self.shows)

    @property
    def message_ids(self) -> set[UUID]:
        return {*self.texts, *self.hides, *self.shows}


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedChanges:
    """Changes with the sealed texts, counted in one unit: the columns of each message."""

    changes: MessageChanges
    unit: str
    columns: Mapping[UUID, Mapping[str, Any]]


class MessageRewriter:
    """Prepares changes outside a transaction, and applies them inside the caller's."""

    def __init__(
        self, database: Database, index: IndexOutbox, pool: CpuPool, participants: Participants
    ) -> None:
        self._database = database
        self._index = index
        self._pool = pool
        self._participants = participants

    async def seal(
        self, identity: Identity, chat_id: UUID, changes: MessageChanges
    ) -> SealedChanges:
        """Seal and count the new texts in the chat's present unit.

        Raises `ChatNotFoundError` and `MessageNotFoundError`.
        """
        async with self._database.read() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=identity.user_id)
            rows = [
                row
                for ids in split_chunks(list(changes.texts))
                for row in await session.execute(
                    select(Message.id, Message.role, Message.sealed_author).where(
                        Message.id.in_(ids),
                        Message.chat_id == chat.id,
                        Message.user_id == identity.user_id,
                    )
                )
            ]
        if len(rows) < len(changes.texts):
            raise MessageNotFoundError
        columns = await self._pool.run(
            identity.user_id,
            partial(_seal_texts, identity.sealer, rows, changes.texts, chat.count_unit),
            size=sum(map(len, changes.texts.values())),
        )
        return SealedChanges(changes=changes, unit=chat.count_unit, columns=columns)

    async def apply(
        self, session: AsyncSession, identity: Identity, chat: Chat, sealed: SealedChanges
    ) -> bool:
        """Apply the changes. The chat's row is locked.

        Returns False, and changes nothing, if the chat's unit of counts is not that of the texts.

        Raises `MessageNotFoundError`, `MessageBusyError`, `EmptyMessageError`,
        `PresenceMessageError`.
        """
        if chat.count_unit != sealed.unit:
            return False
        changes, at = sealed.changes, now()
        messages = await _load_messages(session, chat, changes.message_ids)
        for message in messages:
            repository.check_finished(message)
            repository.check_no_presence(message)
        for rewritten in self._participants.find_handlers(MessagesRewritten):
            await rewritten.messages_rewritten(session, identity, list(changes.texts), at)
        hidden = {message.id for message in messages if message.hidden}
        sums: dict[UUID, int] = {}
        for message in messages:
            before = _get_cost(message)
            _change_message(message, sealed, at)
            sums[message.id] = _get_cost(message) - before
        # A cache of the chat's history reads the texts again.
        chat.hidden_changes += 1
        await session.flush()
        await tree.add_to_sums(session, chat, sums)
        for handler in self._participants.find_handlers(MessageShown):
            for message in messages:
                if message.id in hidden and not message.hidden:
                    await handler.message_shown(session, identity, message)
        await self._queue_index(session, identity, chat, list(changes.texts))
        return True

    async def _queue_index(
        self, session: AsyncSession, identity: Identity, chat: Chat, rewritten: Sequence[UUID]
    ) -> None:
        if rewritten:
            below = await find_windows_below(session, rewritten)
            await self._index.changed(
                session,
                identity,
                kind="message",
                container_id=chat.id,
                source_ids=[*rewritten, *below],
            )


def _change_message(message: Message, sealed: SealedChanges, at: datetime) -> None:
    columns, changes = sealed.columns.get(message.id), sealed.changes
    if columns is not None:
        for name, value in columns.items():
            setattr(message, name, value)
        message.sealed_typed = None
        message.updated_at = at
    if message.id in changes.shows and len(message.sealed_content) <= OVERHEAD:
        raise EmptyMessageError("Its text is empty for a model. Enter some text.")
    if message.id in changes.hides or message.id in changes.shows:
        message.hidden = message.id in changes.hides


def _get_cost(message: Message) -> int:
    return 0 if message.hidden else message.tokens


async def _load_messages(
    session: AsyncSession, chat: Chat, message_ids: Collection[UUID]
) -> list[Message]:
    found: list[Message] = []
    for ids in split_chunks(list(message_ids)):
        query = select(Message).where(
            Message.id.in_(ids), Message.chat_id == chat.id, Message.user_id == chat.user_id
        )
        found += await session.scalars(query.execution_options(populate_existing=True))
    if len(found) < len(message_ids):
        raise MessageNotFoundError
    return found


def _seal_texts(
    sealer: Sealer, rows: Sequence[Any], texts: Mapping[UUID, str], unit: str
) -> dict[UUID, dict[str, Any]]:
    """Return the columns of messages with new texts. CPU-bound."""
    digester = TextDigester(sealer)
    authors = [sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author) for row in rows]
    lines = [(author, texts[row.id]) for author, row in zip(authors, rows, strict=True)]
    columns: dict[UUID, dict[str, Any]] = {}
    for row, tokens in zip(rows, CountUnit.parse(unit).count_many(lines), strict=True):
        check_stopped()
        columns[row.id] = {
            "sealed_content": sealer.seal(MESSAGE_CONTENT, row.id, texts[row.id]),
            "text_digest": digester.compute(row.role, texts[row.id]),
            "tokens": tokens,
            "token_counts": msgspec.json.encode({unit: tokens}).decode(),
        }
    return columns
