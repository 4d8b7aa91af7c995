"""Jobs that do nothing but note that they ran, and a worker process for them.

    python -m scripts._enrichment_noop DATABASE_URL

It says `ready`, and works from the first line of its input on.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from sqlalchemy import Column, Integer, MetaData, Table, insert

from backend.core.logs import configure_logging
from backend.database.engine import Database
from backend.jobs.keys import JobKeys
from backend.jobs.queue import JobQueue
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.worker import Worker
from scripts._bench import ROOT

KIND = "bench.noop"
DONE = Table("bench_done", MetaData(), Column("number", Integer, nullable=False))
"""One row a job that ran. Nothing here keeps a number from being there twice: that is counted."""
_NOTE = insert(DONE)


async def note(job: RunningJob) -> None:
    """Write the job's number down, in the transaction that ends it."""
    await job.finish_statement(_NOTE, [{"number": job.payload["number"]}])


def new_worker(queue: JobQueue) -> Worker:
    """A worker for these jobs, as the server makes its own."""
    kinds = {KIND: JobKind(note, needs_key=False, ends_together=True)}
    return Worker(queue, kinds, JobKeys(ROOT), poll=0.2)


async def main(url: str) -> None:
    configure_logging("error", "json")
    database = Database(url)
    await database.ping()
    worker = new_worker(JobQueue(database, ROOT))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    worker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
