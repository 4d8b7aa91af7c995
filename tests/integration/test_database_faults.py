"""Tests of database faults: temporary faults are 503, bugs are not."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import DataKey, KeySlot, LoginFailures, User
from backend.database import migrate
from backend.database.base import now
from backend.database.engine import (
    START_RETRY_SECONDS,
    Database,
    DatabaseDamagedError,
    DatabaseUnavailableError,
    OvertakenError,
    persist,
)
from backend.jobs.deletions import DELETE_KIND
from backend.jobs.models import Job
from backend.operations.start_faults import explain
from backend.settings import Settings
from tests.support.server import ok, problem, running

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


def make_settings(url: str) -> Settings:
    values: dict[str, Any] = {"_env_file": None, "database_url": url}
    return Settings(**values)


@contextlib.asynccontextmanager
async def run_refusing_server(state: str) -> AsyncGenerator[Database]:
    """Run a PostgreSQL server that refuses every connection with this SQLSTATE."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length, code = struct.unpack("!II", await reader.readexactly(8))
        if code == 80877103:  # SSLRequest
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
    async with run_refusing_server(state) as database:
        for transaction in (database.read, database.write):
            with pytest.raises(DatabaseUnavailableError):
                async with transaction() as session:
                    await session.execute(text("SELECT 1"))


async def test_a_password_that_is_wrong_is_not_unavailability() -> None:
    async with run_refusing_server("28P01") as database:
        with pytest.raises(DBAPIError, match="not now"):
            await database.ping()


@pytest.mark.parametrize("place", ["127.0.0.1:1", "no-such-host.invalid:5432"])
async def test_bringing_the_tables_up_to_date_says_which_database_does_not_answer(
    place: str,
) -> None:
    settings = make_settings(f"postgresql+asyncpg://user:secret@{place}/name")
    database = Database(settings.resolved_database_url)
    with pytest.raises(DatabaseUnavailableError) as failed:
        await migrate.upgrade(database)
    explanation = explain(failed.value, settings)
    assert explanation is not None
    assert explanation.startswith(f"The database at {place} does not respond.")
    assert "secret" not in explanation
    await database.dispose()


@pytest.mark.parametrize(
    ("state", "says"),
    [("28P01", "rejected the user or the password"), ("3D000", "does not exist on that")],
)
async def test_a_server_that_refuses_is_explained(state: str, says: str) -> None:
    async with run_refusing_server(state) as database:
        with pytest.raises(DBAPIError) as failed:
            await migrate.upgrade(database)
        url = database.url.render_as_string(hide_password=False)
        explanation = explain(failed.value, make_settings(url))
    assert explanation is not None
    assert says in explanation
    assert "secret" not in explanation


async def test_a_socket_that_is_gone_is_unavailability(tmp_path: Path) -> None:
    database = Database(f"postgresql+asyncpg://user@/name?host={tmp_path}")
    with pytest.raises(DatabaseUnavailableError):
        await database.ping()
    await database.dispose()


@pytest.mark.postgres
async def test_one_of_two_deadlocked_writers_may_try_again(postgres_url: str) -> None:
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


END_OTHERS = """
SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
"""Ends all other connections to the database, and waits until they are closed."""


@contextlib.asynccontextmanager
async def open_transaction(url: str) -> AsyncGenerator[AsyncSession]:
    """Open another transaction, which is rolled back unless it is committed."""
    other = Database(url)
    async with other.trial() as session:
        yield session
    await other.dispose()


async def until_waiting(session: AsyncSession, wait: str, *, count: int = 1) -> None:
    """Wait until this many other statements wait for this type of event."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = :wait AND state = 'active'"
    )
    while await session.scalar(waiting, {"wait": wait}) != count:
        await session.execute(text("SELECT pg_stat_clear_snapshot()"))
        await asyncio.sleep(0.01)


async def add_failures(database: Database, *, then: str) -> None:
    async with database.write() as session:
        session.add(LoginFailures(key=b"key", failures=1, last_at=now()))
        await session.flush()
        await session.execute(text(then))


@pytest.mark.postgres
async def test_idle_connections_that_ended_are_replaced(postgres_url: str) -> None:
    database = Database(postgres_url, pool_size=2)
    await asyncio.gather(database.ping(), database.ping())
    async with open_transaction(postgres_url) as other:
        assert await other.scalar(text(END_OTHERS)) == 2
    await asyncio.gather(database.ping(), database.ping())
    await add_failures(database, then="SELECT 1")
    await database.dispose()


@pytest.mark.postgres
async def test_a_connection_that_ends_in_a_statement_is_unavailability(postgres_url: str) -> None:
    database = Database(postgres_url)
    adding = asyncio.create_task(add_failures(database, then="SELECT pg_sleep(60)"))
    async with open_transaction(postgres_url) as other:
        await until_waiting(other, "Timeout")
        await other.execute(text(END_OTHERS))
    with pytest.raises(DatabaseUnavailableError) as failed:
        await adding
    assert failed.value.headers["Retry-After"] == "1"
    async with database.read() as session:
        assert await session.scalar(select(func.count()).select_from(LoginFailures)) == 0
    await database.dispose()


@pytest.mark.postgres
async def test_a_connection_that_ends_before_its_commit_is_unavailability(
    postgres_url: str,
) -> None:
    database = Database(postgres_url)
    with pytest.raises(DatabaseUnavailableError):
        async with database.write() as session:
            session.add(LoginFailures(key=b"key", failures=1, last_at=now()))
            await session.flush()
            async with open_transaction(postgres_url) as other:
                await other.execute(text(END_OTHERS))
    async with database.read() as session:
        assert await session.scalar(select(func.count()).select_from(LoginFailures)) == 0
    await database.dispose()


@pytest.mark.postgres
@pytest.mark.parametrize("state", ["40001", "55P03", "57014", "57P05", "25P03", "53200", "58030"])
async def test_a_statement_that_the_server_cancels_is_unavailability(
    postgres_url: str, state: str
) -> None:
    database = Database(postgres_url)
    give_up = f"DO $$ BEGIN RAISE SQLSTATE '{state}'; END $$"
    with pytest.raises(DatabaseUnavailableError) as failed:
        await add_failures(database, then=give_up)
    explanation = explain(failed.value, make_settings(postgres_url))
    assert explanation is not None
    await database.dispose()


async def test_a_request_of_a_thing_that_is_deleted_at_this_moment_is_refused(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(database_url, tmp_path) as server, server.account() as ada:
        path = "/api/v1/characters"
        character = ok(await ada.client.post(path, json={"name": "Mara"}), 201)["id"]

        async def open_late(*arguments: Any, **options: Any) -> Any:
            """Delete the character after it was read, then open the chat."""
            ok(await ada.client.delete(f"{path}/{character}"), 204)
            return await opening(*arguments, **options)

        opening = server.parts.chats.open
        monkeypatch.setattr(server.parts.chats, "open", open_late)
        refused = await ada.client.post("/api/v1/chats", json={"character_ids": [character]})
        problem(refused, 409, "overtaken")
        assert ok(await ada.client.get("/api/v1/chats"))["items"] == []


@pytest.mark.postgres
async def test_a_request_whose_connection_is_ended_may_be_sent_again(
    postgres_url: str, tmp_path: Path
) -> None:
    async with running(postgres_url, tmp_path) as server, server.account() as ada:
        async with open_transaction(postgres_url) as other:
            await other.execute(text("LOCK TABLE chats IN ACCESS EXCLUSIVE MODE"))
            opening = asyncio.create_task(ada.client.post("/api/v1/chats", json={}))
            await until_waiting(other, "Lock")
            await other.execute(text(END_OTHERS))
        refused = await opening
        problem(refused, 503, "database-unavailable")
        assert refused.headers["Retry-After"] == "1"
        made = ok(await ada.client.post("/api/v1/chats", json={}), 201)
        assert ok(await ada.client.get("/api/v1/chats"))["items"] == [made]


@pytest.mark.postgres
async def test_processes_that_start_together_note_each_user_once(
    postgres_url: str, tmp_path: Path
) -> None:
    url = "http://127.0.0.1:1"
    async with (
        running(postgres_url, tmp_path / "one", qdrant_url=url) as one,
        running(postgres_url, tmp_path / "two", qdrant_url=url) as two,
        one.account(),
    ):
        async with open_transaction(postgres_url) as other:
            # Both inserts wait for this, so both have found no row of the user.
            await other.execute(text("LOCK TABLE index_states IN SHARE MODE"))
            starts = [
                asyncio.create_task(each.parts.memory.collections.prepare()) for each in (one, two)
            ]
            await until_waiting(other, "Lock", count=2)
        noted = await asyncio.gather(*starts)
        assert noted[0] == noted[1]
        assert len(noted[0]) == 1


@pytest.mark.postgres
async def test_a_step_of_a_start_is_done_again_while_the_database_cannot_do_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "backend.database.engine.START_RETRY_SECONDS", (0.0,) * len(START_RETRY_SECONDS)
    )
    database, tries = Database(postgres_url), 0

    async def step() -> int:
        nonlocal tries
        tries += 1
        fault = "RAISE SQLSTATE '40001'" if tries < 3 else "NULL"
        await add_failures(database, then=f"DO $$ BEGIN {fault}; END $$")
        return tries

    assert await persist(database, "tables", step) == 3
    with pytest.raises(OvertakenError):
        await persist(database, "tables", step)
    assert tries == 3 + 1 + len(START_RETRY_SECONDS)
    await database.dispose()


async def test_a_table_that_is_missing_is_our_fault(database: Database) -> None:
    for statement in ("SELECT * FROM no_such_table", "SELEKT 1"):
        with pytest.raises(DBAPIError):
            async with database.read() as session:
                await session.execute(text(statement))


async def test_a_file_that_cannot_be_opened_is_unavailability_and_leaves_no_thread(
    tmp_path: Path,
) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}")
    others = set(threading.enumerate())
    with pytest.raises(DatabaseUnavailableError):
        await database.ping()
    left = set(threading.enumerate()) - others
    assert not [each for each in left if "connection_worker" in each.name]
    await database.dispose()


async def test_a_full_disk_is_unavailability_and_leaves_nothing_half_done(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    async with database.write() as session:
        await session.execute(text("PRAGMA max_page_count = 1"))  # no new pages
    with pytest.raises(DatabaseUnavailableError):
        async with database.write() as session:
            session.add(LoginFailures(key=b"k" * 1_000_000, failures=1, last_at=now()))
    async with database.read() as session:
        assert await session.scalar(select(func.count()).select_from(LoginFailures)) == 0
    await database.dispose()


async def test_a_file_that_is_no_database_is_not_taken_for_one_that_is_busy(tmp_path: Path) -> None:
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
async def test_a_read_session_cannot_write_and_the_next_session_can(postgres_url: str) -> None:
    database = Database(postgres_url, pool_size=1)
    with pytest.raises(DBAPIError, match="read-only"):
        async with database.read() as session:
            session.add(LoginFailures(key=b"key", failures=1, last_at=now()))
            await session.flush()
    async with database.write() as session:
        session.add(LoginFailures(key=b"key", failures=1, last_at=now()))
        assert await session.scalar(text("SHOW transaction_isolation")) == "read committed"
    await database.dispose()


async def test_a_deletion_that_an_earlier_version_cut_in_two_is_finished_at_the_next_start(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        running(database_url, tmp_path) as server,
        server.account("Ada"),
        server.account("Ben") as ben,
    ):
        ben_id = UUID(ben.user["id"])
    database = Database(database_url)
    await migrate.downgrade(database, "2026_11_31")
    # The first of the two transactions of that version.
    async with database.write() as session:
        for table in (KeySlot, DataKey):
            await session.execute(delete(table).where(table.user_id == ben_id))
        long_ago = now() - timedelta(hours=1)
        await session.execute(update(User).where(User.id == ben_id).values(created_at=long_ago))
    await migrate.upgrade(database)
    await database.dispose()
    async with (
        running(database_url, tmp_path) as server,
        server.account("Ben"),
        server.signed_in("Ada") as ada,
    ):
        users = ok(await ada.client.get("/api/v1/admin/users"))
        assert len(users["items"]) == 2
        await server.parts.deletions.schedule()
        async with server.parts.database.read() as session:
            jobs = select(Job.payload).where(Job.kind == DELETE_KIND)
            [payload] = await session.scalars(jobs)
        assert str(ben_id) in payload
