"""Streams outlive the request that opened them: they end when their session does."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Generator
from uuid import UUID

from backend.accounts.sessions import SessionService
from backend.logs import get_logger

log = get_logger(__name__)

LOOK_EVERY = 2.0


class SessionWatch:
    """Looks every two seconds which of the sessions that have streams are still open.

    One query for all of them; none while there are no streams.
    """

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions
        self._streams: Counter[UUID] = Counter()
        self._ended: set[UUID] = set()
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watching(self, slot_id: UUID) -> Generator[None]:
        """Keep an eye on a session for the length of the block."""
        self._streams[slot_id] += 1
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._streams[slot_id] -= 1
            if not self._streams[slot_id]:
                del self._streams[slot_id]
                self._ended.discard(slot_id)

    def is_open(self, slot_id: UUID) -> bool:
        """Whether a watched session was open at the last look."""
        return slot_id not in self._ended

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            watched = set(self._streams)
            if not watched:
                continue
            try:
                still_open = await self._sessions.still_open(watched)
            except Exception as error:  # streams go on, and the next round looks again
                log.warning("session.watch_failed", exc_info=error)
            else:
                self._ended |= (watched - still_open) & set(self._streams)
