"""How much of one user's expensive work may be under way at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Generator
from uuid import UUID

from backend.turns.errors import TooManyTurnsError


class Stay:
    """One piece of work inside the gate."""

    def __init__(self) -> None:
        self.event: asyncio.Event | None = None

    def until(self, event: asyncio.Event) -> None:
        """Leave when the event comes, not at the end of the block."""
        self.event = event


class Gate:
    """Counts what prepares prompts or counts tokens, by user, in this process."""

    def __init__(self, per_user: int) -> None:
        self._per_user = per_user
        self._inside: Counter[UUID] = Counter()
        self._waiting: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def enter(self, user_id: UUID) -> Generator[Stay]:
        """Take a place for the length of the block, or for as long as the stay says.

        Raises `TooManyTurnsError`.
        """
        if self._inside[user_id] >= self._per_user:
            raise TooManyTurnsError(self._per_user)
        self._inside[user_id] += 1
        stay = Stay()
        try:
            yield stay
        finally:
            if stay.event is None:
                self._leave(user_id)
            else:
                task = asyncio.create_task(self._leave_after(user_id, stay.event))
                self._waiting.add(task)
                task.add_done_callback(self._waiting.discard)

    async def _leave_after(self, user_id: UUID, event: asyncio.Event) -> None:
        await event.wait()
        self._leave(user_id)

    def _leave(self, user_id: UUID) -> None:
        self._inside[user_id] -= 1
        if not self._inside[user_id]:
            del self._inside[user_id]
