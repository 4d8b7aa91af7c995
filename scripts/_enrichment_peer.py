"""The same jobs through other queues: huey on SQLite, procrastinate on PostgreSQL.

    python _enrichment_peer.py huey FILE JOBS
    python _enrichment_peer.py procrastinate DSN JOBS

Run by a Python that has them. It prints the seconds of enqueuing (in procrastinate 1,000 at once)
and of working, and how many numbers were noted, as JSON. Neither notes a number in the transaction
that ends the job, and no lanes are asked of either: huey has none, and procrastinate's locks make
it several times slower.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from importlib import import_module
from typing import Any

BATCH = 1_000
CONCURRENCY = 8


def huey(file: str, jobs: int) -> dict[str, float]:
    """SqliteHuey with a consumer of eight threads."""
    queue: Any = import_module("huey").SqliteHuey(filename=file, fsync=True, results=False)
    notes = sqlite3.connect(f"{file}.done", isolation_level=None, check_same_thread=False)
    notes.execute("PRAGMA journal_mode=WAL")
    notes.execute("CREATE TABLE done (number INTEGER)")

    def note(number: int) -> None:
        notes.execute("INSERT INTO done VALUES (?)", (number,))

    task = queue.task()(note)
    began = time.perf_counter()
    for number in range(jobs):
        task(number)
    enqueued = time.perf_counter()
    consumer = queue.create_consumer(workers=CONCURRENCY, initial_delay=0.01, max_delay=0.05)
    consumer.start()
    counted = 0
    while counted < jobs:
        time.sleep(0.05)
        counted = notes.execute("SELECT count(*) FROM done").fetchone()[0]
    worked = time.perf_counter()
    consumer.stop()
    return {"enqueuing": enqueued - began, "working": worked - enqueued, "noted": counted}


async def procrastinate(dsn: str, jobs: int) -> dict[str, float]:
    """One worker of eight jobs at once."""
    library, pools = import_module("procrastinate"), import_module("psycopg_pool")
    app: Any = library.App(connector=library.PsycopgConnector(conninfo=dsn, max_size=CONCURRENCY))
    notes: Any = pools.AsyncConnectionPool(dsn, min_size=2, max_size=CONCURRENCY, open=False)
    await notes.open()

    async def note(number: int) -> None:
        async with notes.connection() as connection:
            await connection.execute("INSERT INTO peer_done VALUES (%s)", (number,))

    task = app.task(name="note")(note)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        async with notes.connection() as connection:
            await connection.execute("CREATE TABLE peer_done (number INTEGER)")
        began = time.perf_counter()
        for first in range(0, jobs, BATCH):
            some = [{"number": each} for each in range(first, min(first + BATCH, jobs))]
            await task.batch_defer_async(*some)
        enqueued = time.perf_counter()
        await app.run_worker_async(
            wait=False, concurrency=CONCURRENCY, install_signal_handlers=False
        )
        worked = time.perf_counter()
        async with notes.connection() as connection:
            rows = await connection.execute("SELECT count(DISTINCT number) FROM peer_done")
            counted = (await rows.fetchone())[0]
    await notes.close()
    return {"enqueuing": enqueued - began, "working": worked - enqueued, "noted": counted}


def main() -> None:
    which, place, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    found = huey(place, jobs) if which == "huey" else asyncio.run(procrastinate(place, jobs))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
