"""Waiting for what others bring about: jobs, other processes, other tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE = 120.0
"""Seconds. No test that passes waits so long, but on a machine that stands still meanwhile."""


async def until(found: Callable[[], Awaitable[Any]], *, seconds: float = PATIENCE) -> Any:
    """Ask again and again until the answer is true, and give it back."""
    async with asyncio.timeout(seconds):
        while not (answer := await found()):
            await asyncio.sleep(0.02)
    return answer
