"""After a crash of the one process there is, its jobs need not wait for their leases."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.jobs.keys import JobKeys
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.service import JobService
from backend.jobs.worker import Worker
from backend.vault.root import RootKeys
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


async def test_a_job_of_a_process_that_is_gone_is_taken_over_at_once(database: Database) -> None:
    root = RootKeys({1: b"r" * 32})
    queue = JobQueue(database, root)
    done: list[int] = []

    async def handler(job: RunningJob) -> None:
        done.append(job.attempt)

    async with database.write() as session:
        await queue.enqueue(session, NewJob(kind="work"))
        await session.execute(
            update(Job).values(
                state="running",
                attempts=1,
                fence=1,
                lease_owner=new_id(),
                lease_until=now() + timedelta(minutes=1),
            )
        )
    await JobService(queue).take_over(at=now())
    kinds = {"work": JobKind(handler, needs_key=False)}
    worker = Worker(queue, kinds, JobKeys(root), poll=0.05)
    worker.start()

    async def is_over() -> bool:
        async with database.read() as session:
            return not list(await session.scalars(select(Job.id)))

    await until(is_over)
    await worker.aclose()
    assert done == [1]


async def test_starting_again_does_not_make_a_lost_job_wait_longer(database: Database) -> None:
    queue = JobQueue(database, RootKeys({1: b"r" * 32}))
    lost_at = now() - timedelta(minutes=1)
    async with database.write() as session:
        job_id = await queue.enqueue(session, NewJob(kind="work"))
        values = {"state": "running", "leases_lost": 2, "lease_until": lost_at}
        await session.execute(update(Job).values(values))
    await JobService(queue).take_over(at=now())
    async with database.read() as session:
        job = await session.get_one(Job, job_id)
    assert job.lease_until == lost_at
