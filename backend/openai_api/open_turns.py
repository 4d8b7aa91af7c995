"""Turns of a chat that are open, or have been, when a request arrives."""

from __future__ import annotations

import asyncio
import contextlib
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.chats.models import MESSAGE_CONTENT, Message
from backend.database.engine import Database
from backend.errors import AppError
from backend.openai_api.turn_reply import BEAT_SECONDS, TurnStatus
from backend.turns import repository
from backend.turns.api.service import TurnService
from backend.turns.errors import TurnInProgressError, TurnNotFoundError
from backend.turns.models import Turn
from backend.turns.run.events import find_awaited_choice

END_SECONDS = 30.0
"""Time that a stopped turn gets to store its text."""

JOIN_SECONDS = 1.0
"""Time in which the turn of a closed connection ends, before its retry joins it."""


class OpenTurns:
    """Finds and ends turns of a chat."""

    def __init__(self, database: Database, turns: TurnService) -> None:
        self._database = database
        self._turns = turns

    async def find(self, identity: Identity, chat_id: UUID) -> TurnStatus | None:
        """Return the turn of a chat that runs or waits."""
        async with self._database.read() as session:
            turn = await repository.find_open_turn(session, chat_id, owner_id=identity.user_id)
            if turn is None:
                return None
            reply = await session.get(Message, turn.reply_id) if turn.reply_id else None
        return _make_status(identity, turn, reply)

    async def get(self, identity: Identity, turn_id: UUID) -> TurnStatus | None:
        """Return a turn, or None if it is deleted."""
        async with self._database.read() as session:
            turn = await repository.find_turn(session, turn_id, owner_id=identity.user_id)
            if turn is None:
                return None
            reply = await session.get(Message, turn.reply_id) if turn.reply_id else None
        return _make_status(identity, turn, reply)

    async def end(self, identity: Identity, turn: TurnStatus) -> None:
        """Stop a turn, and wait until its text is stored. Raises `TurnInProgressError`."""
        with contextlib.suppress(AppError):  # its chat may be deleted
            await self._turns.stop(identity, turn.id)
        if not await self.wait(identity, turn, seconds=END_SECONDS):
            raise TurnInProgressError(turn.id)

    async def wait(
        self, identity: Identity, turn: TurnStatus, *, seconds: float = JOIN_SECONDS
    ) -> bool:
        """Wait for the end of a turn. False if it still runs after that time."""
        # A reserved turn is deleted when it is stopped.
        with contextlib.suppress(TimeoutError, TurnNotFoundError):
            async with asyncio.timeout(seconds):
                async for _ in self._turns.events(identity, turn.id, last_id=0, beat=BEAT_SECONDS):
                    pass
        found = await self.get(identity, turn.id)
        return found is None or found.state != "running"


def _make_status(identity: Identity, turn: Turn, reply: Message | None) -> TurnStatus:
    sealer, text = identity.sealer, ""
    if reply is not None:
        text = sealer.open(MESSAGE_CONTENT, reply.id, reply.sealed_content)
    return TurnStatus(
        id=turn.id,
        state=turn.state,
        user_message_id=turn.user_message_id,
        reply_id=turn.reply_id,
        prefix_length=turn.prefix_length,
        thinking_prefix_length=turn.thinking_prefix_length,
        position=reply.position if reply is not None else None,
        text=text,
        waiting=find_awaited_choice(sealer, turn),
    )
