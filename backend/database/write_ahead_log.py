"""Emptying SQLite's write-ahead log, which contains deleted texts."""

from __future__ import annotations

import asyncio
import contextlib

from sqlalchemy.ext.asyncio import AsyncEngine

from backend.core.logs import get_logger
from backend.database.sqlite_connection import BUSY_TIMEOUT_MS

log = get_logger(__name__)

EMPTY_INTERVAL_SECONDS = 5.0
"""Interval in which the log is emptied if something was written."""
BUSY_MS = 100
"""Maximum time that one attempt waits for readers. Writers wait for the attempt."""
RETRY_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Pauses between the attempts of `empty_now`."""


class WriteAheadLog:
    """SQLite's write-ahead log. On PostgreSQL `writer` is None, and all methods do nothing.

    A deleted row is overwritten in the database file (`secure_delete`), but older pages can remain
    in the log for days. Emptying the log moves its pages to the database file and truncates it.
    """

    def __init__(self, writer: AsyncEngine | None) -> None:
        self._writer = writer
        # An earlier process may have left a log.
        self._has_frames = writer is not None

    def note_commit(self) -> None:
        self._has_frames = self._writer is not None

    async def empty(self) -> bool:
        """Empty the log unless a reader needs it. Return True if it is empty.

        Blocks writers for a few milliseconds, at most `BUSY_MS`.
        """
        if self._writer is None or not self._has_frames:
            return True
        async with self._writer.connect() as connection:
            # The driver's connection, because SQLAlchemy's would begin a transaction.
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
        """Try several times to empty the log. Return True if it is empty. Errors are logged."""
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
        """Empty the log every few seconds until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(EMPTY_INTERVAL_SECONDS)
                await self.empty_now()
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await self.empty_now()
