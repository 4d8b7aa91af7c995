"""Delete chats: first they are hidden, then their rows are deleted in many transactions."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import User
from backend.chats.files import delete_unused_files_in_batches
from backend.chats.models import Chat, ChatCharacter, Message
from backend.database.base import get_table, now
from backend.database.batches import Batches, ClaimEndedError, OnBatch
from backend.database.engine import Database

ABANDONED_AFTER = timedelta(minutes=15)
"""A hidden chat that has not changed for this time belongs to a process that was killed, or to a
deletion that has not ended."""

LEAVES_FIRST = (Message.position.desc(),)
"""The order in which messages are deleted, because each refers to the one above it."""


async def hide_chat(session: AsyncSession, chat: Chat) -> None:
    """Hide a chat that the caller has locked. Nothing finds it any more, and it counts nowhere."""
    chat.is_ready, chat.updated_at = False, now()
    chat.persona_id = chat.chronicle_id = chat.campaign_id = None
    chat.chronicle_enabled = False
    await session.flush()
    await session.execute(delete(ChatCharacter).where(ChatCharacter.chat_id == chat.id))


async def delete_hidden_chat(
    database: Database,
    chat_id: UUID,
    *,
    max_batches: int | None = None,
    on_batch: OnBatch | None = None,
) -> None:
    """Delete the rows of a hidden chat. It can be interrupted and repeated.

    The chats of a deleted account are left to its own deletion, because two would wait for each
    other's rows. Raises `OutOfBatchesError` if it needs more than `max_batches` transactions.
    """
    is_open = Chat.user_id.in_(select(User.id).where(User.deleted_at.is_(None)))
    is_it = Chat.id == chat_id, ~Chat.is_ready, is_open
    async with database.read() as session:
        owner_id = await session.scalar(select(Chat.user_id).where(*is_it))
    if owner_id is None:
        return
    batches = Batches(
        database,
        claim=select(Chat.id).where(*is_it).with_for_update(),
        max_batches=max_batches,
        on_batch=on_batch,
    )
    chats, messages = get_table(Chat), get_table(Message)
    try:
        # Messages go last, so that events and lore that were made from them stay active.
        await batches.delete_dependents(chats, chat_id, last={messages.name: LEAVES_FIRST})
        await delete_unused_files_in_batches(batches, owner_id)
        await batches.delete(chats, *is_it)
    except ClaimEndedError:
        return
