"""Rolling summaries as they are stored: one a message, sealed; the deepest active one counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Select, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.chats.events import ChatCopied, MessageShown
from backend.chats.models import Chat, Message
from backend.chats.tree import subtree
from backend.database.base import Base, now, upsert
from backend.enrichment.models import CHAT_SUMMARY, ChatSummary, EnrichmentMark, EnrichmentRun
from backend.vault.sealing import Sealer

MAX_SUMMARY_CHARS = 20_000
"""Characters of a summary, whoever wrote it."""


_TELLS_ALL = Message.updated_at <= ChatSummary.updated_at
"""A reply may go on after it was summed up: what was added is in no summary through it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSummary:
    """A summary of the path down to and with a message.

    `position` and `path_tokens` are that message's, as they are now. `model` is who wrote it, where
    that is still known.
    """

    message_id: UUID
    position: int
    path_tokens: int
    text: str
    is_edited: bool
    revision: int
    model: str | None
    created_at: datetime
    updated_at: datetime


async def current_summary(
    session: AsyncSession, sealer: Sealer, chat: Chat, *, up_to_position: int | None = None
) -> StoredSummary | None:
    """The summary that reaches furthest down the active path, to `up_to_position` at most."""
    found = await active_summaries(session, sealer, chat, limit=1, up_to_position=up_to_position)
    return found[0] if found else None


async def active_summaries(
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    *,
    limit: int,
    up_to_position: int | None = None,
) -> list[StoredSummary]:
    """Summaries of messages on a chat's active path, the deepest first."""
    query = _summaries(sealer.user_id, chat.id).limit(limit)
    if up_to_position is not None:
        query = query.where(ChatSummary.position <= up_to_position)
    return [_opened(sealer, row) for row in await session.execute(query)]


async def store_summary(
    session: AsyncSession,
    sealer: Sealer,
    message: Message,
    text: str,
    *,
    run_id: UUID | None = None,
    is_edited: bool = False,
) -> None:
    """Keep a text as the summary through a message, in place of what was there."""
    at = now()
    update: dict[str, Any] = {
        "sealed_summary": sealer.seal(CHAT_SUMMARY, message.id, text),
        "is_edited": is_edited,
        "updated_at": at,
    }
    row = {
        "id": message.id,
        "user_id": message.user_id,
        "chat_id": message.chat_id,
        "position": message.position,
        "run_id": run_id,
        "revision": 1,
        "created_at": at,
        **update,
    }
    if run_id is not None:
        update["run_id"] = run_id
    again = {**update, "revision": ChatSummary.revision + 1}
    await upsert(session, ChatSummary, row, key=["id"], update=again)


class ChatSummaries(ChatCopied, MessageShown):
    """Keeps summaries with their chats, in the transactions that change the chats."""

    async def message_shown(
        self, session: AsyncSession, identity: Identity, message: Message
    ) -> None:
        """Drop the summaries through the message and below it that nobody edited.

        They do not tell of it; the job behind the next reply writes them anew.
        """
        await session.execute(
            delete(ChatSummary).where(
                ChatSummary.id.in_(select(subtree(message.id).c.id)),
                ChatSummary.user_id == identity.user_id,
                ~ChatSummary.is_edited,
            )
        )

    async def chat_copied(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        fork_id: UUID,
        copied: Mapping[UUID, UUID],
    ) -> None:
        """Copy a chat's summaries, and how far the agent has read, along the copied path.

        `copied` leads from messages to their copies.
        """
        sealer = identity.sealer
        owner = {"user_id": sealer.user_id, "chat_id": fork_id}
        summaries = await session.scalars(
            select(ChatSummary)
            .join(Message, Message.id == ChatSummary.id)
            .where(
                ChatSummary.chat_id == source_id, ChatSummary.user_id == sealer.user_id, _TELLS_ALL
            )
        )
        rows: list[dict[str, Any]] = [
            {
                **owner,
                "id": copied[row.id],
                "position": row.position,
                "is_edited": row.is_edited,
                "sealed_summary": sealer.seal(
                    CHAT_SUMMARY,
                    copied[row.id],
                    sealer.open(CHAT_SUMMARY, row.id, row.sealed_summary),
                ),
                "created_at": row.created_at,
                # Not before the copied message's, which is as new.
                "updated_at": now(),
            }
            for row in summaries
            if row.id in copied
        ]
        if rows:
            await session.execute(insert(ChatSummary), rows)
        table = Base.metadata.tables[EnrichmentMark.__tablename__]
        marks = await session.execute(
            select(table).where(table.c.chat_id == source_id, table.c.user_id == sealer.user_id)
        )
        read = [
            {**row, **owner, "id": copied[row["id"]]}
            for row in marks.mappings()
            if row["id"] in copied
        ]
        if read:
            await session.execute(insert(table), read)


def _summaries(owner_id: UUID, chat_id: UUID) -> Select[*tuple[Any, ...]]:
    return (
        select(
            ChatSummary.id,
            ChatSummary.sealed_summary,
            ChatSummary.is_edited,
            ChatSummary.revision,
            ChatSummary.created_at,
            ChatSummary.updated_at,
            Message.position,
            Message.path_tokens,
            EnrichmentRun.model,
        )
        .join(Message, Message.id == ChatSummary.id)
        .outerjoin(EnrichmentRun, EnrichmentRun.id == ChatSummary.run_id)
        .where(
            ChatSummary.chat_id == chat_id,
            ChatSummary.user_id == owner_id,
            Message.is_active,
            _TELLS_ALL,
        )
        .order_by(ChatSummary.position.desc())
    )


def _opened(sealer: Sealer, row: Any) -> StoredSummary:
    return StoredSummary(
        message_id=row.id,
        position=row.position,
        path_tokens=row.path_tokens,
        text=sealer.open(CHAT_SUMMARY, row.id, row.sealed_summary),
        is_edited=row.is_edited,
        revision=row.revision,
        model=row.model,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
