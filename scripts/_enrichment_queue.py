"""Jobs that do nothing, through the real queue: how many a second, and each exactly once.

The *floor* is the same rows through the bare driver: what is inserted, and for each job one
transaction that deletes its row and inserts its number; nobody claims anything. The *peer* is a
queue library without a broker (`_enrichment_peer.py`).
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import asyncpg  # type: ignore[import-untyped]  # it has no types
from sqlalchemy import delete, func, insert, make_url, select

from backend.accounts.models import User
from backend.database.base import now
from backend.database.engine import BUSY_TIMEOUT_MS, Database
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.worker import Worker
from scripts._bench import IDS, ROOT
from scripts._enrichment_common import DatabaseName, Row, Started, new_database, start
from scripts._enrichment_noop import DONE, KIND, new_worker

LANES = 4
"""Lanes of one user."""
BATCH = 1_000
"""Jobs that one transaction enqueues."""
SINGLES = 2_000
"""Most jobs that are enqueued in transactions of their own."""
FLOOR = 10_000
"""Most jobs of the floor."""
PEER = Path(__file__).with_name("_enrichment_peer.py")
CONCURRENCY = 8
"""Transactions of the floor at once on PostgreSQL, as many as a worker runs jobs."""


async def bench_queue(
    name: DatabaseName,
    jobs: int,
    users: int,
    *,
    workers: Sequence[int] = (1, 2),
    peer_python: str | None = None,
) -> list[Row]:
    """The rows of one database.

    Args:
        name: SQLite's workers are in this process, PostgreSQL's are processes.
        jobs: How many go in and out, anew for each number of workers.
        users: Whose jobs they are, in turn.
        workers: How many work at once.
        peer_python: What runs the peer; None leaves it out.
    """
    async with new_database(name) as url:
        database = Database(url)
        queue = JobQueue(database, ROOT)
        async with database.engine.begin() as connection:
            await connection.run_sync(DONE.metadata.create_all)
        await _make_users(database, users)
        rows = await _enqueued(name, queue, min(jobs, SINGLES), users, batch=1)
        for place, count in enumerate(workers):
            filled = await _enqueued(name, queue, jobs, users, batch=BATCH)
            rows += [] if place else filled
            await database.optimize()
            rows += await _worked_off(name, url, queue, jobs, count)
        await database.dispose()
        rows += await _floor(name, url, min(jobs, FLOOR), users)
        if peer_python:
            rows += await _peer(name, url, min(jobs, FLOOR), peer_python)
        return rows


async def _make_users(database: Database, count: int) -> None:
    people = [
        {
            "id": _user(number),
            "name_lookup": b"%d" % number,
            "wrapped_name": b"",
            "is_administrator": False,
            "is_disabled": False,
            "key_mode": "per_job",
            "settings_mac": b"",
            "settings_revision": 0,
            "new_data_key_due": False,
            "created_at": now(),
        }
        for number in range(count)
    ]
    async with database.write() as session:
        await session.execute(insert(User), people)


def _user(number: int) -> UUID:
    return uuid5(IDS, f"user/{number}")


def _job(number: int, users: int) -> NewJob:
    """Users take turns, and lanes within each user."""
    user = number % users
    lane = uuid5(IDS, f"lane/{user}/{number // users % LANES}")
    return NewJob(KIND, user_id=_user(user), lane=lane, payload={"number": number})


async def _enqueued(name: str, queue: JobQueue, jobs: int, users: int, *, batch: int) -> list[Row]:
    """Enqueue jobs, `batch` in a transaction; single ones are taken away again."""
    wanted = [_job(number, users) for number in range(jobs)]
    began = time.perf_counter()
    for first in range(0, jobs, batch):
        async with queue.database.write() as session:
            for job in wanted[first : first + batch]:
                await queue.enqueue(session, job)
    seconds = time.perf_counter() - began
    if batch == 1:
        async with queue.database.write() as session:
            await session.execute(delete(Job))
    how = "one a transaction" if batch == 1 else f"{batch:,} a transaction"
    return [_rate(name, f"enqueued, {how}", jobs, seconds)]


def _rate(name: str, what: str, jobs: int, seconds: float, note: str = "") -> Row:
    note = "; ".join(filter(None, [f"{jobs:,} in {seconds:.1f} s", note]))
    return Row(name, what, round(jobs / seconds), None, "jobs/s", note)


async def _worked_off(
    name: DatabaseName, url: str, queue: JobQueue, jobs: int, workers: int
) -> list[Row]:
    """Work until no job is left; then count what each of them wrote down."""
    database = queue.database
    async with database.write() as session:
        await session.execute(delete(DONE))
    processes: list[Started] = []
    inside: list[Worker] = []
    if name == "postgres":
        processes = [await start("_enrichment_noop", url) for _ in range(workers)]
        began = time.perf_counter()
        for each in processes:
            await each.say("go")
    else:
        inside = [new_worker(queue) for _ in range(workers)]
        began = time.perf_counter()
        for worker in inside:
            worker.start()
    await _until_empty(database)
    seconds = time.perf_counter() - began
    for each in processes:
        await each.kill()
    for worker in inside:
        await worker.aclose()
    what = "worker" if workers == 1 else "workers"
    kind = "processes" if processes else "in one process"
    return [
        _rate(name, f"worked off by {workers} {what}", jobs, seconds, kind if workers > 1 else ""),
        await _exactly_once(name, database, jobs, workers),
    ]


async def _until_empty(database: Database) -> None:
    left = select(Job.id).limit(1)
    while True:
        async with database.read() as session:
            if await session.scalar(left) is None:
                return
        await asyncio.sleep(0.1)


async def _exactly_once(name: str, database: Database, jobs: int, workers: int) -> Row:
    """How many numbers are missing, twice or made up, and how many jobs are left: 0."""
    async with database.read() as session:
        counted = (
            await session.execute(
                select(DONE.c.number, func.count().label("times")).group_by(DONE.c.number)
            )
        ).all()
        left = await session.scalar(select(func.count()).select_from(Job)) or 0
    numbers = {row.number for row in counted}
    missing = len(set(range(jobs)) - numbers)
    twice = sum(row.times - 1 for row in counted)
    made_up = len(numbers - set(range(jobs)))
    note = f"{missing} lost, {twice} doubled, {made_up} made up, {left} left, {workers} working"
    return Row(name, "  not exactly once", missing + twice + made_up + left, None, "jobs", note)


async def _floor(name: DatabaseName, url: str, jobs: int, users: int) -> list[Row]:
    """The same rows in and out through the bare driver, on the same tables."""
    if name == "sqlite":
        enqueuing, working = await asyncio.to_thread(
            _floor_sqlite, make_url(url).database, jobs, users
        )
        note = "one connection"
    else:
        enqueuing, working = await _floor_postgres(url, jobs, users)
        note = f"{CONCURRENCY} connections"
    return [
        _rate(name, f"floor: inserted, {BATCH:,} a transaction", jobs, enqueuing),
        _rate(name, "floor: deleted and noted, one a transaction", jobs, working, note),
    ]


async def _peer(name: DatabaseName, url: str, jobs: int, python: str) -> list[Row]:
    """A queue library on an empty file of its own, or in the same database."""
    library = "huey" if name == "sqlite" else "procrastinate"
    place = f"{make_url(url).database}.huey" if name == "sqlite" else _dsn(url)
    process = await asyncio.create_subprocess_exec(
        *(python, str(PEER), library, place, str(jobs)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{library} does not run with {python}.")
    found = json.loads(output)
    note = f"no lanes; {jobs - found['noted']} lost"
    return [
        _rate(name, f"peer: {library}, enqueued", jobs, found["enqueuing"]),
        _rate(name, f"peer: {library}, worked off", jobs, found["working"], note),
    ]


def _dsn(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


_COLUMNS = (
    *("id", "user_id", "share", "kind", "lane", "payload", "state", "attempts", "run_after"),
    *("fence", "progress_done", "progress_total", "created_at", "updated_at"),
)


def _values(number: int, users: int, at: Any) -> tuple[Any, ...]:
    job = _job(number, users)
    user, lane, payload = job.user_id, job.lane, f'{{"number":{number}}}'
    job_id = uuid5(IDS, f"floor/{number}")
    return (job_id, user, user, KIND, lane, payload, "queued", 0, at, 0, 0, 0, at, at)


def _floor_sqlite(file: str | None, jobs: int, users: int) -> tuple[float, float]:
    connection = sqlite3.connect(
        Path(file or ""), isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000
    )
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")
    rows = [
        [
            each.bytes if isinstance(each, UUID) else each
            for each in _values(number, users, str(now()))
        ]
        for number in range(jobs)
    ]
    places = ", ".join("?" * len(_COLUMNS))
    adding = f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({places})"  # noqa: S608  # names of columns
    began = time.perf_counter()
    for first in range(0, jobs, BATCH):
        connection.execute("BEGIN IMMEDIATE")
        for row in rows[first : first + BATCH]:
            connection.execute(adding, row)
        connection.execute("COMMIT")
    enqueued = time.perf_counter()
    for number, row in enumerate(rows):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM jobs WHERE id = ?", row[:1])
        connection.execute("INSERT INTO bench_done (number) VALUES (?)", (number,))
        connection.execute("COMMIT")
    worked = time.perf_counter()
    connection.close()
    return enqueued - began, worked - enqueued


async def _floor_postgres(url: str, jobs: int, users: int) -> tuple[float, float]:
    pool: Any = await asyncpg.create_pool(_dsn(url), min_size=CONCURRENCY, max_size=CONCURRENCY)
    rows = [_values(number, users, now()) for number in range(jobs)]
    places = ", ".join(f"${place}" for place in range(1, len(_COLUMNS) + 1))
    adding = f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({places})"  # noqa: S608  # names of columns
    began = time.perf_counter()
    async with pool.acquire() as connection:
        for first in range(0, jobs, BATCH):
            async with connection.transaction():
                for row in rows[first : first + BATCH]:
                    await connection.execute(adding, *row)
    enqueued = time.perf_counter()

    async def work(share: Sequence[tuple[int, UUID]]) -> None:
        async with pool.acquire() as connection:
            for number, job_id in share:
                async with connection.transaction():
                    await connection.execute("DELETE FROM jobs WHERE id = $1", job_id)
                    await connection.execute("INSERT INTO bench_done VALUES ($1)", number)

    todo = [(number, row[0]) for number, row in enumerate(rows)]
    await asyncio.gather(*(work(todo[each::CONCURRENCY]) for each in range(CONCURRENCY)))
    worked = time.perf_counter()
    await pool.close()
    return enqueued - began, worked - enqueued
