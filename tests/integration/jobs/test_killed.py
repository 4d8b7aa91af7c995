"""Workers that are killed in the middle of their work: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO

import pytest
from sqlalchemy import select

from backend.accounts.models import LoginFailures
from backend.database.engine import Database
from backend.jobs.queue import JobQueue, NewJob
from tests.integration.jobs import worker_process
from tests.integration.jobs.working import Person, is_empty, jobs, one
from tests.support.process import Process, started
from tests.support.thorough import rounds
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.every_database]

JOBS = 300
KILLS = rounds(2, 4)


@contextmanager
def working(url: str) -> Generator[tuple[Process, IO[str]]]:
    """A worker process that has begun."""
    with started(worker_process.run, url) as (process, output):
        assert output.readline() == "works\n"
        yield process, output


async def test_two_workers_one_of_which_is_killed_again_and_again_do_each_job_once(
    database: Database, database_url: str, queue: JobQueue, ada: Person
) -> None:
    async with database.write() as session:
        for number in range(JOBS):
            job = NewJob("count", ada.id if number % 2 else None, payload={"number": number})
            await queue.enqueue(session, job)
    with working(database_url):
        for _ in range(KILLS):
            with working(database_url) as (victim, _):
                await asyncio.sleep(random.uniform(0.02, 0.3))
                victim.kill()
                victim.wait()
        await until(lambda: is_empty(database))
    async with database.read() as session:
        rows = list(await session.scalars(select(LoginFailures)))
    assert {row.key for row in rows} == {b"%d" % number for number in range(JOBS)}
    assert {row.failures for row in rows} == {1}


async def test_a_job_that_freezes_its_process_is_given_up_after_four_of_them(
    database: Database, database_url: str, queue: JobQueue, ada: Person
) -> None:
    async with database.write() as session:
        job_id = await queue.enqueue(session, NewJob("freeze", ada.id))
        await queue.enqueue(session, NewJob("count", ada.id, payload={"number": 1}))
    for _ in range(4):
        with working(database_url) as (_, output):
            assert await asyncio.to_thread(output.readline) == "freezes\n"
    with working(database_url):

        async def only_it_is_left() -> bool:
            return [(job.id, job.state) for job in await jobs(database)] == [(job_id, "dead")]

        await until(only_it_is_left)
    assert (await one(database, job_id)).error == "job-worker-lost"
