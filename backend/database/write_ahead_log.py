"""SQLite's write-ahead log, and how it is emptied."""

from __future__ import annotations

import asyncio
import contextlib

from sqlalchemy.ext.asyncio import AsyncEngine

from backend.core.logs import get_logger
from backend.database.sqlite_connection import BUSY_TIMEOUT_MS

log = get_logger(__name__)

EMPTY_INTERVAL_SECONDS = 5.0
"""Seconds after which the log is emptied, if something was written."""
BUSY_MS = 100
"""How long one try waits for readers, and writers for the try."""
RETRY_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Seconds between the tries of `empty_now`."""


class WriteAheadLog:
    """SQLite's write-ahead log, which keeps what was deleted until it is emptied.

    A row that is deleted is overwritten in the database file (`secure_delete`), but the pages that
    were written before it lie in the log for as long as nothing takes their place, which may be for
    days. Emptied, its pages go into the database file, and its own file is cut to nothing.

    Args:
        writer: The engine with the one connection that writes; None on PostgreSQL, where nothing
            here does anything.
    """

    def __init__(self, writer: AsyncEngine | None) -> None:
        self._writer = writer
        # There may be a log that an earlier process left.
        self._has_frames = writer is not None

    def written(self) -> None:
        """Note that a transaction was committed."""
        self._has_frames = self._writer is not None

    async def empty(self) -> bool:
        """Empty the log, unless a reader still needs it; whether it is empty.

        It takes the writer's place for some milliseconds, and `BUSY_MS` at most.
        """
        if self._writer is None or not self._has_frames:
            return True
        async with self._writer.connect() as connection:
            # Not by way of the connection itself, which would begin a transaction.
            driver = (await connection.get_raw_connection()).driver_connection
            if driver is None:
                return False
            self._has_frames = False
            is_busy = True
            try:
                await driver.execute(f"PRAGMA busy_timeout={BUSY_MS}")
                cursor = await driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                is_busy = bool((await cursor.fetchone())[0])
                await cursor.close()
            finally:
                self._has_frames = self._has_frames or is_busy
                await driver.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        return not is_busy

    async def empty_now(self) -> bool:
        """Empty the log before going on, with a few tries; whether it is empty.

        Raises nothing: what was to be erased is committed, and `keep_empty` goes on trying.
        """
        for pause in (*RETRY_PAUSES_SECONDS, None):
            try:
                if await self.empty():
                    return True
            except Exception as error:
                log.warning("database.log_not_emptied", exc_info=error)
            if pause is not None:
                await asyncio.sleep(pause)
        return False

    async def keep_empty(self) -> None:
        """Empty the log every few seconds in which something was written, until cancelled.

        Cancelled, it tries once more.
        """
        try:
            while True:
                await asyncio.sleep(EMPTY_INTERVAL_SECONDS)
                await self.empty_now()
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await self.empty_now()
