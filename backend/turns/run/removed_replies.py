"""Delete the texts that turns keep of a removed message."""

from __future__ import annotations

from sqlalchemy import case, delete, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats.events import MessageRemoved
from backend.chats.models import Chat, Message
from backend.database.base import UNSYNCHRONIZED
from backend.turns.models import StoredContextRecord, Turn


class RemovedReplies(MessageRemoved):
    """Deletes the context record of a removed reply, and the events of its finished turns."""

    async def message_removed(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,
        message: Message,
    ) -> None:
        """Delete them. The totals and the usage of the turns stay."""
        await session.execute(
            delete(StoredContextRecord).where(
                StoredContextRecord.id == message.id,
                StoredContextRecord.user_id == identity.user_id,
            ),
            execution_options=UNSYNCHRONIZED,
        )
        await session.execute(
            update(Turn)
            .where(
                Turn.chat_id == chat.id,
                Turn.reply_id == message.id,
                Turn.user_id == identity.user_id,
                Turn.finished_at.is_not(None),
            )
            .values(
                sealed_output=None,
                sealed_events=None,
                sealed_play=None,
                # The lengths of events mean nothing without them.
                segments=case((Turn.sealed_events.is_not(None), "[]"), else_=Turn.segments),
            ),
            execution_options=UNSYNCHRONIZED,
        )
