"""Engines and transactions, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any
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
from uuid_utils.compat import uuid7

from backend.core.logs import get_logger
from backend.database import sqlite_connection
from backend.database.sqlite_connection import SqliteConnection
from backend.database.write_ahead_log import WriteAheadLog
from backend.errors import AppError, ConflictError, UnavailableError

log = get_logger(__name__)

MIGRATION_LOCK_SECONDS = 3600.0
"""How long a process waits for its turn while another changes the tables of the same SQLite file;
PostgreSQL's lock has no end. A process that is killed lets go of either at once."""
POSTGRES_PORT = 5432
TRY_AGAIN = "Try again in a moment."
RETRY_AFTER_SECONDS = 1
"""Seconds after which a request that the database did not carry out may be sent again."""

UNAVAILABLE_STATES = ("08", "25P03", "25P04", "40", "53", "55P03", "57", "58")
"""Beginnings of SQLSTATEs (PostgreSQL manual, appendix A): the server can't be reached, a
transaction or a lock waited for too long, one of two transactions was given up for the other, there
is no room, the work was ended by an order, the disk is faulty."""

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
"""Primary result codes of a SQLite file that can't be used as things are. A damaged file, or one
that is no database, is not among them: waiting mends neither."""

OVERTAKEN_STATES = ("23503", "23505")
"""SQLSTATEs of a row that is referred to and is gone, and of a value that is taken."""

OVERTAKEN_CODES = frozenset(
    {
        sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY,
        sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
        sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    }
)
"""Extended result codes of the same on SQLite."""

DAMAGED_STATES = ("XX001", "XX002")
"""SQLSTATEs of damaged data and of a damaged index."""

DAMAGED_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""Primary result codes of a damaged SQLite file, and of a file that is no database."""


EffectNote = Callable[[AsyncSession], Awaitable[None]]
EFFECT_NOTE: ContextVar[EffectNote | None] = ContextVar("effect_note", default=None)
"""What a request wants to be written down in each transaction that changes something for it."""


_AFTER_COMMIT = "after_commit"
_LOCK = 7_241_905_113
"""The advisory lock that a process takes on PostgreSQL while it changes the tables."""


def after_commit(session: AsyncSession, call: Callable[[], None]) -> None:
    """Have `call` called once the transaction of `Database.write` is committed."""
    session.info.setdefault(_AFTER_COMMIT, []).append(call)


class DatabaseUnavailableError(UnavailableError):
    """The database does not answer; nothing was half done."""

    slug, title = "database-unavailable", "The database does not answer"


class OvertakenError(ConflictError):
    """Another request deleted a row that this one refers to, or came first; nothing was stored.

    Services look first, so it is raised only by requests of one moment.
    """

    slug, title = "overtaken", "Another request came first"


class DatabaseDamagedError(AppError):
    """The database's file is damaged, or is no database."""

    slug, title = "database-damaged", "The database is damaged"


class Database:
    """Transactions against one database.

    `write()` is a transaction that will change something, `read()` one that will not. On PostgreSQL
    they share their connections; a writer's statements each see what is committed by then, a
    reader's all see one moment. SQLite takes one writer at a time: there, writers queue for the
    one writing connection of this process (`BEGIN IMMEDIATE`, with a busy timeout for other
    processes), and readers have connections of their own that never wait for a writer (WAL).
    `log` is that write-ahead log. `process_id` is this process to the others that share the
    database: `lease_owner` of what it holds.
    """

    def __init__(self, url: str, *, pool_size: int = 10) -> None:
        self.process_id = uuid7()
        self.url = make_url(url)
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
            self._writer = _postgres_engine(self.url, self.process_id, pool_size=pool_size)
            # The same pool. Both options go out with BEGIN: they cost no message of their own.
            self._reader = self._writer.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        self.log = WriteAheadLog(self._writer if self.is_sqlite else None)
        self._read_sessions = async_sessionmaker(self._reader, expire_on_commit=False)
        self._write_sessions = async_sessionmaker(self._writer, expire_on_commit=False)

    @property
    def engine(self) -> AsyncEngine:
        """The engine that may write: for tools."""
        return self._writer

    def make_separate_engine(self) -> AsyncEngine:
        """Make an engine for PostgreSQL that never waits for a free connection of the pool.

        It has one connection, for one task. Each statement is a transaction.
        """
        engine = _postgres_engine(self.url, self.process_id, pool_size=1)
        return engine.execution_options(isolation_level="AUTOCOMMIT")

    @property
    def place(self) -> str:
        """The place of this database for the operator."""
        return find_place(self.url)

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncSession]:
        """A transaction that commits at the end of the block, or rolls back.

        Raises `DatabaseUnavailableError` when the database can't be reached, and `OvertakenError`
        when another transaction came first.
        """
        note = EFFECT_NOTE.get()
        async with translate_errors(), self._write_sessions() as session:
            yield session
            if note is not None:
                await note(session)
            await session.commit()
        self.log.written()
        for call in session.info.get(_AFTER_COMMIT, ()):
            call()

    @contextlib.asynccontextmanager
    async def trial(self) -> AsyncGenerator[AsyncSession]:
        """A transaction that may write and is rolled back at the end of the block.

        Raises `DatabaseUnavailableError` when the database can't be reached.
        """
        async with translate_errors(), self._write_sessions() as session:
            yield session

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncSession]:
        """A transaction for reading: one consistent view, and never in a writer's way."""
        # Closing ends the transaction: there is nothing to commit.
        async with translate_errors(), self._read_sessions() as session:
            yield session

    async def change_tables(self, work: Callable[[Connection], None]) -> None:
        """Do `work` in one transaction, after that of any other process that does the same.

        In a thread on SQLite: some hundred statements, and no trip for each.
        """
        if self.is_sqlite:
            await asyncio.to_thread(self._change_tables, work)
            return
        async with self._writer.begin() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            await connection.run_sync(work)

    def _change_tables(self, work: Callable[[Connection], None]) -> None:
        engine = create_engine(
            self.url.set(drivername="sqlite"),
            hide_parameters=True,
            connect_args={"isolation_level": None, "timeout": MIGRATION_LOCK_SECONDS},
        )
        event.listen(engine, "connect", lambda connection, _record: _configure(connection))

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        try:
            with engine.begin() as connection:
                work(connection)
        finally:
            engine.dispose()

    async def optimize(self) -> None:
        """Have SQLite look at what is in its tables, a few ms; PostgreSQL does so by itself.

        Without statistics it takes "these ids, of this user" for a reason to read everything of the
        user's.
        """
        if not self.is_sqlite:
            return
        async with self.write() as session:
            await session.execute(text("PRAGMA analysis_limit=400"))
            await session.execute(text("ANALYZE"))

    async def ping(self) -> None:
        """Raise `DatabaseUnavailableError` unless the database answers."""
        async with self.read() as session:
            await session.execute(text("SELECT 1"))

    async def check(self) -> None:
        """Raise `DatabaseDamagedError` for a damaged SQLite file; reads all of it."""
        if not self.is_sqlite:
            return
        async with self.read() as session:
            if await session.scalar(text("PRAGMA quick_check(1)")) != "ok":
                raise DatabaseDamagedError

    async def dispose(self) -> None:
        """Close every connection."""
        await self._writer.dispose()
        if self.is_sqlite:
            await self._reader.dispose()
        # The pools forget a connection whose first statements were cancelled, and do not wait for
        # one that a task still has.
        for connection in tuple(self._opened):
            await connection.close()


def name_client(process_id: UUID) -> str:
    """Return the name of a process in PostgreSQL's list of connections."""
    return f"talekeeper {process_id}"


def find_place(url: URL | str) -> str:
    """Return the place of a database for the operator: host and port, or the path of a file."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return parsed.database or ":memory:"
    host = parsed.host or parsed.query.get("host") or "localhost"
    return f"{host}:{parsed.port or POSTGRES_PORT}"


@contextlib.asynccontextmanager
async def translate_errors() -> AsyncGenerator[None]:
    """Distinguish a database that is down or damaged, and a race, from a wrong statement.

    Raises `DatabaseUnavailableError`, `DatabaseDamagedError` and `OvertakenError`.
    """
    try:
        yield
    except (ConnectionError, TimeoutError, PoolTimeoutError) as error:
        raise _make_unavailable_error() from error
    except StaleDataError as error:
        raise _make_overtaken_error(error) from error
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or ""  # asyncpg's errors have it
        code = getattr(error.orig, "sqlite_errorcode", None) or 0  # sqlite3's
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
    # Callers may expect it, or it may be a fault of ours that only looks like a race.
    log.info("database.overtaken", exc_info=error)
    return OvertakenError("Look at what is there now, and send the request again if it still fits.")


def _postgres_engine(url: URL, process_id: UUID, *, pool_size: int) -> AsyncEngine:
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=30,
        pool_use_lifo=True,  # the connection used last has its statements prepared
        pool_recycle=1800,
        hide_parameters=True,
        connect_args={"server_settings": {"application_name": name_client(process_id)}},
    )

    @event.listens_for(engine.sync_engine, "do_connect")
    def _connect(dialect: Any, _record: Any, args: Any, options: Any) -> Any:
        try:
            return dialect.connect(*args, **options)
        except OSError as error:
            # Here, and only here, any of them is about the database: a name that is not known, a
            # network without a route, a socket that is no longer there.
            raise _make_unavailable_error() from error

    @event.listens_for(engine.sync_engine, "checkout")
    def _check_out(connection: Any, _record: Any, _proxy: Any) -> None:
        if connection.driver_connection.is_closed():
            # The server ended it while it was idle. The pool opens another one.
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
        pool_use_lifo=True,  # the connection used last has the pages in its cache
        hide_parameters=True,
        # The driver's own transaction handling is off: "begin" below is the only one.
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
