"""Tests of SQLite connections."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from backend.database import sqlite_connection
from backend.database.engine import Database
from backend.database.sqlite_connection import FIRST_ROWS, MAX_BLOCKING_SECONDS, connect
from tests.support.waiting import until, until_true

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("moment")]


@pytest.fixture(params=[0.0, 60.0], ids=["by the event loop", "in place"])
def moment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for statements in one of two ways."""
    monkeypatch.setattr(sqlite_connection, "MAX_BLOCKING_SECONDS", request.param)


COUNT = 3 * FIRST_ROWS + 1

NUMBERS = text(
    f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {COUNT}) "
    "SELECT i FROM n"
)


@pytest.fixture
def numbers_url(tmp_path: Path) -> str:
    file = tmp_path / "numbers.sqlite3"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE numbers (i INTEGER)")
    connection.close()
    return f"sqlite+aiosqlite:///{file}"


@pytest.fixture
def database(numbers_url: str) -> Database:
    return Database(numbers_url)


async def test_a_result_longer_than_the_first_trip_comes_whole(database: Database) -> None:
    async with database.read() as session:
        found = list(await session.scalars(NUMBERS))
    await database.dispose()
    assert found == list(range(1, COUNT + 1))


@pytest.mark.parametrize("size", [1, FIRST_ROWS - 1, FIRST_ROWS, FIRST_ROWS + 1, COUNT + 1])
async def test_a_streamed_result_comes_in_order(database: Database, size: int) -> None:
    async with database.read() as session:
        result = await session.stream(NUMBERS.execution_options(yield_per=size))
        found = [row.i async for page in result.partitions() for row in page]
    await database.dispose()
    assert found == list(range(1, COUNT + 1))


async def test_a_result_that_is_left_half_way_holds_nothing_up(database: Database) -> None:
    async with database.write() as session:
        await session.execute(text("INSERT INTO numbers VALUES (1)"))
    async with database.read() as session:
        result = await session.stream(NUMBERS.execution_options(yield_per=1))
        async for _ in result.partitions():
            break
        await result.close()
    assert await database.log.empty(), "a reader still held the log"
    await database.dispose()


async def test_writers_wait_once_for_a_long_reader_such_as_a_backup(
    database: Database, numbers_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert, other = text("INSERT INTO numbers VALUES (1)"), Database(numbers_url)
    async with other.read() as reading:
        await reading.execute(text("SELECT * FROM numbers"))
        async with database.write() as session:
            await session.execute(insert)
        assert not await database.log.empty()
        # An attempt that waited for the reader would now never end.
        monkeypatch.setattr(sqlite_connection, "BUSY_MS", 1_000_000)
        for _ in range(3):
            async with database.write() as session:
                await session.execute(insert)
            assert not await database.log.empty()
    await until(database.log.empty)  # the reader ends in its own thread
    for each in (database, other):
        await each.dispose()


async def test_rows_changed_are_counted_and_rolled_back_together(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        async with database.write() as session:
            values = [{"i": number} for number in range(5)]
            await session.execute(text("INSERT INTO numbers VALUES (:i)"), values)
            changed = await session.execute(text("UPDATE numbers SET i = i + 1 WHERE i > 1"))
            assert changed.rowcount == 3  # type: ignore[attr-defined]
            raise ZeroDivisionError
    async with database.read() as session:
        assert await session.scalar(text("SELECT count(*) FROM numbers")) == 0
    await database.dispose()


async def test_a_writer_keeps_others_out_from_its_first_statement_on(
    database: Database, numbers_url: str
) -> None:
    other = sqlite3.connect(database.place, timeout=0, isolation_level=None)
    async with database.write() as session:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        await session.execute(text("SELECT 1"))
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
    other.execute("BEGIN IMMEDIATE")
    other.close()
    await database.dispose()


async def test_a_transaction_that_could_not_begin_leaves_its_connection_usable(
    tmp_path: Path,
) -> None:
    file = tmp_path / "locked.sqlite3"
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    connection = connect(
        file, timeout=0, isolation_level=None, configure=lambda _: None, opened=set()
    )
    await connection
    connection.begin("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        await connection.cursor().execute("SELECT 1")
    await connection.rollback()
    other.execute("ROLLBACK")
    connection.begin("BEGIN IMMEDIATE")
    cursor = await connection.cursor().execute("SELECT 1")
    assert await cursor.fetchall() == [(1,)]
    await connection.commit()
    other.execute("BEGIN IMMEDIATE")
    other.close()
    await connection.close()


async def test_a_waiting_statement_does_not_block_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "MAX_BLOCKING_SECONDS", MAX_BLOCKING_SECONDS)

    async def write() -> None:
        async with database.write() as session:
            await session.execute(text("INSERT INTO numbers VALUES (1)"))

    await write()  # opens the database, which needs exclusive access
    other = sqlite3.connect(database.place, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    task = asyncio.create_task(write())
    await asyncio.sleep(0.1)
    assert not task.done()
    other.execute("ROLLBACK")
    other.close()
    await task
    await database.dispose()


async def test_a_closed_connection_says_so(tmp_path: Path) -> None:
    connection = connect(tmp_path / "closed.sqlite3", configure=lambda _: None, opened=set())
    await connection
    await connection.close()
    with pytest.raises(ValueError, match="no active connection"):
        await connection.cursor().execute("SELECT 1")


async def test_a_cancelled_statement_leaves_no_open_transaction(database: Database) -> None:
    async def write() -> None:
        async with database.write() as session:
            await session.execute(text("INSERT INTO numbers VALUES (1)"))
            await session.execute(text("INSERT INTO numbers SELECT i FROM (" + NUMBERS.text + ")"))

    for pause in range(5):
        task = asyncio.create_task(write())
        await asyncio.sleep(pause / 2000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(5), database.write() as session:
            await session.execute(text("DELETE FROM numbers"))
    await database.dispose()


def _list_connections() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if "_connection_worker" in each.name}


async def _wait_until_closed(before: set[threading.Thread]) -> None:
    async with asyncio.timeout(5):
        await until_true(lambda: not _list_connections() - before)


async def test_disposing_closes_connections_that_were_cancelled_while_they_opened(
    numbers_url: str,
) -> None:
    async def read(database: Database) -> None:
        async with database.read() as session:
            await session.execute(NUMBERS)

    before = _list_connections()
    for passes in range(12):
        database = Database(numbers_url)
        task = asyncio.create_task(read(database))
        for _ in range(passes):
            await asyncio.sleep(0.0005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await database.dispose()
        await _wait_until_closed(before)


async def test_disposing_closes_a_connection_that_a_task_still_has(database: Database) -> None:
    before = _list_connections()
    async with database.read() as session:
        await session.execute(NUMBERS)
        await database.dispose()
        await _wait_until_closed(before)
