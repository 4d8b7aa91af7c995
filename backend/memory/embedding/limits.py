"""What keeps a failing embedder from costing much: another attempt at once, and a breaker."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from backend.memory.embedding.protocol import EmbedderError

T = TypeVar("T")
Clock = Callable[[], float]
"""Seconds, from any start, that never go back."""

Wait = Callable[[float], Awaitable[None]]
"""Returns after so many seconds."""

_LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Further attempts at a request that was not answered.

    They are for a connection that broke or a server that stumbled. A limit that the provider named
    is never waited for: the error says how long it lasts, and whoever has the time comes back.

    Args:
        attempts: How many there are, the first one included.
        first_wait: Seconds before the second one at most; it doubles from one to the next.
        within: Seconds after which no further attempt begins.
        wait: How time passes.
        clock: What time it is.
        draw: A number in [0, 1), which spreads those who failed together.
    """

    attempts: int = 3
    first_wait: float = 0.5
    within: float = 30.0
    wait: Wait = asyncio.sleep
    clock: Clock = time.monotonic
    draw: Callable[[], float] = random.random

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` comes to. Raises the last attempt's `EmbedderError`."""
        until = self.clock() + self.within
        for past in range(self.attempts - 1):
            try:
                return await attempt()
            except EmbedderError as error:
                if not error.retryable or error.retry_after is not None:
                    raise
                seconds = self.draw() * self.first_wait * 2**past
                if self.clock() + seconds >= until:
                    raise
            await self.wait(seconds)
        return await attempt()


class Breaker:
    """Refuses at once what has just failed several times in a row.

    After `pause` seconds one attempt is let through: it closes the breaker or opens it anew. A
    limit that the provider named opens it at once, for as long as was named and a minute at most.
    """

    def __init__(
        self, *, failures: int = 3, pause: float = 15.0, clock: Clock = time.monotonic
    ) -> None:
        self._limit = failures
        self._pause = pause
        self._clock = clock
        self._failures = 0
        self._until = 0.0

    def check(self) -> None:
        """Raises `EmbedderError` when it is no use to try."""
        if self._failures < self._limit:
            return
        left = self._until - self._clock()
        if left > 0:
            raise EmbedderError(
                "The embedding model failed just now and is left alone for a moment.",
                retry_after=left,
                retryable=True,
            )
        # Others are refused until this attempt is over, or for as long again.
        self._until = self._clock() + self._pause

    def succeeded(self) -> None:
        """An attempt was answered."""
        self._failures = 0

    def failed(self, error: EmbedderError) -> None:
        """An attempt was not."""
        self._failures += 1
        pause = self._pause
        if error.retry_after is not None:
            self._failures = max(self._failures, self._limit)
            pause = min(error.retry_after, _LONGEST_PAUSE)
        self._until = self._clock() + pause
