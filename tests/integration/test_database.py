"""Tests of transactions, settings and tables of the databases."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Connection, NullPool, func, inspect, literal, make_url, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.types import TypeEngine

from backend.accounts.models import Invitation, LoginFailures
from backend.database import migrate
from backend.database.base import Base, new_id, now, stream_rows
from backend.database.engine import Database, DatabaseUnavailableError, OvertakenError
from tests.integration.accounts.rotation_account import MODELS

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

assert MODELS  # every model is imported, so every table is known

NOTHING = "NO ACTION"
CANARY = b"the-canary-sings-in-the-cellar"


async def bump(database: Database, key: bytes) -> None:
    """Read a number and write it back one higher, without a lock."""
    async with database.write() as session:
        row = await session.get(LoginFailures, key, with_for_update=True)
        if row is None:
            session.add(LoginFailures(key=key, failures=1, last_at=now()))
        else:
            await asyncio.sleep(0)
            row.failures += 1


async def number(database: Database, key: bytes) -> float:
    async with database.read() as session:
        return (await session.get_one(LoginFailures, key)).failures


async def count(database: Database) -> int | None:
    async with database.read() as session:
        return await session.scalar(select(func.count()).select_from(LoginFailures))


@pytest.fixture
async def other(database_url: str) -> AsyncGenerator[Database]:
    """A second connection pool on `database`, as in another process."""
    other = Database(database_url)
    yield other
    await other.dispose()


async def test_fifty_concurrent_writers_succeed(database: Database, other: Database) -> None:
    await bump(database, b"shared")
    places = [database, other]
    await asyncio.gather(
        *(bump(places[n % 2], b"shared") for n in range(50)),
        *(bump(places[n % 2], b"own %d" % n) for n in range(50)),
    )
    assert await number(other, b"shared") == 51
    assert await count(database) == 51


async def test_a_reader_sees_one_snapshot_and_waits_for_no_writer(database: Database) -> None:
    await bump(database, b"key")
    async with database.write() as session:
        row = await session.get_one(LoginFailures, b"key")
        row.failures = 100
        await session.flush()
        assert await number(database, b"key") == 1
    assert await number(database, b"key") == 100


async def test_others_get_their_turn_between_the_parts_of_a_long_result(database: Database) -> None:
    turns: list[int] = []

    async def wait() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    async with database.read() as session:
        other = asyncio.create_task(wait())
        numbers = select(literal(1).label("number")).cte(recursive=True)
        following = select(numbers.c.number + 1).where(numbers.c.number < 1_500)
        many = select(numbers.union_all(following))
        seen = [len(turns) async for _ in stream_rows(session, many)]
        other.cancel()
    assert len(seen) == 1_500
    assert len(set(seen)) >= 3


async def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        async with database.write() as session:
            session.add(LoginFailures(key=b"key", failures=1, last_at=now()))
            await session.flush()
            _ = 1 / 0
    assert await count(database) == 0


async def test_an_error_of_the_database_does_not_quote_what_was_written(database: Database) -> None:
    for row in (
        lambda: LoginFailures(key=CANARY, failures=1, last_at=now()),
        lambda: Invitation(created_by=new_id(), lookup=CANARY, expires_at=now()),
    ):
        with pytest.raises(OvertakenError) as failed:
            for _ in range(2):
                async with database.write() as session:
                    session.add(row())
        cause = failed.value.__cause__
        assert isinstance(cause, IntegrityError)
        told = f"{failed.value} {cause} {cause.__cause__} {cause.orig!r}"
        assert CANARY.decode() not in told
        assert CANARY.hex() not in told


async def test_sqlite_runs_with_the_pragmas_that_durability_and_secrecy_need(
    sqlite_url: str,
) -> None:
    database = Database(sqlite_url)
    expected = {
        "journal_mode": "wal",
        "synchronous": 2,  # FULL: committed data survives a power cut
        "foreign_keys": 1,
        "secure_delete": 1,
        "temp_store": 2,  # memory: no plain text in temporary files
        "busy_timeout": 30_000,
    }
    for transaction in (database.read, database.write):
        async with transaction() as session:
            found = {name: await session.scalar(text(f"PRAGMA {name}")) for name in expected}
        assert found == expected
    await database.dispose()


async def test_a_lock_that_another_process_does_not_give_back_is_unavailability(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.database.sqlite_connection.BUSY_TIMEOUT_MS", 20)
    database = Database(sqlite_url)
    holder = sqlite3.connect(tmp_path / "talekeeper.sqlite3", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseUnavailableError):
        await bump(database, b"key")
    assert await count(database) == 0
    holder.execute("ROLLBACK")
    holder.close()
    await bump(database, b"key")
    await database.dispose()


@pytest.fixture
async def administer(postgres_server: Any) -> AsyncGenerator[Callable[[str], Awaitable[None]]]:
    admin = create_async_engine(
        postgres_server.get_uri(driver="asyncpg"), isolation_level="AUTOCOMMIT", poolclass=NullPool
    )

    async def run(statement: str) -> None:
        async with admin.connect() as connection:
            await connection.exec_driver_sql(statement)

    yield run
    await admin.dispose()


def hang_up(url: str) -> str:
    name = make_url(url).database
    return f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"


@pytest.mark.postgres
async def test_a_connection_that_breaks_in_mid_transaction_leaves_nothing_half_done(
    postgres_url: str, administer: Callable[[str], Awaitable[None]]
) -> None:
    database = Database(postgres_url)
    for flush in (True, False):
        with pytest.raises(DatabaseUnavailableError):
            async with database.write() as session:
                session.add(LoginFailures(key=b"one", failures=1, last_at=now()))
                await session.flush()
                await administer(hang_up(postgres_url))
                session.add(LoginFailures(key=b"two", failures=1, last_at=now()))
                if flush:
                    await session.flush()
        assert await count(database) == 0
    await bump(database, b"key")
    await database.dispose()


@pytest.mark.postgres
async def test_a_server_that_does_not_listen_is_unavailability(unused_port: int) -> None:
    database = Database(f"postgresql+asyncpg://user:secret@127.0.0.1:{unused_port}/name")
    with pytest.raises(DatabaseUnavailableError) as failed:
        await database.ping()
    assert "secret" not in str(failed.value.to_problem())
    await database.dispose()


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


@pytest.mark.postgres
async def test_a_server_whose_socket_is_gone_is_unavailability(tmp_path: Path) -> None:
    database = Database(f"postgresql+asyncpg://user@/name?host={tmp_path}")
    with pytest.raises(DatabaseUnavailableError):
        await database.ping()
    await database.dispose()


def type_differs(
    context: MigrationContext, _: Any, column: Column[Any], __: Any, expected: TypeEngine[Any]
) -> bool | None:
    """Compare SQLite's type names, because SQLAlchemy reads BINARY as a number."""
    if context.dialect.name != "sqlite":
        return None  # use Alembic's comparison
    query = text("SELECT type FROM pragma_table_info(:table_name) WHERE name = :name")
    found = get_connection(context).scalar(
        query, {"table_name": column.table.name, "name": column.name}
    )
    return str(found) != expected.compile(context.dialect)


def get_connection(context: MigrationContext) -> Connection:
    connection = context.connection
    assert connection is not None
    return connection


def find_differences(connection: Connection) -> list[Any]:
    options = {"compare_type": type_differs, "compare_server_default": True}
    context = MigrationContext.configure(connection, opts=options)
    found: list[Any] = list(compare_metadata(context, Base.metadata))
    if connection.dialect.name != "sqlite":
        return found
    # SQLAlchemy does not read the action of a foreign key in a column definition.
    of_keys = {"add_fk", "remove_fk"}
    return [each for each in found if each[0] not in of_keys] + sorted(
        read_foreign_keys(connection) ^ read_model_foreign_keys()
    )


def read_foreign_keys(connection: Connection) -> set[tuple[str, ...]]:
    """Return (table, column, target, action on deletion) from SQLite."""
    query = text('SELECT "from", "table", "to", on_delete FROM pragma_foreign_key_list(:name)')
    return {
        (name, *row)
        for name in inspect(connection).get_table_names()
        for row in connection.execute(query, {"name": name})
    }


def read_model_foreign_keys() -> set[tuple[str, ...]]:
    """Return (table, column, target, action on deletion) from the models."""
    return {
        (table.name, column.name, key.column.table.name, key.column.name, key.ondelete or NOTHING)
        for table in Base.metadata.tables.values()
        for column in table.columns
        for key in column.foreign_keys
    }


async def inspect_tables(database: Database, at: Callable[[Connection], Any]) -> Any:
    async with database.engine.connect() as connection:
        return await connection.run_sync(at)


async def tables(database: Database) -> set[str]:
    return set(
        await inspect_tables(database, lambda connection: inspect(connection).get_table_names())
    )


def test_the_newest_revision_is_the_one_that_the_code_names() -> None:
    scripts = ScriptDirectory.from_config(migrate.alembic_config())
    assert scripts.get_heads() == [migrate.HEAD]


async def test_the_migrated_tables_are_those_of_the_models(database: Database) -> None:
    assert await migrate.current_revision(database) == migrate.HEAD
    assert await inspect_tables(database, find_differences) == []


async def test_the_tables_go_down_to_nothing_and_come_back_up(database: Database) -> None:
    before = await tables(database)
    assert before == {*Base.metadata.tables, "alembic_version"}
    await migrate.downgrade(database, "base")
    assert await tables(database) == {"alembic_version"}
    assert await migrate.current_revision(database) is None
    assert await migrate.upgrade(database) is True
    assert await tables(database) == before
    assert await inspect_tables(database, find_differences) == []
    assert await migrate.upgrade(database) is False


async def test_replicas_that_start_together_take_turns(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.database.sqlite_connection.BUSY_TIMEOUT_MS", 1)
    replicas = [Database(database_url) for _ in range(3)]
    await migrate.downgrade(replicas[0], "base")
    await asyncio.gather(*map(migrate.upgrade, replicas))
    assert await inspect_tables(replicas[0], find_differences) == []
    for replica in replicas:
        await replica.dispose()
