"""Tests of several processes: heartbeats, lost processes, and two servers of one proxy."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, text, update

from backend.database import processes
from backend.database.base import new_id, now
from backend.database.engine import Database, DatabaseUnavailableError
from backend.database.processes import Process, Processes
from backend.jobs.keys import JobKeys
from backend.jobs.models import JOB_LEASES, Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.worker import Worker
from backend.vault.root import RootKeys
from tests.support.compose import door, free_port
from tests.support.player import API, Player
from tests.support.process import Served, serving
from tests.support.statements import record_statements
from tests.support.waiting import PATIENCE, until, until_true

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BEAT_SECONDS", 0.1)


@pytest.fixture
async def database(postgres_url: str) -> AsyncGenerator[Database]:
    database = Database(postgres_url, pool_size=1)
    yield database
    await database.dispose()


@pytest.fixture
async def observer(postgres_url: str) -> AsyncGenerator[Database]:
    observer = Database(postgres_url)
    yield observer
    await observer.dispose()


@contextlib.asynccontextmanager
async def beating(database: Database, **options: Any) -> AsyncGenerator[Processes]:
    async def do_nothing() -> None:
        pass

    process = Processes(database, [JOB_LEASES], on_loss=do_nothing, **options)
    await process.start()
    try:
        yield process
    finally:
        await process.aclose()


async def beat_again(database: Database, observer: Database) -> None:
    """Wait for three more heartbeats."""
    seen = set[datetime]()

    async def is_seen_again() -> bool:
        async with observer.read() as session:
            row = await session.get(Process, database.process_id)
        seen.update({row.seen_at} if row else ())
        return len(seen) > 3

    await until(is_seen_again)


PUNCTUAL = 0.19
"""Seconds between two heartbeats that are not late."""


class _Watch:
    """A clock that advances by `step` seconds at each heartbeat."""

    def __init__(self, step: float) -> None:
        self.step = step
        self._at = 0.0

    def __call__(self) -> float:
        self._at += self.step
        return self._at


async def test_a_process_that_stood_still_takes_no_other_for_lost_until_they_could_beat_again(
    database: Database, observer: Database
) -> None:
    other, watch = new_id(), _Watch(step=5)
    async with database.write() as session:
        session.add(Process(id=other, seen_at=now() - timedelta(minutes=1)))
    async with beating(database, clock=watch):
        await beat_again(database, observer)
        assert not await is_lost(observer, other)
        watch.step = PUNCTUAL
        await until(lambda: is_lost(observer, other))


DEAD_PID = 2**31 - 1
"""Not a process of PostgreSQL: Linux has no such numbers."""
LATE = timedelta(seconds=1.3)
"""An age at which a process is lost only if its connection is closed."""


async def add_late(database: Database, pid: int | None) -> UUID:
    """Add the row of a process that has sent no heartbeat for `LATE`."""
    process_id = new_id()
    async with database.write() as session:
        session.add(Process(id=process_id, seen_at=now() - LATE, backend_pid=pid))
    return process_id


async def is_lost(database: Database, process_id: UUID) -> bool:
    async with database.read() as session:
        return await session.get(Process, process_id) is None


async def find_backend(observer: Database, process: Database) -> int:
    """Return PostgreSQL's process for the heartbeats of a process."""
    async with observer.read() as session:
        pid = (await session.get_one(Process, process.process_id)).backend_pid
    assert pid
    return pid


async def test_a_late_process_is_lost_earlier_if_its_connection_is_closed(
    database: Database, observer: Database
) -> None:
    async with beating(database, clock=_Watch(PUNCTUAL)):
        await beat_again(database, observer)
        open_pid = await find_backend(observer, database)
        connected, pooled = await add_late(observer, open_pid), await add_late(observer, None)
        killed = await add_late(observer, DEAD_PID)

        async def killed_is_lost() -> bool:
            async with observer.write() as session:
                await session.execute(
                    update(Process)
                    .where(Process.id.in_((connected, pooled)))
                    .values(seen_at=now() - LATE)
                )
            return await is_lost(observer, killed)

        await until(killed_is_lost)
        assert not await is_lost(observer, connected)
        assert not await is_lost(observer, pooled)


async def test_a_process_that_had_to_connect_again_waits_until_the_others_have(
    database: Database, observer: Database
) -> None:
    watch = _Watch(PUNCTUAL)
    async with beating(database, clock=watch):
        first = await add_late(observer, DEAD_PID)
        await until(lambda: is_lost(observer, first))
        watch.step = 0.001
        old_pid = await find_backend(observer, database)
        async with observer.write() as session:
            # As a restart of PostgreSQL does with all connections.
            await session.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": old_pid})

        async def has_connected() -> bool:
            return await find_backend(observer, database) != old_pid

        await until(has_connected)
        second = await add_late(observer, DEAD_PID)
        await beat_again(database, observer)
        assert not await is_lost(observer, second)
        watch.step = PUNCTUAL
        await until(lambda: is_lost(observer, second))


async def lease_job(database: Database, owner: UUID) -> UUID:
    async with database.write() as session:
        queue = JobQueue(database, RootKeys({1: b"r" * 32}))
        job_id = await queue.enqueue(session, NewJob(kind="work"))
        job = await session.get_one(Job, job_id)
        job.state, job.lease_owner = "running", owner
        job.lease_until = now() + timedelta(hours=1)
    return job.id


async def is_lease_over(database: Database, job_id: UUID) -> bool:
    async with database.read() as session:
        lease_until = (await session.get_one(Job, job_id)).lease_until
    return lease_until is not None and lease_until <= now()


async def test_a_lost_process_does_not_keep_the_locks_of_its_transaction(
    database: Database, observer: Database, postgres_url: str
) -> None:
    stopped = Database(postgres_url)
    job_id = await lease_job(database, stopped.process_id)
    async with database.write() as session:
        session.add(Process(id=stopped.process_id, seen_at=now() - timedelta(minutes=1)))
    with pytest.raises(DatabaseUnavailableError):
        async with stopped.write() as session:
            await session.get_one(Job, job_id, with_for_update=True)
            async with beating(database, clock=_Watch(PUNCTUAL)):
                await until(lambda: is_lease_over(observer, job_id))
    await stopped.dispose()


async def test_a_process_that_was_late_keeps_its_transaction(
    database: Database, observer: Database, postgres_url: str
) -> None:
    late, has_looked = Database(postgres_url), asyncio.Event()
    row = Process(id=late.process_id, seen_at=now() - timedelta(minutes=1))

    async def note() -> None:
        has_looked.set()

    async with observer.write() as session:
        session.add(row)
    async with contextlib.AsyncExitStack() as stack:
        working = await stack.enter_async_context(late.write())
        await working.execute(text("SELECT 1"))
        process = Processes(database, [], on_loss=note, clock=_Watch(PUNCTUAL))
        await process.start()
        has_looked.clear()
        # It notices the loss after two steady seconds, and waits for a connection to take over.
        async with database.write() as one, database.write() as other:
            for each in (one, other):
                await each.execute(text("SELECT 1"))
            for _ in range(6):
                await beat_again(database, observer)
            async with observer.write() as session:
                (await session.get_one(Process, late.process_id)).seen_at = now() + timedelta(
                    hours=1
                )
        await asyncio.wait_for(has_looked.wait(), PATIENCE)
        await working.execute(text("SELECT 1"))
        await process.aclose()
    await late.dispose()


async def test_heartbeats_need_no_connection_of_the_pool(
    database: Database, observer: Database
) -> None:
    async with beating(database), database.write() as one, database.write() as other:
        for each in (one, other):
            await each.execute(text("SELECT 1"))  # takes a connection
        await beat_again(database, observer)


async def test_a_process_that_ends_in_order_gives_up_what_it_still_holds(
    database: Database, observer: Database
) -> None:
    async with beating(database):
        await beat_again(database, observer)
        job_id = await lease_job(database, database.process_id)
    assert await is_lease_over(observer, job_id)
    async with observer.read() as session:
        assert list(await session.scalars(select(Process))) == []


NEVER = 3600.0
"""Seconds until a poll that no test waits for."""


async def run_job_of_other(working: Database, adding: Database) -> None:
    """Let a worker run a job that another process adds. It does not poll."""
    root, is_done = RootKeys({1: b"r" * 32}), asyncio.Event()

    async def handler(_job: RunningJob) -> None:
        is_done.set()

    queue, other = JobQueue(working, root), JobQueue(adding, root)
    kinds = {"work": JobKind(handler, needs_key=False)}
    worker = Worker(queue, kinds, JobKeys(root), poll=NEVER)
    async with beating(working, on_news=queue.note_news), beating(adding) as process:
        other.announce = process.announce
        worker.start()
        async with adding.write() as session:
            await other.enqueue(session, NewJob(kind="work"))
        async with asyncio.timeout(PATIENCE):
            await is_done.wait()
        await worker.aclose()


async def test_a_job_wakes_the_workers_of_other_processes(
    database: Database, observer: Database
) -> None:
    await run_job_of_other(database, observer)


CLAIM = "pg_advisory_xact_lock"
"""Part of the statement that locks the claims of all processes."""
LOOKS = ("SELECT EXISTS", "SELECT (EXISTS")
"""The first words of the statements that only look whether there may be a job."""


class _KeysOf(JobKeys):
    """Keys of one user, who is signed in."""

    def users(self) -> list[UUID]:
        return [UUID(int=1)]


async def test_processes_that_hear_of_a_job_which_is_taken_claim_nothing(
    database: Database, postgres_url: str
) -> None:
    root, count = RootKeys({1: b"r" * 32}), 4
    heard = set[int]()

    async def handler(_job: RunningJob) -> None:
        raise AssertionError

    def hear(number: int, queue: JobQueue) -> None:
        heard.add(number)
        queue.note_news()

    async with contextlib.AsyncExitStack() as stack:
        statements = stack.enter_context(record_statements())
        for number in range(count):
            other = Database(postgres_url, pool_size=1)
            stack.push_async_callback(other.dispose)
            queue = JobQueue(other, root)
            worker = Worker(
                queue,
                {"work": JobKind(handler, needs_key=False)},
                _KeysOf(root),
                takes_queued=number % 2 == 0,
                poll=NEVER,
            )
            worker.start()
            stack.push_async_callback(worker.aclose)
            on_news = partial(hear, number, queue)
            await stack.enter_async_context(beating(other, on_news=on_news))
        process = await stack.enter_async_context(beating(database))

        def count_claims() -> int:
            return sum(CLAIM in each.text for each in statements)

        def count_looks() -> int:
            return sum(each.text.startswith(LOOKS) for each in statements)

        def have_looked(times: int) -> bool:
            return len(heard) == count and count_looks() >= times * count

        # Each claims when it starts, and looks when it begins to listen.
        await until_true(lambda: have_looked(1) and count_claims() >= count)
        heard.clear()
        process.announce()
        await until_true(lambda: have_looked(2))
        assert count_claims() == count


ADDRESSES = ("127.0.0.2", "127.0.0.3")
ROOT_KEY = "1:" + "cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI="
NOBODY_THERE = "http://127.0.0.1:9"
"""An index that does not answer. Turns continue without it."""

REPLIES = 4
"""The proxy sends two to each server."""


def start(folder: Path, address: str, port: int, database_url: str, stack: ExitStack) -> Served:
    """Start a server that runs until the stack is left."""
    folder.mkdir()
    server = serving(
        folder,
        port=port,
        host=address,
        database_url=database_url,
        root_key=ROOT_KEY,
        qdrant_url=NOBODY_THERE,
        drain_seconds=3600,
        demo_tokens_per_second=50,
    )
    return stack.enter_context(server)


def write_until(player: Player, is_over: threading.Event) -> set[int]:
    """Make chats until the event is set. Return the statuses of the answers."""
    statuses: set[int] = set()
    with player.client() as client:
        while not is_over.is_set():
            statuses.add(client.post(f"{API}/chats", json={}).status_code)
    return statuses


@pytest.mark.door
def test_a_server_that_ends_costs_no_request_and_cuts_no_reply(
    postgres_url: str, tmp_path: Path
) -> None:
    port, is_over = free_port(ADDRESSES), threading.Event()
    with ThreadPoolExecutor(REPLIES + 1) as threads, ExitStack() as stack:
        ending, _ = (start(tmp_path / each, each, port, postgres_url, stack) for each in ADDRESSES)
        player = Player(stack.enter_context(door(tmp_path, ADDRESSES, port)))
        replies = [threads.submit(player.read_reply, "/demo long 120") for _ in range(REPLIES)]
        statuses = threads.submit(write_until, player, is_over)
        for _ in replies:
            assert player.streaming.acquire(timeout=PATIENCE)

        ending.process.send_signal(signal.SIGTERM)
        assert ending.process.wait(PATIENCE) == 0
        later = player.read_reply("/demo long 1")
        is_over.set()

        for events in [*(each.result(PATIENCE) for each in replies), later]:
            assert "event: turn.completed" in events
        assert statuses.result(PATIENCE) == {201}
        assert "turn.finished" in ending.log.read_text()
