"""SQLite's write-ahead log, and a connection in a thread with one switch per statement.

aiosqlite switches threads for the cursor, the statement, the rows and closing the cursor, and three
times for the beginning of a transaction. Waking a thread takes longer than most statements, and so
does the way back through the event loop, which first runs other tasks. A statement therefore blocks
the event loop for up to `MAX_BLOCKING_SECONDS`, and is awaited only if it takes longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Self

import aiosqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.core.logs import get_logger

BUSY_TIMEOUT_MS = 30_000
"""Time to wait for a writer of another process."""

READING = "BEGIN"
"""The statement that begins a read-only transaction."""

FIRST_ROWS = 200
"""Rows that are fetched together with the statement. A larger result needs another switch."""

MAX_BLOCKING_SECONDS = 0.0005
"""Maximum time in seconds that a statement blocks the event loop. Most statements of a turn take a
tenth of it."""


class SqliteConnection(aiosqlite.Connection):
    """A connection with the interface of aiosqlite that SQLAlchemy uses."""

    def __init__(
        self, connector: Callable[[], sqlite3.Connection], opened: set[SqliteConnection]
    ) -> None:
        super().__init__(connector, iter_chunk_size=FIRST_ROWS)
        self._opened = opened
        self._thread.daemon = True  # a connection that is never closed must not keep the process
        self._opening: str | None = None
        self._has_begun = False
        self._is_writing = False

    async def _connect(self) -> Self:
        """Open the file. If that fails, wait until the thread has ended.

        The thread uses the event loop at its end, but a failed command closes the loop at once.
        """
        try:
            await super()._connect()
        except BaseException:
            await asyncio.to_thread(self._thread.join)
            raise
        self._opened.add(self)
        return self

    async def create_function(self, *arguments: Any, **options: Any) -> None:
        self._tx.put_nowait((None, partial(self._conn.create_function, *arguments, **options)))

    def stop(self) -> asyncio.Future[Any] | None:
        self._opened.discard(self)
        closed: asyncio.Future[Any] | None = super().stop()  # pyright: ignore[reportUnknownVariableType]
        return closed

    async def close(self) -> None:
        if self._running:
            await super().close()

    def begin(self, statement: str) -> None:
        self._opening, self._is_writing = statement, statement != READING

    async def commit(self) -> None:
        """Commit the transaction if it has begun."""
        self._opening = None
        if self._has_begun:
            await super().commit()
            self._has_begun = False

    async def rollback(self) -> None:
        """Roll the transaction back if it has begun. SQLAlchemy's pool always calls this."""
        self._opening = None
        if not self._has_begun:
            return
        self._has_begun = False
        if self._is_writing:
            await super().rollback()
        else:
            # No need to wait: later statements of this connection run after it.
            self._tx.put_nowait((None, self._conn.rollback))

    def cursor(self) -> SqliteCursor:  # type: ignore[override]
        return SqliteCursor(self)

    async def run(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """Run `work` in the thread, within the transaction."""
        opening, self._opening = self._opening, None
        self._has_begun = self._has_begun or opening is not None
        if not self._running:
            raise ValueError("no active connection")  # SQLAlchemy looks for these words
        call = _ThreadCall(partial(_run, self._conn, opening, work))
        self._tx.put_nowait((None, call))
        return await call.result()


class _ThreadCall:
    """A call in the connection's thread, and its result."""

    __slots__ = ("_error", "_is_under_way", "_loop", "_result", "_waiter", "_work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_under_way = threading.Lock()
        self._is_under_way.acquire()
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001  # `result` raises it
            self._error = error
        # First the lock, then the waiter. `result` uses the opposite order, so one sees the other.
        self._is_under_way.release()
        if self._waiter is not None:
            self._loop.call_soon_threadsafe(_wake, self._waiter)

    async def result(self) -> Any:
        if not self._is_under_way.acquire(timeout=MAX_BLOCKING_SECONDS):
            self._waiter = self._loop.create_future()
            if self._is_under_way.locked():
                await self._waiter
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            self._error = None  # its traceback refers to this frame


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class SqliteCursor:
    """The result of a statement, with the part of a cursor's interface that SQLAlchemy uses."""

    def __init__(self, connection: SqliteConnection) -> None:
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1
        self._connection = connection
        self._rows: list[Any] = []
        self._rest: sqlite3.Cursor | None = None

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, statement: str, parameters: Iterable[Any] = ()) -> Self:
        def work(connection: sqlite3.Connection) -> None:
            cursor = connection.execute(statement, parameters)  # type: ignore[arg-type]
            self._rows = cursor.fetchmany(FIRST_ROWS)
            self._take(cursor, is_read=len(self._rows) < FIRST_ROWS)

        await self._connection.run(work)
        return self

    async def executemany(self, statement: str, parameters: Iterable[Iterable[Any]]) -> Self:
        def work(connection: sqlite3.Connection) -> None:
            self._take(connection.executemany(statement, parameters), is_read=True)  # type: ignore[arg-type]

        await self._connection.run(work)
        return self

    async def fetchall(self) -> list[Any]:
        return await self.fetchmany(-1)

    async def fetchmany(self, size: int) -> list[Any]:
        """Return the next `size` rows; all of them if `size` is negative."""
        rows, self._rows = self._rows, []
        rest, missing = self._rest, size - len(rows)
        if rest is not None and size < 0:
            rows += await self._connection.run(lambda _: rest.fetchall())
        elif rest is not None and missing > 0:
            rows += await self._connection.run(lambda _: rest.fetchmany(missing))
        if size >= 0:
            rows, self._rows = rows[:size], rows[size:]
        return rows

    async def close(self) -> None:
        rest, self._rest = self._rest, None
        if rest is not None:
            await self._connection.run(lambda _: rest.close())

    def _take(self, cursor: sqlite3.Cursor, *, is_read: bool) -> None:
        self.description, self.rowcount = cursor.description, cursor.rowcount
        self.lastrowid = cursor.lastrowid
        self._rest = None if is_read else cursor


def connect(
    *arguments: Any,
    configure: Callable[[sqlite3.Connection], None],
    opened: set[SqliteConnection],
    **options: Any,
) -> SqliteConnection:
    """Make a connection with the arguments of `sqlite3.connect`. It opens when it is awaited.

    `configure` runs in its thread. `opened` contains it until it is closed.
    """

    def open_file() -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(*arguments, **options)
        try:
            configure(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    return SqliteConnection(open_file, opened)


def _run(
    connection: sqlite3.Connection,
    opening: str | None,
    work: Callable[[sqlite3.Connection], Any],
) -> Any:
    if opening is not None:
        connection.execute(opening)
    return work(connection)


async def _fetch_row(driver: Any, statement: str) -> Any:
    cursor = await driver.execute(statement)
    row = await cursor.fetchone()
    await cursor.close()
    return row


log = get_logger(__name__)

EMPTY_INTERVAL_SECONDS = 5.0
"""Interval in which the log is emptied if something was written."""
BUSY_MS = 100
"""Maximum time that one attempt waits for readers. Writers wait for the attempt."""
RETRY_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Pauses between the attempts of `empty_now`."""


class WriteAheadLog:
    """SQLite's write-ahead log.

    A deleted row is overwritten in the database file (`secure_delete`), but older pages can remain
    in the log for days. Emptying the log moves its pages to the database file and truncates it.

    Args:
        writer: The engine with the writing connection. None on PostgreSQL: then all methods do
            nothing.
    """

    def __init__(self, writer: AsyncEngine | None) -> None:
        self._writer = writer
        # An earlier process may have left a log.
        self._has_frames = writer is not None
        self._moved_before: int | None = None

    def note_commit(self) -> None:
        """Record that a transaction was committed."""
        self._has_frames = self._writer is not None

    async def empty(self) -> bool:
        """Empty the log unless a reader still needs it. Return True if it is empty.

        Blocks writers for a few milliseconds, at most `BUSY_MS`. It does not wait for a reader that
        an earlier attempt has waited for, such as a backup, because writers would wait each time.
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
                # Without a lock, it moves all pages that no reader needs.
                _, frames, moved = await _fetch_row(driver, "PRAGMA wal_checkpoint(PASSIVE)")
                if moved == frames or moved != self._moved_before:
                    row = await _fetch_row(driver, "PRAGMA wal_checkpoint(TRUNCATE)")
                    is_busy = bool(row[0])
                    self._moved_before = row[2] if is_busy else None
            finally:
                self._has_frames = self._has_frames or is_busy
                await driver.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        return not is_busy

    async def empty_now(self) -> bool:
        """Empty the log, with several attempts. Return True if it is empty.

        Logs errors instead of raising them, because `keep_empty` tries again later.
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
        """Empty the log every few seconds until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(EMPTY_INTERVAL_SECONDS)
                await self.empty_now()
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await self.empty_now()
