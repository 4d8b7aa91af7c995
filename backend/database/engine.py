"""Engines and transactions on SQLite and PostgreSQL, and retries while a server starts."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from sqlalchemy import URL, Connection, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.pool import QueuePool
from uuid_utils.compat import uuid7

from backend.core.logs import get_logger
from backend.database import sqlite_connection
from backend.database.pooler import PoolerDetector, send_alone, skip_json_types
from backend.database.sqlite_connection import SqliteConnection, WriteAheadLog
from backend.errors import AppError, ConflictError, UnavailableError

log = get_logger(__name__)

T = TypeVar("T")

START_RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses between the attempts of a step of a start."""

LOCK_POLL_SECONDS = 0.2

NEVER_RECYCLE = -1
"""While a connection for heartbeats is replaced, the process looks disconnected."""

TABLE_LOCK_SECONDS = 3.0
"""Maximum wait of a migration for a lock of PostgreSQL. Later statements on the table wait, too."""
TABLE_LOCK_PAUSES = (1.0, 2.0, 4.0, *[5.0] * 10)
"""Pauses between the attempts of a migration, in which those statements run: in all about 100 s."""
LOCK_TIMEOUT_STATE = "55P03"
_TABLES_LOCKED = (
    "Another transaction has used them for minutes. The migration changed nothing; earlier ones "
    "are done. To find it: SELECT pid, xact_start, query FROM pg_stat_activity WHERE "
    "xact_start IS NOT NULL ORDER BY xact_start. Wait until it ends, or end it with "
    "pg_terminate_backend(pid). Then start again."
)

MIGRATION_LOCK_SECONDS = 3600.0
"""Maximum wait for another process that migrates the SQLite file. PostgreSQL has no maximum."""
POSTGRES_PORT = 5432
TRY_AGAIN = "Try again in a moment."
RETRY_AFTER_SECONDS = 1

UNAVAILABLE_STATES = ("08", "25P03", "25P04", "40", "53", "55P03", "57", "58")
"""Prefixes of SQLSTATEs (PostgreSQL manual, appendix A): connection failures, timeouts of
transactions and locks, deadlocks, missing resources, operator intervention, system errors."""

UNAVAILABLE_CODES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""Primary result codes of SQLite for errors that may go away. Those of a damaged file are not
included."""

OVERTAKEN_STATES = ("23503", "23505")
"""SQLSTATEs of violated foreign keys and unique constraints."""

OVERTAKEN_CODES = frozenset(
    {
        sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY,
        sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
        sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    }
)
"""Extended result codes of SQLite for the same errors."""

DAMAGED_STATES = ("XX001", "XX002")
"""SQLSTATEs of damaged data and of a damaged index."""

DAMAGED_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""Primary result codes of a damaged SQLite file, and of a file that is not a database."""


EffectNote = Callable[[AsyncSession], Awaitable[None]]
EFFECT_NOTE: ContextVar[EffectNote | None] = ContextVar("effect_note", default=None)
"""A callback that adds a request's own record to each of its writing transactions."""


_AFTER_COMMIT = "after_commit"
_LOCK = 7_241_905_113


def after_commit(session: AsyncSession, call: Callable[[], None]) -> None:
    session.info.setdefault(_AFTER_COMMIT, []).append(call)


class DatabaseUnavailableError(UnavailableError):
    """The database does not respond. The transaction changed nothing."""

    slug, title = "database-unavailable", "The database does not respond"


class OvertakenError(ConflictError):
    """A concurrent request deleted a row that this one refers to, or created the same row.

    Services check before they write, so this happens only to requests at the same time.
    """

    slug, title = "overtaken", "Another request came first"


class TablesLockedError(AppError):
    """Another transaction holds locks on tables that a migration has to change."""

    status, slug, title = 503, "tables-locked", "A migration cannot lock its tables"


class DatabaseDamagedError(AppError):
    """The database file is damaged, or is not a database."""

    slug, title = "database-damaged", "The database is damaged"


class PoolUse(NamedTuple):
    """The connections of a pool: in use, idle, and the most that it opens."""

    name: str
    in_use: int
    idle: int
    most: int


class Database:
    """Transactions on one database.

    `write()` begins a writing transaction, `read()` a read-only one. On PostgreSQL they share one
    connection pool; writers use READ COMMITTED, and readers REPEATABLE READ. SQLite allows one
    writer at a time: writers share one connection (`BEGIN IMMEDIATE`, with a busy timeout for other
    processes), and readers have a separate pool and never wait for a writer (WAL).

    `process_id` identifies this process as the owner of leases. `direct_url` is the address of the
    same PostgreSQL database without a pooler; empty: that of `url`.
    """

    def __init__(self, url: str, *, pool_size: int = 10, direct_url: str = "") -> None:
        self.process_id = uuid7()
        self._pool_size = pool_size
        self.url = make_url(url)
        self._direct_url = make_url(direct_url or url)
        self._pooler = PoolerDetector(is_found=True if direct_url else None)
        self._direct_pooler = PoolerDetector()
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._opened: set[SqliteConnection] = set()
        if self.is_sqlite:
            if self.url.database and self.url.database != ":memory:":
                Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
            self._reader = _sqlite_engine(
                url, self._opened, begin=sqlite_connection.READING, pool_size=pool_size
            )
            self._writer = _sqlite_engine(url, self._opened, begin="BEGIN IMMEDIATE", pool_size=1)
        else:
            self._writer = _postgres_engine(
                self.url, self.process_id, self._pooler, pool_size=pool_size
            )
            # The same pool. Both options are part of BEGIN and need no additional message.
            self._reader = self._writer.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        self.log = WriteAheadLog(self._writer if self.is_sqlite else None)
        self._read_sessions = async_sessionmaker(self._reader, expire_on_commit=False)
        self._write_sessions = async_sessionmaker(self._writer, expire_on_commit=False)
        self._bare = self._reader if self.is_sqlite else make_bare(self._writer)

    @property
    def engine(self) -> AsyncEngine:
        return self._writer

    @property
    def single_engine(self) -> AsyncEngine:
        """The engine for single statements, with transactions only if there may be a pooler.

        A pooler would send the two messages of a statement to different servers.
        """
        return self._bare if self._pooler.is_found is False or self.is_sqlite else self._writer

    def measure_pools(self) -> Iterator[PoolUse]:
        """Yield the use of the connection pools of this process."""
        # The pool of PostgreSQL has twice the size, because it opens no connections above it.
        engines = {"all": (self._writer, 2 * self._pool_size)}
        if self.is_sqlite:
            engines = {"reading": (self._reader, self._pool_size), "writing": (self._writer, 1)}
        for name, (engine, most) in engines.items():
            if isinstance(engine.pool, QueuePool):
                yield PoolUse(name, engine.pool.checkedout(), engine.pool.checkedin(), most)

    def make_direct_engine(self) -> AsyncEngine:
        """Make an engine for PostgreSQL with connections outside the pool, without a pooler.

        They go through the pooler if `direct_url` is not set.
        """
        pooler = self._direct_pooler
        engine = _postgres_engine(
            self._direct_url, self.process_id, pooler, pool_size=1, recycle=NEVER_RECYCLE
        )
        send_alone(engine, pooler)
        return engine

    @property
    def can_listen(self) -> bool:
        """True if connections of `make_direct_engine` are not shared by a pooler.

        False until the first of them.
        """
        return self._direct_pooler.is_found is False

    @property
    def place(self) -> str:
        return find_place(self.url)

    async def find_pooler(self) -> bool:
        """True if transactions go through a pooler. Raises `DatabaseUnavailableError`."""
        if self.is_sqlite:
            return False
        await self.ping()
        return bool(self._pooler.is_found)

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncSession]:
        """Begin a writing transaction that is committed at the end of the block.

        Raises `DatabaseUnavailableError` and `OvertakenError`.
        """
        note = EFFECT_NOTE.get()
        async with translate_errors(), self._write_sessions() as session:
            yield session
            if note is not None:
                await note(session)
            await session.commit()
        self.log.note_commit()
        for call in session.info.get(_AFTER_COMMIT, ()):
            call()

    @contextlib.asynccontextmanager
    async def trial(self) -> AsyncGenerator[AsyncSession]:
        """Begin a writing transaction that is rolled back. Raises `DatabaseUnavailableError`."""
        async with translate_errors(), self._write_sessions() as session:
            yield session

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncSession]:
        """Begin a read-only transaction with a consistent view. It never blocks a writer."""
        # Closing the session ends the transaction.
        async with translate_errors(), self._read_sessions() as session:
            yield session

    @contextlib.asynccontextmanager
    async def read_once(self) -> AsyncGenerator[AsyncSession]:
        """Begin a session for a single statement that reads. See `single_engine`."""
        async with (
            translate_errors(),
            AsyncSession(self.single_engine, expire_on_commit=False) as session,
        ):
            yield session

    async def change_tables(self, work: Callable[[Connection], None]) -> None:
        """Run `work` while no other process changes the tables.

        On SQLite it runs in one transaction, in a thread, because it executes hundreds of
        statements. On PostgreSQL it begins and commits its own transactions; the last one is
        committed after it. If one of them waits too long for a lock, `work` runs again. Raises
        `TablesLockedError`.
        """
        if self.is_sqlite:
            await asyncio.to_thread(self._change_tables, work)
            return
        engine = self.make_direct_engine()
        try:
            async with _lock_tables(engine):
                for seconds in TABLE_LOCK_PAUSES:
                    if await _change_unlocked(engine, work):
                        return
                    log.warning("database.tables_locked", retry_after_s=seconds)
                    await asyncio.sleep(seconds)
                if not await _change_unlocked(engine, work):
                    raise TablesLockedError(_TABLES_LOCKED)
        finally:
            await engine.dispose()

    def _change_tables(self, work: Callable[[Connection], None]) -> None:
        engine = create_engine(
            self.url.set(drivername="sqlite"),
            hide_parameters=True,
            connect_args={"isolation_level": None, "timeout": MIGRATION_LOCK_SECONDS},
        )

        @event.listens_for(engine, "connect")
        def _connect(connection: sqlite3.Connection, _record: Any) -> None:
            _configure(connection)

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        try:
            with engine.begin() as connection:
                work(connection)
        finally:
            engine.dispose()

    async def optimize(self) -> None:
        """Update SQLite's statistics, which takes a few ms. PostgreSQL has autovacuum.

        Without statistics, SQLite reads all rows of a user for a query on a few ids.
        """
        if not self.is_sqlite:
            return
        async with self.write() as session:
            await session.execute(text("PRAGMA analysis_limit=400"))
            await session.execute(text("ANALYZE"))

    async def ping(self) -> None:
        """Raises `DatabaseUnavailableError`."""
        async with self.read() as session:
            await session.execute(text("SELECT 1"))

    async def check(self) -> None:
        """Raise `DatabaseDamagedError` if the SQLite file is damaged. Reads the whole file."""
        if not self.is_sqlite:
            return
        async with self.read() as session:
            if await session.scalar(text("PRAGMA quick_check(1)")) != "ok":
                raise DatabaseDamagedError

    async def dispose(self) -> None:
        await self._writer.dispose()
        if self.is_sqlite:
            await self._reader.dispose()
        # A pool forgets a connection if its first statements were cancelled, and does not wait for
        # connections in use.
        for connection in tuple(self._opened):
            await connection.close()


def name_client(process_id: UUID) -> str:
    return f"talekeeper {process_id}"


def find_place(url: URL | str) -> str:
    """Return the location of a database: host and port, or the path of its file."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return parsed.database or ":memory:"
    host = parsed.host or parsed.query.get("host") or "localhost"
    return f"{host}:{parsed.port or POSTGRES_PORT}"


@contextlib.asynccontextmanager
async def translate_errors() -> AsyncGenerator[None]:
    """Translate errors of drivers and SQLAlchemy that are not faults of a statement.

    Raises `DatabaseUnavailableError`, `DatabaseDamagedError` and `OvertakenError`.
    """
    try:
        yield
    except (ConnectionError, TimeoutError, PoolTimeoutError) as error:
        raise _make_unavailable_error() from error
    except StaleDataError as error:
        raise _make_overtaken_error(error) from error
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or ""  # asyncpg
        code = getattr(error.orig, "sqlite_errorcode", None) or 0  # sqlite3
        primary = code & 0xFF
        if state in DAMAGED_STATES or primary in DAMAGED_CODES:
            raise DatabaseDamagedError from error
        if state in OVERTAKEN_STATES or code in OVERTAKEN_CODES:
            raise _make_overtaken_error(error) from error
        if (
            error.connection_invalidated
            or state.startswith(UNAVAILABLE_STATES)
            or primary in UNAVAILABLE_CODES
        ):
            raise _make_unavailable_error() from error
        raise


def _make_unavailable_error() -> DatabaseUnavailableError:
    return DatabaseUnavailableError(TRY_AGAIN, retry_after=RETRY_AFTER_SECONDS)


def _make_overtaken_error(error: Exception) -> OvertakenError:
    # Logged, because a fault in this code can look like a race.
    log.info("database.overtaken", exc_info=error)
    return OvertakenError("Read the resource again, and repeat the request if it is still needed.")


@contextlib.asynccontextmanager
async def _lock_tables(engine: AsyncEngine) -> AsyncGenerator[None]:
    """Hold a lock of PostgreSQL in a separate transaction, which may be behind a pooler.

    It is polled for, because building an index without blocking writers waits for all statements
    that have begun before, also for those that wait for this lock.
    """
    take = text("SELECT pg_try_advisory_xact_lock(:lock)")
    while True:
        async with engine.connect() as connection:
            if await connection.scalar(take, {"lock": _LOCK}):
                await connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
                yield
                return
        await asyncio.sleep(LOCK_POLL_SECONDS)


async def _change_unlocked(engine: AsyncEngine, work: Callable[[Connection], None]) -> bool:
    """Change tables on PostgreSQL. False if a lock was not free within `TABLE_LOCK_SECONDS`."""

    def run(connection: Connection) -> None:
        event.listen(connection, "begin", _limit_lock_wait)
        work(connection)

    try:
        async with engine.connect() as connection:
            await connection.run_sync(run)
            await connection.commit()
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != LOCK_TIMEOUT_STATE:
            raise
        return False
    return True


def _limit_lock_wait(connection: Connection) -> None:
    """Limit the wait for locks in a transaction.

    An index that is built outside of one does not hold up others while it waits.
    """
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(TABLE_LOCK_SECONDS * 1000)}")


def make_bare(engine: AsyncEngine) -> AsyncEngine:
    """Return an engine with the same pool that sends no BEGIN, COMMIT and ROLLBACK.

    Each of them is a round trip.
    """
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def _postgres_engine(
    url: URL, process_id: UUID, pooler: PoolerDetector, *, pool_size: int, recycle: int = 1800
) -> AsyncEngine:
    engine = create_async_engine(
        url,
        pool_size=2 * pool_size,  # none above it, because they are closed after each use
        max_overflow=0,
        pool_timeout=30,
        pool_use_lifo=True,  # the most recently used connection has prepared statements
        pool_recycle=recycle,
        hide_parameters=True,
        connect_args={"server_settings": {"application_name": name_client(process_id)}},
    )
    skip_json_types(engine)

    @event.listens_for(engine.sync_engine, "do_connect")
    def _connect(dialect: Any, _record: Any, args: Any, options: Any) -> Any:
        try:
            return pooler.connect(dialect, args, options)
        except OSError as error:
            # Only here, every OSError is about the database, such as an unknown host.
            raise _make_unavailable_error() from error

    @event.listens_for(engine.sync_engine, "checkout")
    def _check_out(connection: Any, _record: Any, _proxy: Any) -> None:
        if connection.driver_connection.is_closed():
            # The server closed the idle connection. The pool opens a new one.
            raise DisconnectionError

    return engine


def _sqlite_engine(
    url: str, opened: set[SqliteConnection], *, begin: str, pool_size: int
) -> AsyncEngine:
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=60,
        pool_use_lifo=True,  # the most recently used connection has the pages in its cache
        hide_parameters=True,
        # Disables the driver's transaction handling: `_begin` below begins transactions.
        connect_args={
            "isolation_level": None,
            "timeout": sqlite_connection.BUSY_TIMEOUT_MS / 1000,
            "async_creator_fn": partial(
                sqlite_connection.connect, configure=_configure, opened=opened
            ),
        },
    )

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Any) -> None:
        connection.connection.driver_connection.begin(begin)

    return engine


def _configure(connection: sqlite3.Connection) -> None:
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "secure_delete=ON",
        "temp_store=MEMORY",
        "cache_size=-32768",
    ):
        connection.execute(f"PRAGMA {pragma}").close()


async def persist(database: Database, chore: str, step: Callable[[], Awaitable[T]]) -> T:
    """Run a step of a start. Retry if PostgreSQL does not respond or another process came first.

    A failed step stores nothing. On SQLite there is one attempt, because SQLite itself waits for
    other programs. Raises the error of the last attempt.
    """
    for attempt, seconds in enumerate(() if database.is_sqlite else START_RETRY_SECONDS, start=1):
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
