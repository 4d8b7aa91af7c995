"""The longest block of an event loop, which delays all other users of a process.

In seconds of the process's own work, all threads together, and not of the clock on the wall: what
other programs of the machine do is not measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

PROMISED = 0.5
"""Seconds within which other users get an answer during any request."""

TICK = 0.01


class Heartbeat:
    """Ticks on a loop, and remembers the longest time between two ticks.

    Attributes:
        longest: In seconds of all threads together: those that keep the interpreter's lock count.
        longest_own: In seconds of the loop's own thread.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self.longest_own = 0.0

    async def beat(self) -> None:
        """Tick until cancelled."""
        last, own = time.process_time(), time.thread_time()
        while True:
            await asyncio.sleep(TICK)
            at, own_at = time.process_time(), time.thread_time()
            self.longest = max(self.longest, at - last)
            self.longest_own = max(self.longest_own, own_at - own)
            last, own = at, own_at


@contextlib.asynccontextmanager
async def heartbeat() -> AsyncGenerator[Heartbeat]:
    """Measure this loop for the length of the block."""
    heart = Heartbeat()
    task = asyncio.create_task(heart.beat())
    await asyncio.sleep(2 * TICK)
    try:
        yield heart
        await asyncio.sleep(2 * TICK)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
