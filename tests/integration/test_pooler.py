"""Tests of PostgreSQL behind PgBouncer in transaction mode."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, literal, select, text

from backend.accounts.models import LoginFailures
from backend.database import migrate
from backend.database.base import now, stream_rows
from backend.database.engine import Database
from backend.operations.doctor import Finding, examine
from backend.settings import Settings
from scripts.bench.pooler import SERVER_CONNECTIONS, find_pooler, run_pooler
from tests.e2e.test_chronicle import STORY, events_of, opted_in
from tests.e2e.test_crash import browser
from tests.integration.test_processes import run_job_of_other
from tests.integration.turns.following import follow, take_words, turn_under_way
from tests.support.process import TALEKEEPER, Served, environment, serving
from tests.support.server import text_of
from tests.support.waiting import until

pytestmark = [pytest.mark.pooler, pytest.mark.postgres, pytest.mark.anyio]

TRANSACTIONS = 320
ROOT_KEY = "1:" + "cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI="
NOBODY_THERE = "http://127.0.0.1:9"
"""An index that does not answer. Turns continue without it."""


@pytest.fixture
def pooled_url(postgres_url: str) -> Generator[str]:
    program = find_pooler()
    if program is None:
        pytest.skip("pgbouncer is not installed (Debian: apt-get install pgbouncer)")
    with run_pooler(program, postgres_url) as url:
        yield url


@contextlib.asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncGenerator[Database]:
    database = Database(url, **options)
    try:
        yield database
    finally:
        await database.dispose()


async def test_transactions_that_share_server_connections_do_not_disturb_each_other(
    pooled_url: str,
) -> None:
    async def write(database: Database, number: int) -> None:
        async with database.write() as session:
            session.add(LoginFailures(key=b"%d" % number, failures=number, last_at=now()))
            await session.flush()
            row = await session.get_one(LoginFailures, b"%d" % number, populate_existing=True)
            row.failures += await session.scalar(select(literal(number))) or 0

    async def read(database: Database, number: int) -> None:
        async with database.read() as session:
            assert await session.scalar(select(literal(number))) == number
            series = func.generate_series(1, number + 600).column_valued("value")
            found = [row.value async for row in stream_rows(session, select(series))]
            assert found == list(range(1, number + 601))

    async with opened(pooled_url) as one, opened(pooled_url) as other:
        async with asyncio.TaskGroup() as tasks:
            for number in range(TRANSACTIONS // 2):
                tasks.create_task(write((one, other)[number % 2], number))
                tasks.create_task(read((other, one)[number % 2], number))
        async with one.read() as session:
            rows = {row.key: row.failures for row in await session.scalars(select(LoginFailures))}
        assert rows == {b"%d" % number: 2 * number for number in range(TRANSACTIONS // 2)}
        assert await one.find_pooler()
        async with one.read() as session:
            left = await session.scalar(text("SELECT count(*) FROM pg_prepared_statements"))
        assert left == 0


async def occupy(database: Database) -> None:
    """Use a server connection for some time, so that the pooler opens more of them."""
    async with database.read() as session:
        await session.execute(text("SELECT pg_sleep(0.5)"))


@pytest.mark.parametrize("is_direct", [False, True])
async def test_tables_are_migrated(postgres_url: str, pooled_url: str, *, is_direct: bool) -> None:
    async with opened(postgres_url) as database:
        assert not await database.find_pooler()
        await migrate.downgrade(database, "base")
    async with opened(pooled_url, direct_url=postgres_url if is_direct else "") as database:
        assert await database.find_pooler()
        await asyncio.gather(*(occupy(database) for _ in range(SERVER_CONNECTIONS)))
        assert await migrate.upgrade(database)
        assert await migrate.current_revision(database) == migrate.HEAD


async def test_jobs_are_announced_through_the_pooler_and_heard_directly(
    postgres_url: str, pooled_url: str
) -> None:
    async with (
        opened(pooled_url, direct_url=postgres_url) as working,
        opened(pooled_url) as adding,
    ):
        await run_job_of_other(working, adding)


async def examine_database(**settings: str) -> Finding:
    options: dict[str, Any] = {"_env_file": None, **settings}
    findings = await examine(Settings(**options))
    return next(finding for finding in findings if finding.name == "database")


async def test_doctor_reports_the_pooler(postgres_url: str, pooled_url: str) -> None:
    assert "pooler" not in (await examine_database(database_url=postgres_url)).detail
    pooled = await examine_database(database_url=pooled_url)
    assert (pooled.state, "through a pooler" in pooled.detail) == ("ok", True)
    assert "TALEKEEPER_DATABASE_DIRECT_URL" in pooled.advice
    direct = await examine_database(database_url=pooled_url, database_direct_url=postgres_url)
    assert (direct.state, direct.advice) == ("ok", "")
    wrong = await examine_database(database_url=pooled_url, database_direct_url=pooled_url)
    assert (wrong.state, "is a pooler" in wrong.detail) == ("fault", True)


@contextlib.contextmanager
def working(folder: Path, **settings: str) -> Generator[None]:
    """Run `talekeeper work` until the block ends."""
    command = [str(TALEKEEPER), "work", "--data-dir", str(folder)]
    with subprocess.Popen(
        command, cwd=folder, env=environment(**settings), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert "running jobs" in process.stdout.readline()
            yield
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("is_direct", [False, pytest.param(True, marks=pytest.mark.thorough)])
async def test_processes_share_turns_and_jobs(
    postgres_url: str, pooled_url: str, tmp_path: Path, *, is_direct: bool
) -> None:
    folder, settings = tmp_path / "data", {"database_url": pooled_url, "root_key": ROOT_KEY}
    if is_direct:
        settings["database_direct_url"] = postgres_url
    settings |= {"qdrant_url": NOBODY_THERE, "demo_tokens_per_second": "40", "embedder": "none"}
    folder.mkdir()
    with contextlib.ExitStack() as stack:

        def start(name: str) -> Served:
            own = tmp_path / name
            own.mkdir()
            return stack.enter_context(serving(own, **settings))

        one, other = start("one"), start("other")
        stack.enter_context(working(folder, **settings))
        async with (
            browser(one) as ada,
            browser(other, ada.client.cookies) as elsewhere,
        ):
            chat, chronicle = await opted_in(ada)
            async with turn_under_way(ada, chat, text="/demo long 60") as (turn_id, events):
                heard = await take_words(events, 5)
                followed = await follow(elsewhere.client, turn_id)
                heard += [event async for event in events]
            assert text_of(followed) == text_of(heard)
            assert followed[-1].name == heard[-1].name == "turn.completed"
            for number, line in enumerate(STORY):
                await (ada, elsewhere)[number % 2].turn(chat, text=line)

            async def are_written() -> bool:
                return len(await events_of(elsewhere, chronicle)) >= 3

            await until(are_written)

            async with turn_under_way(ada, chat, text="/demo long 400") as (turn_id, events):
                heard = await take_words(events, 5)
                one.process.kill()
                # The other process misses the heartbeat, and ends the turn.
                followed = await follow(elsewhere.client, turn_id)
                await events.aclose()
            assert followed[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"
        for served in (one, other):
            assert "DBAPIError" not in served.log.read_text()
            assert "prepared statement" not in served.log.read_text()
