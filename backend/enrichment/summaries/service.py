"""The service of the routes of rolling summaries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.state.viewpoints import check_viewpoint
from backend.chats import repository as chats
from backend.chats.errors import MessageBusyError
from backend.chats.models import Chat, Message
from backend.chats.service import read_settings
from backend.core.audience import GM, PUBLIC, Viewpoint, encode_viewpoint
from backend.database.engine import Database
from backend.enrichment.errors import SummaryNotFoundError
from backend.enrichment.models import ChatSummary
from backend.enrichment.schemas import NewSummary, SummaryView
from backend.enrichment.summaries.store import (
    StoredSummary,
    find_current_summary,
    list_active_summaries,
    store_summary,
)
from backend.errors import ValidationError
from backend.http.schemas import Page, check_revision

InPrompt = Callable[[Identity, UUID, Viewpoint], Awaitable[bool]]
"""Returns True if the chat's next prompt from a viewpoint would contain its summary."""


class SummaryService:
    """Reads and edits the summaries of a user's chats.

    A `viewpoint` sees its own summaries and public ones.
    """

    def __init__(self, database: Database, *, in_prompt: InPrompt) -> None:
        self._database = database
        self._in_prompt = in_prompt

    async def get(
        self, identity: Identity, chat_id: UUID, *, viewpoint: Viewpoint = GM
    ) -> SummaryView:
        """Return the current summary.

        Raises `ChatNotFoundError`, `SummaryNotFoundError`, `ValidationError`.
        """
        async with self._database.read() as session:
            chat = await _get_chat(session, identity, chat_id, viewpoint)
            summary = await find_current_summary(
                session, identity.sealer, chat, viewpoint=viewpoint
            )
        return await self._build_view(identity, chat, summary, viewpoint)

    async def list_page(
        self,
        identity: Identity,
        chat_id: UUID,
        *,
        limit: int,
        before: int | None,
        viewpoint: Viewpoint = GM,
    ) -> Page[SummaryView]:
        """Return a page of the summaries along the active path above position `before`.

        The deepest comes first. Raises `ChatNotFoundError`, `ValidationError`.
        """
        async with self._database.read() as session:
            chat = await _get_chat(session, identity, chat_id, viewpoint)
            current = await find_current_summary(
                session, identity.sealer, chat, viewpoint=viewpoint
            )
            found = await list_active_summaries(
                session,
                identity.sealer,
                chat,
                limit=limit + 1,
                up_to_position=None if before is None else before - 1,
                audiences=(encode_viewpoint(viewpoint), PUBLIC),
            )
        is_used = current is not None and await self._is_used(identity, chat, viewpoint)
        items = [
            SummaryView.from_summary(
                each,
                is_used=is_used and current is not None and each.id == current.id,
            )
            for each in found[:limit]
        ]
        more = len(found) > limit
        return Page(items=items, next=str(items[-1].through_position) if more else None)

    async def put(
        self,
        identity: Identity,
        chat_id: UUID,
        new: NewSummary,
        *,
        if_match: str | None,
        viewpoint: Viewpoint | None = None,
    ) -> SummaryView:
        """Change the current summary, or write one through a later message.

        It belongs to the viewpoint. Without one, it is for everyone who may know all its messages.

        Raises `ChatNotFoundError`, `MessageNotFoundError`, `MessageBusyError`, `ValidationError`,
        `PreconditionFailedError`.
        """
        text = new.text.strip()
        if not text:
            raise ValidationError("text must not be empty.")
        sealer = identity.sealer
        async with self._database.write() as session:
            seen, audience = (
                viewpoint or GM,
                None if viewpoint is None else encode_viewpoint(viewpoint),
            )
            chat = await _get_chat(session, identity, chat_id, seen, lock=True)
            current = await find_current_summary(session, sealer, chat, viewpoint=seen)
            check_revision(if_match, current.revision if current else 0)
            message = await _get_last_message(
                session, identity, chat, current, new.through_message_id
            )
            await store_summary(session, sealer, message, text, audience=audience, is_edited=True)
            summary = await find_current_summary(session, sealer, chat, viewpoint=seen)
        return await self._build_view(identity, chat, summary, seen)

    async def delete(
        self,
        identity: Identity,
        chat_id: UUID,
        *,
        if_match: str | None,
        viewpoint: Viewpoint = GM,
    ) -> None:
        """Delete the current summary. The one before it becomes the current one.

        Raises `ChatNotFoundError`, `SummaryNotFoundError`, `PreconditionFailedError`,
        `ValidationError`.
        """
        async with self._database.write() as session:
            chat = await _get_chat(session, identity, chat_id, viewpoint, lock=True)
            current = await find_current_summary(
                session, identity.sealer, chat, viewpoint=viewpoint
            )
            if current is None:
                raise SummaryNotFoundError
            check_revision(if_match, current.revision)
            await session.execute(
                delete(ChatSummary).where(
                    ChatSummary.id == current.id, ChatSummary.user_id == identity.user_id
                )
            )

    async def _build_view(
        self, identity: Identity, chat: Chat, summary: StoredSummary | None, viewpoint: Viewpoint
    ) -> SummaryView:
        if summary is None:
            raise SummaryNotFoundError
        return SummaryView.from_summary(
            summary, is_used=await self._is_used(identity, chat, viewpoint)
        )

    async def _is_used(self, identity: Identity, chat: Chat, viewpoint: Viewpoint) -> bool:
        settings = read_settings(identity.sealer, chat)
        is_wanted = settings.summary.enabled or chat.campaign_id is not None
        return is_wanted and await self._in_prompt(identity, chat.id, viewpoint)


async def _get_chat(
    session: AsyncSession,
    identity: Identity,
    chat_id: UUID,
    viewpoint: Viewpoint,
    *,
    lock: bool = False,
) -> Chat:
    chat = await chats.get_chat(session, chat_id, owner_id=identity.user_id, lock=lock)
    await check_viewpoint(session, viewpoint, [chat.campaign_id], owner_id=identity.user_id)
    return chat


async def _get_last_message(
    session: AsyncSession,
    identity: Identity,
    chat: Chat,
    current: StoredSummary | None,
    message_id: UUID | None,
) -> Message:
    if message_id is None:
        if current is None:
            raise ValidationError(
                "There is no summary yet. Name its last message in through_message_id."
            )
        message_id = current.message_id
    message = await chats.get_message(session, message_id, owner_id=identity.user_id)
    if message.chat_id != chat.id:
        raise ValidationError("through_message_id must be a message of this chat.")
    if not message.is_active:
        raise ValidationError("through_message_id must be on the active path.")
    if message.status == "streaming":
        raise MessageBusyError("Wait for the end of the reply.")
    if current is not None and message.position < current.position:
        raise ValidationError(
            "There is a summary that covers more. Change that one, or delete it first.",
            extra={"through_message_id": str(current.message_id)},
        )
    return message
