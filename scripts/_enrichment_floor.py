"""The floor and the peer of the queue's figures, and the jobs that they all take."""

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
from sqlalchemy import make_url

from backend.database.base import now
from backend.database.sqlite_connection import BUSY_TIMEOUT_MS
from backend.jobs.queue import NewJob
from scripts._bench import IDS
from scripts._bench_table import DatabaseName, Row
from scripts._enrichment_noop import KIND

LANES = 4
"""Lanes of one user."""
BATCH = 1_000
"""Jobs that one transaction enqueues."""
FLOOR = 10_000
"""Most jobs of the floor and of the peer."""
CONCURRENCY = 8
"""Transactions of the floor at once on PostgreSQL, as many as a worker runs jobs."""
PEER = Path(__file__).with_name("_enrichment_peer.py")


def user_id(number: int) -> UUID:
    """The id of a made-up user."""
    return uuid5(IDS, f"user/{number}")


def new_job(number: int, users: int) -> NewJob:
    """Users take turns, and lanes within each user."""
    user = number % users
    lane = uuid5(IDS, f"lane/{user}/{number // users % LANES}")
    return NewJob(KIND, user_id=user_id(user), lane=lane, payload={"number": number})


def rate(name: str, what: str, jobs: int, seconds: float, note: str = "") -> Row:
    """A row of jobs a second."""
    note = "; ".join(filter(None, [f"{jobs:,} in {seconds:.1f} s", note]))
    return Row(name, what, round(jobs / seconds), None, "jobs/s", note)


async def floor(name: DatabaseName, url: str, jobs: int, users: int) -> list[Row]:
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
        rate(name, f"floor: inserted, {BATCH:,} a transaction", jobs, enqueuing),
        rate(name, "floor: deleted and noted, one a transaction", jobs, working, note),
    ]


async def peer(name: DatabaseName, url: str, jobs: int, python: str) -> list[Row]:
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
        rate(name, f"peer: {library}, enqueued", jobs, found["enqueuing"]),
        rate(name, f"peer: {library}, worked off", jobs, found["working"], note),
    ]


def _dsn(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


_COLUMNS = (
    *("id", "user_id", "share", "kind", "lane", "payload", "state", "attempts", "run_after"),
    *("leases_lost", "fence", "progress_done", "progress_total", "created_at", "updated_at"),
)


def _values(number: int, users: int, at: Any) -> tuple[Any, ...]:
    job = new_job(number, users)
    user, lane, payload = job.user_id, job.lane, f'{{"number":{number}}}'
    job_id = uuid5(IDS, f"floor/{number}")
    return (job_id, user, user, KIND, lane, payload, "queued", 0, at, 0, 0, 0, 0, at, at)


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
