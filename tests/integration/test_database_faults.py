"""What goes wrong with a database: what passes by itself is 503, what is our fault is not."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, func, select, text
from sqlalchemy.exc import DBAPIError

from backend.accounts.models import DataKey, KeySlot, LoginFailures
from backend.database import migrate
from backend.database.base import now
from backend.database.engine import Database, DatabaseDamagedError, DatabaseUnavailableError
from backend.faults import explain
from backend.settings import Settings
from tests.support.server import PASSWORD, ok, problem, running

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


def settings_of(url: str) -> Settings:
    values: dict[str, Any] = {"_env_file": None, "database_url": url}
    return Settings(**values)


@contextlib.asynccontextmanager
async def refusing(state: str) -> AsyncGenerator[Database]:
    """A PostgreSQL that turns every connection away with this SQLSTATE."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length, code = struct.unpack("!II", await reader.readexactly(8))
        if code == 80877103:  # SSLRequest: no
            writer.write(b"N")
            length, _ = struct.unpack("!II", await reader.readexactly(8))
        await reader.readexactly(length - 8)
        fields = f"SFATAL\0VFATAL\0C{state}\0Mnot now\0\0".encode()
        writer.write(b"E" + struct.pack("!I", len(fields) + 4) + fields)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        database = Database(f"postgresql+asyncpg://user:secret@127.0.0.1:{port}/name")
        yield database
        await database.dispose()


@pytest.mark.parametrize("state", ["57P03", "53300", "08006"])
async def test_a_server_that_takes_no_connection_now_is_unavailability(state: str) -> None:
    async with refusing(state) as database:
        for transaction in (database.read, database.write):
            with pytest.raises(DatabaseUnavailableError):
                async with transaction() as session:
                    await session.execute(text("SELECT 1"))


async def test_a_password_that_is_wrong_is_not_unavailability() -> None:
    async with refusing("28P01") as database:
        with pytest.raises(DBAPIError, match="not now"):
            await database.ping()


@pytest.mark.parametrize("place", ["127.0.0.1:1", "no-such-host.invalid:5432"])
async def test_bringing_the_tables_up_to_date_says_which_database_does_not_answer(
    place: str,
) -> None:
    settings = settings_of(f"postgresql+asyncpg://user:secret@{place}/name")
    database = Database(settings.resolved_database_url)
    with pytest.raises(DatabaseUnavailableError) as failed:
        await migrate.upgrade(database)
    explanation = explain(failed.value, settings)
    assert explanation is not None
    assert explanation.startswith(f"The database at {place} does not answer.")
    assert "secret" not in explanation
    await database.dispose()


@pytest.mark.parametrize(
    ("state", "says"), [("28P01", "refuses the user or the password"), ("3D000", "not on that")]
)
async def test_a_server_that_refuses_is_explained(state: str, says: str) -> None:
    async with refusing(state) as database:
        with pytest.raises(DBAPIError) as failed:
            await migrate.upgrade(database)
        url = database.url.render_as_string(hide_password=False)
        explanation = explain(failed.value, settings_of(url))
    assert explanation is not None
    assert says in explanation
    assert "secret" not in explanation


async def test_a_socket_that_is_gone_is_unavailability(tmp_path: Path) -> None:
    database = Database(f"postgresql+asyncpg://user@/name?host={tmp_path}")
    with pytest.raises(DatabaseUnavailableError):
        await database.ping()
    await database.dispose()


@pytest.mark.postgres
async def test_of_two_writers_that_wait_for_each_other_one_may_try_again(
    postgres_url: str,
) -> None:
    database = Database(postgres_url)
    keys = (b"one", b"two")
    async with database.write() as session:
        session.add_all(LoginFailures(key=key, failures=0, last_at=now()) for key in keys)
    both_hold_one = asyncio.Barrier(2)

    async def bump(first: bytes, second: bytes) -> None:
        async with database.write() as session:
            (await session.get_one(LoginFailures, first, with_for_update=True)).failures += 1
            await both_hold_one.wait()
            (await session.get_one(LoginFailures, second, with_for_update=True)).failures += 1

    ends = await asyncio.gather(bump(*keys), bump(*reversed(keys)), return_exceptions=True)
    assert [type(end) for end in ends if end is not None] == [DatabaseUnavailableError]
    async with database.read() as session:
        assert list(await session.scalars(select(LoginFailures.failures))) == [1, 1]
    await database.dispose()


async def test_a_table_that_is_missing_is_our_fault(database: Database) -> None:
    for statement in ("SELECT * FROM no_such_table", "SELEKT 1"):
        with pytest.raises(DBAPIError):
            async with database.read() as session:
                await session.execute(text(statement))


async def test_a_file_that_cannot_be_opened_is_unavailability(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}")
    others = set(threading.enumerate())
    with pytest.raises(DatabaseUnavailableError):
        await database.ping()
    await database.dispose()
    # The driver's thread that failed to open it still speaks to this event loop.
    for thread in set(threading.enumerate()) - others:
        await asyncio.to_thread(thread.join, 10)


async def test_a_full_disk_is_unavailability_and_leaves_nothing_half_done(
    sqlite_url: str,
) -> None:
    database = Database(sqlite_url)
    async with database.write() as session:
        await session.execute(text("PRAGMA max_page_count = 1"))  # that is: none that are new
    with pytest.raises(DatabaseUnavailableError):
        async with database.write() as session:
            session.add(LoginFailures(key=b"k" * 1_000_000, failures=1, last_at=now()))
    async with database.read() as session:
        assert await session.scalar(select(func.count()).select_from(LoginFailures)) == 0
    await database.dispose()


async def test_a_file_that_is_no_database_is_not_taken_for_one_that_is_busy(
    tmp_path: Path,
) -> None:
    file = tmp_path / "talekeeper.sqlite3"
    file.write_bytes(b"Once upon a time. " * 1000)
    database = Database(f"sqlite+aiosqlite:///{file}")
    with pytest.raises(DatabaseDamagedError):
        await database.ping()
    await database.dispose()


async def test_all_that_one_reader_reads_is_of_one_moment(database: Database) -> None:
    count = select(func.count()).select_from(LoginFailures)
    async with database.read() as reader:
        before = await reader.scalar(count)
        async with database.write() as writer:
            writer.add(LoginFailures(key=b"key", failures=1, last_at=now()))
        assert await reader.scalar(count) == before == 0
    async with database.read() as reader:
        assert await reader.scalar(count) == 1


@pytest.mark.postgres
async def test_who_said_to_read_cannot_write_and_the_next_one_can(postgres_url: str) -> None:
    database = Database(postgres_url, pool_size=1)
    with pytest.raises(DBAPIError, match="read-only"):
        async with database.read() as session:
            session.add(LoginFailures(key=b"key", failures=1, last_at=now()))
            await session.flush()
    async with database.write() as session:
        session.add(LoginFailures(key=b"key", failures=1, last_at=now()))
        assert await session.scalar(text("SHOW transaction_isolation")) == "read committed"
    await database.dispose()


async def test_a_deletion_that_a_crash_cut_in_two_is_finished_at_the_next_start(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        running(database_url, tmp_path) as server,
        server.account("Ada"),
        server.account("Ben") as ben,
    ):
        # The first of the two transactions, and then the process dies.
        async with server.parts.database.write() as session:
            for table in (KeySlot, DataKey):
                await session.execute(delete(table).where(table.user_id == UUID(ben.user["id"])))
        taken = {"username": "Ben", "password": PASSWORD}
        problem(await ben.client.post("/api/v1/accounts", json=taken), 409, "name-taken")
    async with (
        running(database_url, tmp_path) as server,
        server.account("Ben"),
        server.signed_in("Ada") as ada,
    ):
        users = ok(await ada.client.get("/api/v1/admin/users"))
        assert len(users["items"]) == 2
