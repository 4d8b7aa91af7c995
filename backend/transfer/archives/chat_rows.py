"""Stores a chat of an archive with its whole tree, in batches, so that play goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import insert, update

from backend.accounts.auth.identity import Identity
from backend.chats.deletion import delete_hidden_chat
from backend.chats.models import CHAT_TITLE, Chat, ChatCharacter, Message
from backend.chats.service import choose_counting_model
from backend.chats.token_counting import CountUnit
from backend.chats.transfer import (
    ChatLog,
    build_message_rows,
    create_message_ids,
    get_list_columns,
)
from backend.core.cpu_pool import CpuPool
from backend.database.base import RecordCreated, get_table, new_id, now, split_chunks
from backend.database.engine import Database
from backend.generation.tokens import choose_tokenizer
from backend.llm.user_models import UserModels
from backend.memory.indexing.outbox import IndexOutbox
from backend.quotas.service import CheckAdded
from backend.transfer.archives.ids import NewMessage, translate_audience
from backend.transfer.chats.storing import touch_unfinished
from backend.transfer.contracts import ReportMessages

StoreParts = Callable[[UUID, Mapping[UUID, NewMessage]], Awaitable[None]]
"""Stores parts of an unfinished chat. Gets its id, and its messages by their old ids."""

INSERT_BATCH_ROWS = 500
"""Rows of a transaction. Storing them takes about 50 ms, in which SQLite has no other writer."""


class ChatTreeImporter:
    """Stores chats with all their messages. A chat is in no list until it is complete.

    Args:
        checks_added: Quotas that can refuse a chat.
    """

    def __init__(
        self,
        database: Database,
        outbox: IndexOutbox,
        pool: CpuPool,
        *,
        user_models: UserModels,
        checks_added: Collection[CheckAdded],
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._pool = pool
        self._user_models = user_models
        self._checks_added = checks_added

    async def store(
        self,
        identity: Identity,
        log: ChatLog,
        *,
        listeners: Mapping[UUID, UUID],
        report: ReportMessages,
        record: RecordCreated,
        store_parts: StoreParts | None = None,
    ) -> UUID:
        """Store a chat and return its id. Its characters and personas belong to the user.

        `listeners` are the user's characters by their ids in audiences.

        `store_parts` is called between the messages and the transaction that completes the chat.

        Raises `StorageQuotaExceededError`, and `ConflictError` if the unfinished chat was deleted.
        """
        async with self._database.read() as session:
            models = await self._user_models.of(session, identity.user, identity.sealer)
        tokenizer = choose_tokenizer(choose_counting_model(models, identity).tokenizer)
        unit = CountUnit(tokenizer, names=len(log.head.character_ids) > 1)
        chat_id, ids = new_id(), create_message_ids(log)
        rows = await self._run(
            identity,
            partial(
                build_message_rows,
                identity.sealer,
                log,
                chat_id=chat_id,
                unit=unit,
                ids=ids,
                audience=partial(translate_audience, items=listeners),
                people=log.list_people(),
            ),
        )
        await self._insert_head(identity, log, chat_id, unit)
        try:
            done = 0
            for part in split_chunks(rows, INSERT_BATCH_ROWS):
                async with self._database.write() as session:
                    await touch_unfinished(session, chat_id)
                    await session.execute(insert(get_table(Message)), list(part))
                done += len(part)
                await report(done)
            if store_parts is not None:
                places = {row["id"]: row["position"] for row in rows}
                await store_parts(
                    chat_id, {old: NewMessage(new, places[new]) for old, new in ids.items()}
                )
            async with self._database.write() as session:
                await touch_unfinished(session, chat_id)
                completed = {
                    "is_ready": True,
                    "leaf_id": ids[log.head.leaf_id] if log.head.leaf_id else None,
                    "updated_at": log.head.created_at.astimezone(UTC),
                }
                await session.execute(update(Chat).where(Chat.id == chat_id).values(completed))
                for check in self._checks_added:
                    await check(session, identity.user_id)
                await record(session, chat_id)
                await self._outbox.record_import(
                    session, identity, kind="message", container_id=chat_id
                )
        except BaseException:
            await asyncio.shield(self._remove(chat_id))
            raise
        return chat_id

    async def _insert_head(
        self, identity: Identity, log: ChatLog, chat_id: UUID, unit: CountUnit
    ) -> None:
        chat = {
            "id": chat_id,
            "user_id": identity.user_id,
            "sealed_title": identity.sealer.seal(CHAT_TITLE, chat_id, log.head.title),
            "persona_id": log.head.persona_id,
            "count_unit": str(unit),
            **get_list_columns(log.head),
            "is_ready": False,
            "created_at": log.head.created_at.astimezone(UTC),
            "updated_at": now(),
        }
        members = [
            {"chat_id": chat_id, "character_id": each, "place": place, "is_from_start": is_there}
            for place, (each, is_there) in enumerate(log.members.items())
        ]
        async with self._database.write() as session:
            await session.execute(insert(Chat), [chat])
            if members:
                await session.execute(insert(ChatCharacter), members)

    async def _remove(self, chat_id: UUID) -> None:
        """Delete an incomplete chat."""
        await delete_hidden_chat(self._database, chat_id)

    async def _run(
        self, identity: Identity, work: Callable[[], list[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        return await self._pool.run(identity.user_id, work, is_job=True)
