"""The sealed state of clients' chats."""

from __future__ import annotations

from uuid import UUID

import msgspec
from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.base import now, upsert
from backend.openai_api.contracts import ChatState
from backend.openai_api.models import CLIENT_CHAT_STATE, ClientChat
from backend.vault.sealing import Sealer

_STATE = select(ClientChat.sealed_state).where(
    ClientChat.chat_id == bindparam("chat_id"), ClientChat.user_id == bindparam("owner_id")
)


async def load_state(session: AsyncSession, sealer: Sealer, chat_id: UUID) -> ChatState:
    values = {"chat_id": chat_id, "owner_id": sealer.user_id}
    sealed = await session.scalar(_STATE, values)
    if sealed is None:
        return ChatState()
    data = sealer.open_bytes(CLIENT_CHAT_STATE, chat_id, sealed)
    return msgspec.json.decode(data, type=ChatState)


async def save_state(
    session: AsyncSession, sealer: Sealer, chat_id: UUID, state: ChatState
) -> None:
    """Store the state of a chat. The chat's row is locked."""
    values = {
        "chat_id": chat_id,
        "user_id": sealer.user_id,
        "sealed_state": sealer.seal_bytes(CLIENT_CHAT_STATE, chat_id, msgspec.json.encode(state)),
        "updated_at": now(),
    }
    await upsert(
        session, ClientChat, values, key=("chat_id",), update=("sealed_state", "updated_at")
    )
