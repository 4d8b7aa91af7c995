"""What happens to chats and messages, in the transaction of each; see `backend.events`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.chats.models import Chat, Message


@runtime_checkable
class ChatCopied(Protocol):
    """A path of a chat was copied into a chat of its own."""

    async def chat_copied(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        fork_id: UUID,
        copied: Mapping[UUID, UUID],
    ) -> None:
        """Copy what belongs to the chat; `copied` leads from messages to their copies."""
        ...


@runtime_checkable
class ChatDeleted(Protocol):
    """A chat is about to go."""

    async def chat_deleted(self, session: AsyncSession, identity: Identity, chat: Chat) -> None:
        """See to what is not to stay without it."""
        ...


@runtime_checkable
class MessageShown(Protocol):
    """A hidden message is taken into prompts again."""

    async def message_shown(
        self, session: AsyncSession, identity: Identity, message: Message
    ) -> None:
        """See to what was made without it."""
        ...
