"""Measure the job queue with jobs that only store their number, and check that each runs once.

The workers of SQLite are in this process, those of PostgreSQL are processes. The floor moves the
same rows through the bare driver: it inserts them, then deletes each and stores its number in one
transaction. The floor claims nothing and keeps no order.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid5

import asyncpg  # type: ignore[import-untyped]  # it has no types
import uvloop
from sqlalchemy import Column, Integer, MetaData, Table, delete, func, insert, make_url, select

from backend.accounts.models import User
from backend.core.logs import configure_logging
from backend.database.base import now
from backend.database.engine import Database
from backend.database.sqlite_connection import BUSY_TIMEOUT_MS
from backend.jobs.keys import JobKeys
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.worker import Worker
from scripts.bench.application import ROOT
from scripts.bench.processes import create_database
from scripts.bench.tables import (
    DatabaseName,
    Row,
    add_database_option,
    list_databases,
    new_parser,
    print_rows,
)
from scripts.bench.vectors import IDS

KIND = "bench.noop"
LANES_PER_USER = 4
BATCH_JOBS = 1_000
"""Jobs that one transaction enqueues."""

MAX_SINGLE_JOBS = 2_000
"""Limit of the jobs that are enqueued in a transaction each."""

MAX_FLOOR_JOBS = 10_000
FLOOR_CONNECTIONS = 8
"""Concurrent transactions of the floor on PostgreSQL: as many as the jobs of a worker."""

DONE = Table("bench_done", MetaData(), Column("number", Integer, nullable=False))
"""One row for each job that ran. Nothing prevents duplicates, so that they can be counted."""

_STORE_NUMBER = insert(DONE)
"""One statement for all jobs, because jobs that end together share the execution of equal ones."""


def get_user_id(number: int) -> UUID:
    return uuid5(IDS, f"user/{number}")


def make_job(number: int, users: int) -> NewJob:
    """Return a job. Jobs alternate between users, and between the lanes of each user."""
    user = number % users
    lane = uuid5(IDS, f"lane/{user}/{number // users % LANES_PER_USER}")
    return NewJob(KIND, user_id=get_user_id(user), lane=lane, payload={"number": number})


async def store_number(job: RunningJob) -> None:
    """Store the number of a job in the transaction that ends it."""
    await job.finish_statement(_STORE_NUMBER, [{"number": job.payload["number"]}])


def make_worker(queue: JobQueue) -> Worker:
    kinds = {KIND: JobKind(store_number, needs_key=False, ends_together=True)}
    return Worker(queue, kinds, JobKeys(ROOT), poll=0.2)


async def bench_queue(
    name: DatabaseName, jobs: int, users: int, *, workers: Sequence[int]
) -> list[Row]:
    """Return the rows of one database. `workers` lists numbers of concurrent workers."""
    async with create_database(name) as url:
        database = Database(url)
        queue = JobQueue(database, ROOT)
        async with database.engine.begin() as connection:
            await connection.run_sync(DONE.metadata.create_all)
        await _create_users(database, users)
        rows = [await _enqueue(name, queue, min(jobs, MAX_SINGLE_JOBS), users, batch=1)]
        async with database.write() as session:
            await session.execute(delete(Job))
        for place, count in enumerate(workers):
            row = await _enqueue(name, queue, jobs, users, batch=BATCH_JOBS)
            rows += [] if place else [row]
            await database.optimize()
            rows += await _work(name, url, queue, jobs, count)
        await database.dispose()
        return [*rows, *await measure_floor(name, url, min(jobs, MAX_FLOOR_JOBS), users)]


async def _create_users(database: Database, count: int) -> None:
    users = [
        {
            "id": get_user_id(number),
            "name_lookup": b"%d" % number,
            "wrapped_name": b"",
            "is_administrator": False,
            "is_disabled": False,
            "key_mode": "per_job",
            "wrapped_derivation_key": b"",
            "settings_mac": b"",
            "settings_revision": 0,
            "new_data_key_due": False,
            "created_at": now(),
        }
        for number in range(count)
    ]
    async with database.write() as session:
        await session.execute(insert(User), users)


async def _enqueue(name: str, queue: JobQueue, jobs: int, users: int, *, batch: int) -> Row:
    """Enqueue jobs, `batch` of them in a transaction."""
    new = [make_job(number, users) for number in range(jobs)]
    began = time.perf_counter()
    for first in range(0, jobs, batch):
        async with queue.database.write() as session:
            for job in new[first : first + batch]:
                await queue.enqueue(session, job)
    seconds = time.perf_counter() - began
    return _make_rate(name, f"enqueued, {batch:,} in a transaction", jobs, seconds)


async def _work(
    name: DatabaseName, url: str, queue: JobQueue, jobs: int, workers: int
) -> list[Row]:
    """Run workers until no job is left, and count the numbers that they stored."""
    database = queue.database
    async with database.write() as session:
        await session.execute(delete(DONE))
    run_workers = _run_processes(url, workers) if name == "postgres" else _run(queue, workers)
    async with run_workers as began:
        while True:
            async with database.read() as session:
                if await session.scalar(select(Job.id).limit(1)) is None:
                    break
            await asyncio.sleep(0.1)
        seconds = time.perf_counter() - began
    return [
        _make_rate(name, f"executed by {workers} worker(s)", jobs, seconds),
        await _check_numbers(name, database, jobs),
    ]


@asynccontextmanager
async def _run(queue: JobQueue, count: int) -> AsyncGenerator[float]:
    """Run workers in this process; yield the time at which they start."""
    workers = [make_worker(queue) for _ in range(count)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    yield began
    for worker in workers:
        await worker.aclose()


@asynccontextmanager
async def _run_processes(url: str, count: int) -> AsyncGenerator[float]:
    """Run worker processes; yield the time at which they start to work."""
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scripts.bench.queue", url),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(count)
    ]
    try:
        for process in processes:
            if process.stdout is None or not await process.stdout.readline():
                raise SystemExit("A worker process does not start.")
        began = time.perf_counter()
        for process in processes:
            if process.stdin is not None:
                process.stdin.write(b"go\n")
        yield began
    finally:
        for process in processes:
            process.kill()
            await process.wait()


async def serve_worker(url: str) -> None:
    """Work in this process. It prints a line when it is ready, and waits for one to start."""
    configure_logging("error", "json")
    database = Database(url)
    await database.ping()
    worker = make_worker(JobQueue(database, ROOT))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    worker.start()
    await asyncio.Event().wait()


async def _check_numbers(name: str, database: Database, jobs: int) -> Row:
    """Return the number of jobs that did not run exactly once. It should be 0."""
    async with database.read() as session:
        query = select(DONE.c.number, func.count().label("times")).group_by(DONE.c.number)
        stored = (await session.execute(query)).all()
        left = await session.scalar(select(func.count()).select_from(Job)) or 0
    numbers = {row.number for row in stored}
    lost = len(set(range(jobs)) - numbers)
    doubled = sum(row.times - 1 for row in stored)
    unknown = len(numbers - set(range(jobs)))
    note = f"{lost} lost, {doubled} doubled, {unknown} unknown, {left} left"
    return Row(name, "  not exactly once", lost + doubled + unknown + left, unit="jobs", note=note)


def _make_rate(name: str, label: str, jobs: int, seconds: float, note: str = "") -> Row:
    note = "; ".join(filter(None, [f"{jobs:,} in {seconds:.1f} s", note]))
    return Row(name, label, round(jobs / seconds), unit="jobs/s", note=note)


async def measure_floor(name: DatabaseName, url: str, jobs: int, users: int) -> list[Row]:
    """Return the rows of the bare driver on the same tables."""
    if name == "sqlite":
        file = str(make_url(url).database)
        inserting, working = await asyncio.to_thread(_time_sqlite, file, jobs, users)
        note = "one connection"
    else:
        inserting, working = await _time_postgres(url, jobs, users)
        note = f"{FLOOR_CONNECTIONS} connections"
    return [
        _make_rate(name, f"  floor: inserted, {BATCH_JOBS:,} in a transaction", jobs, inserting),
        _make_rate(name, "  floor: deleted, number stored", jobs, working, note),
    ]


_COLUMNS = (
    *("id", "user_id", "share", "kind", "lane", "payload", "state", "attempts", "run_after"),
    *("leases_lost", "fence", "progress_done", "progress_total", "created_at", "updated_at"),
)


def _make_values(number: int, users: int, at: Any) -> tuple[Any, ...]:
    job = make_job(number, users)
    user, lane, payload = job.user_id, job.lane, f'{{"number":{number}}}'
    job_id = uuid5(IDS, f"floor/{number}")
    return (job_id, user, user, KIND, lane, payload, "queued", 0, at, 0, 0, 0, 0, at, at)


def _make_insert(places: Sequence[str]) -> str:
    columns, values = ", ".join(_COLUMNS), ", ".join(places)
    return f"INSERT INTO jobs ({columns}) VALUES ({values})"  # noqa: S608  # names of columns


def _time_sqlite(file: str, jobs: int, users: int) -> tuple[float, float]:
    connection = sqlite3.connect(file, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")
    rows = [
        [value.bytes if isinstance(value, UUID) else value for value in values]
        for values in (_make_values(number, users, str(now())) for number in range(jobs))
    ]
    statement = _make_insert("?" * len(_COLUMNS))
    began = time.perf_counter()
    for first in range(0, jobs, BATCH_JOBS):
        connection.execute("BEGIN IMMEDIATE")
        for row in rows[first : first + BATCH_JOBS]:
            connection.execute(statement, row)
        connection.execute("COMMIT")
    inserted = time.perf_counter()
    for number, row in enumerate(rows):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM jobs WHERE id = ?", row[:1])
        connection.execute("INSERT INTO bench_done (number) VALUES (?)", (number,))
        connection.execute("COMMIT")
    worked = time.perf_counter()
    connection.close()
    return inserted - began, worked - inserted


async def _time_postgres(url: str, jobs: int, users: int) -> tuple[float, float]:
    dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    pool: Any = await asyncpg.create_pool(
        dsn, min_size=FLOOR_CONNECTIONS, max_size=FLOOR_CONNECTIONS
    )
    rows = [_make_values(number, users, now()) for number in range(jobs)]
    statement = _make_insert([f"${place}" for place in range(1, len(_COLUMNS) + 1)])
    began = time.perf_counter()
    async with pool.acquire() as connection:
        for first in range(0, jobs, BATCH_JOBS):
            async with connection.transaction():
                for row in rows[first : first + BATCH_JOBS]:
                    await connection.execute(statement, *row)
    inserted = time.perf_counter()

    async def work(share: Sequence[tuple[int, UUID]]) -> None:
        async with pool.acquire() as connection:
            for number, job_id in share:
                async with connection.transaction():
                    await connection.execute("DELETE FROM jobs WHERE id = $1", job_id)
                    await connection.execute("INSERT INTO bench_done VALUES ($1)", number)

    todo = [(number, row[0]) for number, row in enumerate(rows)]
    shares = (todo[each::FLOOR_CONNECTIONS] for each in range(FLOOR_CONNECTIONS))
    await asyncio.gather(*map(work, shares))
    worked = time.perf_counter()
    await pool.close()
    return inserted - began, worked - inserted


async def run(options: argparse.Namespace) -> list[Row]:
    return [
        row
        for name in list_databases(options)
        for row in await bench_queue(name, options.jobs, options.users, workers=options.workers)
    ]


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("queue", __doc__)
    add_database_option(parser)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--users", type=int, default=1_000, help="owners of the jobs")
    parser.add_argument("--workers", type=int, nargs="+", default=(1, 2))
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    print_rows(uvloop.run(run(options)), as_json=options.json)  # uvloop, as the server runs


if __name__ == "__main__":
    uvloop.run(serve_worker(sys.argv[1]))
