"""Jobs that end in one transaction: each is done once, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import LoginFailures
from backend.database.base import get_table, now, upsert
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import RunningJob
from tests.integration.jobs.working import Workshop, is_empty, jobs, kind_of
from tests.support.logs import caught_logs
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

JOBS = 6


class Together:
    """A handler whose first `JOBS` runs come to their ends at the same moment."""

    def __init__(self) -> None:
        self.runs = Counter[int]()
        self.sessions = set[AsyncSession]()
        self.fails: int | None = None
        self.loses: int | None = None

    async def handle(self, job: RunningJob) -> None:
        number = job.payload["number"]
        self.runs[number] += 1
        if number == self.loses and self.runs[number] == 1:
            async with job.step() as session:
                stolen = update(Job).where(Job.id == job.id).values(fence=Job.fence + 1)
                await session.execute(stolen)
        while len(self.runs) < JOBS:
            await asyncio.sleep(0.01)
        async with job.finish() as session:
            self.sessions.add(session)
            fresh = {"key": b"%d" % number, "failures": 1, "last_at": now()}
            await upsert(session, LoginFailures, fresh, key=("key",), count_up=("failures",))
            if number == self.fails and self.runs[number] == 1:
                raise ZeroDivisionError

    async def begin(self, queue: JobQueue, workshop: Workshop) -> None:
        async with queue.database.write() as session:
            for number in range(JOBS):
                await queue.enqueue(session, NewJob("note", payload={"number": number}))
        kinds = {"note": kind_of(self.handle, ends_together=True)}
        workshop.worker(kinds, draw=lambda: 0.0, concurrency=2 * JOBS)


async def noted(queue: JobQueue) -> Counter[bytes]:
    async with queue.database.read() as session:
        rows = await session.scalars(select(LoginFailures))
        return Counter({row.key: row.failures for row in rows})


_NOTE = insert(get_table(LoginFailures))


async def note_twice(job: RunningJob) -> None:
    """Insert a row whose key the job numbered one less has as well, where the number is odd."""
    key = b"%d" % (job.payload["number"] // 2)
    await job.finish_statement(_NOTE, [{"key": key, "failures": 1, "last_at": now()}])


EACH_ONCE = Counter(b"%d" % number for number in range(JOBS))


async def test_those_that_come_while_one_ends_end_in_one_transaction(
    queue: JobQueue, workshop: Workshop
) -> None:
    together = Together()
    await together.begin(queue, workshop)
    await until(lambda: is_empty(queue.database))
    assert await noted(queue) == EACH_ONCE
    assert set(together.runs.values()) == {1}
    assert len(together.sessions) < JOBS


async def test_one_that_fails_as_it_ends_costs_the_others_no_attempt(
    queue: JobQueue, workshop: Workshop
) -> None:
    together = Together()
    together.fails = 3
    await together.begin(queue, workshop)
    await until(lambda: is_empty(queue.database))
    assert await noted(queue) == EACH_ONCE
    assert together.runs[3] == 2


async def test_one_that_is_no_longer_the_worker_s_changes_nothing_and_the_others_end(
    queue: JobQueue, workshop: Workshop
) -> None:
    together = Together()
    together.loses = 2
    await together.begin(queue, workshop)

    async def only_it_is_left() -> bool:
        return len(await jobs(queue.database)) == 1

    await until(only_it_is_left)
    assert await noted(queue) == EACH_ONCE - Counter([b"2"])
    (left,) = await jobs(queue.database)
    assert (left.state, left.payload) == ("running", '{"number":2}')


async def test_where_an_effect_that_is_known_before_cannot_be_made_its_job_alone_fails(
    queue: JobQueue, workshop: Workshop
) -> None:
    async with queue.database.write() as session:
        for number in range(JOBS):
            await queue.enqueue(session, NewJob("note", payload={"number": number}))
    with caught_logs() as logged:
        workshop.worker(
            {"note": kind_of(note_twice, ends_together=True)}, draw=lambda: 60.0
        )  # no second try

        async def half_is_left() -> bool:
            left = await jobs(queue.database)
            return [job.error for job in left] == ["overtaken"] * (JOBS // 2)

        await until(half_is_left)
    assert logged.lines("job.ends_failed")
    assert await noted(queue) == Counter([b"0", b"1", b"2"])
    assert {job.attempts for job in await jobs(queue.database)} == {1}
