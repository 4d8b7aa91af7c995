"""After a crash its jobs need not wait for their leases."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import select, update

from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.jobs.keys import JobKeys
from backend.jobs.models import JOB_LEASES, Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.worker import Worker
from backend.vault.root import RootKeys
from tests.support.lost_processes import took_over
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

ROOT = RootKeys({1: b"r" * 32})


async def leave(database: Database, *, until: datetime, leases_lost: int = 0) -> UUID:
    """Leave a job as a process does that is gone. Return the id of the process."""
    process_id = new_id()
    values = {
        "state": "running",
        "attempts": 1,
        "fence": 1,
        "leases_lost": leases_lost,
        "lease_owner": process_id,
        "lease_until": until,
    }
    async with database.write() as session:
        await JobQueue(database, ROOT).enqueue(session, NewJob(kind="work"))
        await session.execute(update(Job).values(values))
    return process_id


async def test_a_job_of_a_process_that_is_gone_is_taken_over(database: Database) -> None:
    done: list[int] = []

    async def handler(job: RunningJob) -> None:
        done.append(job.attempt)

    process_id = await leave(database, until=now() + timedelta(days=1))
    kinds = {"work": JobKind(handler, needs_key=False)}
    worker = Worker(JobQueue(database, ROOT), kinds, JobKeys(ROOT), poll=0.05)
    worker.start()

    async def is_over() -> bool:
        async with database.read() as session:
            return not list(await session.scalars(select(Job.id)))

    async with took_over(database, JOB_LEASES, lost=process_id):
        await until(is_over)
    await worker.aclose()
    assert done == [1]


async def test_a_job_whose_lease_was_over_before_does_not_wait_longer(database: Database) -> None:
    lost_at = now() - timedelta(minutes=1)
    process_id = await leave(database, until=lost_at, leases_lost=2)
    async with took_over(database, JOB_LEASES, lost=process_id), database.read() as session:
        job = (await session.scalars(select(Job))).one()
    assert job.lease_until == lost_at
