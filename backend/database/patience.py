"""Retries of the steps of a start while PostgreSQL is not available yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from backend.core.logs import get_logger
from backend.database.engine import Database, DatabaseUnavailableError, OvertakenError

log = get_logger(__name__)

T = TypeVar("T")

DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between the attempts."""


async def persist(database: Database, chore: str, step: Callable[[], Awaitable[T]]) -> T:
    """Run a step of a start. Retry if PostgreSQL does not respond or another process came first.

    A failed step stores nothing. On SQLite there is one attempt, because SQLite itself waits for
    other programs. Raises the error of the last attempt.
    """
    for attempt, seconds in enumerate(() if database.is_sqlite else DELAYS, start=1):
        try:
            return await step()
        except (DatabaseUnavailableError, OvertakenError) as error:
            log.warning(
                "start.step_failed",
                chore=chore,
                attempt=attempt,
                retry_after_s=seconds,
                exc_info=error,
            )
        await asyncio.sleep(seconds)
    return await step()
