"""Jobs that do nothing, through the real queue: how many a second, and each exactly once.

The *floor* is the same rows through the bare driver: what is inserted, and for each job one
transaction that deletes its row and inserts its number; nobody claims anything. The *peer* is a
queue library without a broker (`_enrichment_peer.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from sqlalchemy import delete, func, insert, select

from backend.accounts.models import User
from backend.database.base import now
from backend.database.engine import Database
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue
from backend.jobs.worker import Worker
from scripts._bench import ROOT
from scripts._bench_table import DatabaseName, Row, Started, new_database, start
from scripts._enrichment_floor import BATCH, FLOOR, floor, new_job, peer, rate, user_id
from scripts._enrichment_noop import DONE, new_worker

SINGLES = 2_000
"""Most jobs that are enqueued in transactions of their own."""


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
        rows += await floor(name, url, min(jobs, FLOOR), users)
        if peer_python:
            rows += await peer(name, url, min(jobs, FLOOR), peer_python)
        return rows


async def _make_users(database: Database, count: int) -> None:
    people = [
        {
            "id": user_id(number),
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
        await session.execute(insert(User), people)


async def _enqueued(name: str, queue: JobQueue, jobs: int, users: int, *, batch: int) -> list[Row]:
    """Enqueue jobs, `batch` in a transaction; single ones are taken away again."""
    wanted = [new_job(number, users) for number in range(jobs)]
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
    return [rate(name, f"enqueued, {how}", jobs, seconds)]


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
        rate(name, f"worked off by {workers} {what}", jobs, seconds, kind if workers > 1 else ""),
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
