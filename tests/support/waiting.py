"""Polling for the effects of jobs, tasks and other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE = 120.0
"""Seconds until a wait fails. Long enough for a machine that is overloaded."""


async def until(found: Callable[[], Awaitable[Any]], *, seconds: float = PATIENCE) -> Any:
    """Call `found` until its result is true; return that result."""
    async with asyncio.timeout(seconds):
        while not (answer := await found()):
            await asyncio.sleep(0.02)
    return answer


async def until_true(is_met: Callable[[], object], *, seconds: float = PATIENCE) -> None:
    """Wait for a condition that needs no `await`."""
    async with asyncio.timeout(seconds):
        while not is_met():
            await asyncio.sleep(0.01)
