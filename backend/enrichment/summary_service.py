"""Rolling summaries, for people: reading them, writing them, dropping them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.chats import repository as chats
from backend.chats.errors import MessageBusyError
from backend.chats.models import Chat, Message
from backend.chats.service import read_settings
from backend.database.engine import Database
from backend.enrichment.errors import SummaryNotFoundError
from backend.enrichment.models import ChatSummary
from backend.enrichment.schemas import NewSummary, SummaryView
from backend.enrichment.summaries import (
    StoredSummary,
    active_summaries,
    current_summary,
    store_summary,
)
from backend.errors import ValidationError
from backend.wire import Page, check_revision

InPrompt = Callable[[Identity, UUID], Awaitable[bool]]
"""Whether a chat's next prompt would have its summary."""


class SummaryService:
    """What a user does with the summaries of their chats."""

    def __init__(self, database: Database, *, in_prompt: InPrompt) -> None:
        self._database = database
        self._in_prompt = in_prompt

    async def get(self, identity: Identity, chat_id: UUID) -> SummaryView:
        """The current summary. Raises `ChatNotFoundError`, `SummaryNotFoundError`."""
        async with self._database.read() as session:
            chat = await chats.get_chat(session, chat_id, owner_id=identity.user_id)
            summary = await current_summary(session, identity.sealer, chat)
        return await self._view(identity, chat, summary)

    async def list_page(
        self, identity: Identity, chat_id: UUID, *, limit: int, before: int | None
    ) -> Page[SummaryView]:
        """Summaries along the active path, the deepest first, above position `before`.

        Raises `ChatNotFoundError`.
        """
        async with self._database.read() as session:
            chat = await chats.get_chat(session, chat_id, owner_id=identity.user_id)
            current = await current_summary(session, identity.sealer, chat)
            found = await active_summaries(
                session,
                identity.sealer,
                chat,
                limit=limit + 1,
                up_to_position=None if before is None else before - 1,
            )
        is_used = current is not None and await self._is_used(identity, chat)
        items = [
            SummaryView.of(
                each,
                is_used=is_used and current is not None and each.message_id == current.message_id,
            )
            for each in found[:limit]
        ]
        more = len(found) > limit
        return Page(items=items, next=str(items[-1].through_position) if more else None)

    async def put(
        self, identity: Identity, chat_id: UUID, new: NewSummary, *, if_match: str | None
    ) -> SummaryView:
        """Change the current summary, or write one through a message that lies further down.

        Raises `ChatNotFoundError`, `MessageNotFoundError`, `MessageBusyError`, `ValidationError`,
        `PreconditionFailedError`.
        """
        text = new.text.strip()
        if not text:
            raise ValidationError("text holds nothing but blanks.")
        sealer = identity.sealer
        async with self._database.write() as session:
            chat = await chats.get_chat(session, chat_id, owner_id=identity.user_id, lock=True)
            current = await current_summary(session, sealer, chat)
            check_revision(if_match, current.revision if current else 0)
            message = await _through(session, identity, chat, current, new.through_message_id)
            await store_summary(session, sealer, message, text, is_edited=True)
            summary = await current_summary(session, sealer, chat)
        return await self._view(identity, chat, summary)

    async def delete(self, identity: Identity, chat_id: UUID, *, if_match: str | None) -> None:
        """Drop the current summary: the one before it is current again.

        Raises `ChatNotFoundError`, `SummaryNotFoundError`, `PreconditionFailedError`.
        """
        async with self._database.write() as session:
            chat = await chats.get_chat(session, chat_id, owner_id=identity.user_id, lock=True)
            current = await current_summary(session, identity.sealer, chat)
            if current is None:
                raise SummaryNotFoundError
            check_revision(if_match, current.revision)
            await session.execute(
                delete(ChatSummary).where(
                    ChatSummary.id == current.message_id, ChatSummary.user_id == identity.user_id
                )
            )

    async def _view(
        self, identity: Identity, chat: Chat, summary: StoredSummary | None
    ) -> SummaryView:
        if summary is None:
            raise SummaryNotFoundError
        return SummaryView.of(summary, is_used=await self._is_used(identity, chat))

    async def _is_used(self, identity: Identity, chat: Chat) -> bool:
        settings = read_settings(identity.sealer, chat)
        is_wanted = settings.summary.enabled or chat.campaign_id is not None
        return is_wanted and await self._in_prompt(identity, chat.id)


async def _through(
    session: AsyncSession,
    identity: Identity,
    chat: Chat,
    current: StoredSummary | None,
    message_id: UUID | None,
) -> Message:
    """The message with which a summary ends that becomes the current one."""
    if message_id is None:
        if current is None:
            raise ValidationError(
                "Nothing is summarised yet: say with through_message_id how far the text goes."
            )
        message_id = current.message_id
    message = await chats.get_message(session, message_id, owner_id=identity.user_id)
    if message.chat_id != chat.id:
        raise ValidationError("through_message_id is a message of another chat.")
    if not message.is_active:
        raise ValidationError("through_message_id is on another branch.")
    if message.status == "streaming":
        raise MessageBusyError("Wait until it is there.")
    if current is not None and message.position < current.position:
        raise ValidationError(
            "There is a summary that goes further. Change that one, or delete it first.",
            extra={"through_message_id": str(current.message_id)},
        )
    return message
