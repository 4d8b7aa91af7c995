"""A worker for a separate process. Each job adds one to its own row."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta

from backend.accounts.models import LoginFailures
from backend.core.logs import configure_logging
from backend.database.base import now, upsert
from backend.database.engine import Database
from backend.jobs import claims as candidates
from backend.jobs.keys import JobKeys
from backend.jobs.queue import JobQueue
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.worker import Worker
from tests.integration.jobs.working import ROOT

LEASE = timedelta(seconds=2)


async def count_up(job: RunningJob) -> None:
    """Add one to the job's row."""
    await asyncio.sleep(random.uniform(0, 0.01))
    async with job.finish() as session:
        key = b"%d" % job.payload["number"]
        fresh = {"key": key, "failures": 1, "last_at": now()}
        await upsert(session, LoginFailures, fresh, key=("key",), count_up=("failures",))
        await asyncio.sleep(random.uniform(0, 0.005))


async def freeze(_: RunningJob) -> None:
    """Block the whole process, as a runaway regular expression does."""
    print("freezes", flush=True)  # noqa: T201  # the parent waits for it
    time.sleep(600)  # noqa: ASYNC251


async def main(url: str) -> None:
    candidates.FIRST_LOSS_WAIT = candidates.SECOND_LOSS_WAIT = timedelta(seconds=0.1)
    configure_logging("error", "json")
    database = Database(url)
    queue = JobQueue(database, ROOT)
    kinds = {
        "count": JobKind(count_up, needs_key=False, ends_together=True),
        "freeze": JobKind(freeze, needs_key=False),
    }
    worker = Worker(queue, kinds, JobKeys(ROOT), lease=LEASE, poll=0.1)
    worker.start()
    print("works", flush=True)  # noqa: T201  # the parent waits for it
    await asyncio.Event().wait()


def run(url: str) -> None:
    """Work on the jobs of the database at this URL until the process is killed."""
    asyncio.run(main(url))
