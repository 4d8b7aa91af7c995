"""Tests of the queue and its worker: order, lanes, deduplication, and jobs that end together."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import LoginFailures
from backend.database.base import get_table, new_id, now, upsert
from backend.jobs import running
from backend.jobs import worker as slots
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import RunningJob
from tests.integration.jobs.working import (
    Person,
    Workshop,
    is_empty,
    jobs,
    kind_of,
    one,
    put,
    wait_for_job,
    wait_until_alone,
)
from tests.support.logs import caught_logs
from tests.support.waiting import PATIENCE, until, until_true

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


async def test_a_job_is_done_once_and_leaves_no_row(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    seen: list[tuple[object, ...]] = []

    async def handle(job: RunningJob) -> None:
        seen.append((job.id, job.user_id, job.payload, job.attempt))
        async with job.finish():
            pass

    workshop.worker({"note": kind_of(handle)})
    job_id = await put(queue, "note", user_id=ada.id, payload={"number": 7})
    await until(lambda: is_empty(queue.database))
    assert seen == [(job_id, ada.id, {"number": 7}, 1)]


async def test_a_handler_that_just_returns_has_finished(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    seen = Counter[UUID]()

    async def handle(job: RunningJob) -> None:
        seen[job.id] += 1

    for worker in range(2):
        workshop.worker({"note": kind_of(handle)}, concurrency=3 + worker)
    async with queue.database.write() as session:
        ids = [await queue.enqueue(session, NewJob("note", ada.id)) for _ in range(100)]
        ids += [await queue.enqueue(session, NewJob("note")) for _ in range(5)]
    await until(lambda: is_empty(queue.database))
    assert seen == Counter(ids)


async def test_a_job_that_absorbed_another_is_not_begun_before_that_ones_transaction_is_over(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    """The job must see the other writes of that transaction."""
    seen: list[object] = []

    async def handle(job: RunningJob) -> None:
        seen.append(job.id)

    waiting = await put(queue, "note", user_id=ada.id, dedupe_key="index")
    async with queue.database.write() as session:
        job = NewJob("note", ada.id, dedupe_key="index")
        assert await queue.enqueue(session, job) is None
        workshop.worker({"note": kind_of(handle)})
        await asyncio.sleep(0.5)
        assert seen == []
    await until(lambda: is_empty(queue.database))
    assert seen == [waiting]


async def test_a_rollback_enqueues_no_job(queue: JobQueue) -> None:
    with pytest.raises(ZeroDivisionError):
        async with queue.database.write() as session:
            await queue.enqueue(session, NewJob("note"))
            _ = 1 / 0
    assert await is_empty(queue.database)


async def test_jobs_of_one_lane_run_one_after_the_other_in_order(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    lanes = [new_id() for _ in range(3)]
    order: dict[UUID, list[int]] = {lane: [] for lane in lanes}
    busy = Counter[UUID]()

    async def handle(job: RunningJob) -> None:
        assert job.lane is not None
        busy[job.lane] += 1
        assert busy[job.lane] == 1
        await asyncio.sleep(0)
        order[job.lane].append(job.payload["number"])
        busy[job.lane] -= 1

    async with queue.database.write() as session:
        for number in range(10):
            for lane in lanes:
                job = NewJob("note", ada.id, lane, {"number": number})
                await queue.enqueue(session, job)
    for _ in range(2):
        workshop.worker({"note": kind_of(handle)})
    await until(lambda: is_empty(queue.database))
    assert order == {lane: list(range(10)) for lane in lanes}


async def test_one_job_of_each_dedupe_key_waits(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database = queue.database
    first = await put(queue, "note", user_id=ada.id, dedupe_key="index")
    assert first is not None
    assert await put(queue, "note", user_id=ada.id, dedupe_key="index") is None
    assert await put(queue, "note", user_id=ada.id, dedupe_key="another") is not None
    assert await put(queue, "note", user_id=ada.id) is not None

    gate = asyncio.Event()

    async def handle(_: RunningJob) -> None:
        await gate.wait()

    workshop.worker({"note": kind_of(handle)}, concurrency=1)
    await wait_for_job(database, first, state="running")
    assert await put(queue, "note", user_id=ada.id, dedupe_key="index") is not None
    assert await put(queue, "note", user_id=ada.id, dedupe_key="index") is None
    gate.set()
    await until(lambda: is_empty(database))


async def test_concurrent_jobs_with_one_dedupe_key_become_one(queue: JobQueue, ada: Person) -> None:
    made = await asyncio.gather(
        *(put(queue, "note", user_id=ada.id, dedupe_key="index") for _ in range(20))
    )
    assert len([each for each in made if each]) == 1
    assert len(await jobs(queue.database)) == 1


async def test_a_user_with_many_jobs_does_not_delay_others(
    queue: JobQueue, workshop: Workshop, ada: Person, ben: Person
) -> None:
    order: list[UUID | None] = []

    async def handle(job: RunningJob) -> None:
        order.append(job.user_id)

    async with queue.database.write() as session:
        for _ in range(200):
            await queue.enqueue(session, NewJob("note", ada.id))
        for _ in range(5):
            await queue.enqueue(session, NewJob("note", ben.id))
    workshop.worker({"note": kind_of(handle)}, concurrency=4)
    await until(lambda: is_empty(queue.database))
    assert len(order) == 205
    assert max(place for place, user in enumerate(order) if user == ben.id) < 30


async def test_jobs_that_a_worker_took_ahead_of_slow_ones_are_done_by_another(
    queue: JobQueue, workshop: Workshop, ada: Person, ben: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ten jobs are then claimed ahead even if jobs take ten times as long.
    monkeypatch.setattr(slots, "AHEAD_SECONDS", 10 * slots.AHEAD_SECONDS)

    async def hang(_: RunningJob) -> None:
        await asyncio.Event().wait()

    async def do(_: RunningJob) -> None:
        pass

    async def states() -> Counter[str]:
        return Counter(f"{job.kind} {job.state}" for job in await jobs(queue.database))

    async def all_are_taken() -> bool:
        return await states() == {"hang running": 2, "note running": 10}

    async def only_slow_ones_are_left() -> bool:
        return await states() == {"hang running": 2}

    kinds = {"note": kind_of(do), "hang": kind_of(hang)}
    workshop.worker(kinds, concurrency=2)
    async with queue.database.write() as session:
        for number in range(200):
            await queue.enqueue(session, NewJob("note", (ada, ben)[number % 2].id))
    await until(lambda: is_empty(queue.database))
    async with queue.database.write() as session:
        await queue.enqueue(session, NewJob("hang", ada.id))
        await queue.enqueue(session, NewJob("hang", ben.id))
        for _ in range(10):
            await queue.enqueue(session, NewJob("note", ada.id))
    await until(all_are_taken)
    workshop.worker(kinds, concurrency=2)
    await until(only_slow_ones_are_left)


async def test_jobs_after_a_blocked_lane_run(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    held_up, seen = new_id(), list[int]()
    over = asyncio.Event()

    async def handle(job: RunningJob) -> None:
        if job.payload["number"] == 0:
            await over.wait()
        seen.append(job.payload["number"])

    async with queue.database.write() as session:
        for number in range(60):
            await queue.enqueue(session, NewJob("note", ada.id, held_up, {"number": number}))
        await queue.enqueue(session, NewJob("note", ada.id, new_id(), {"number": 99}))
    workshop.worker({"note": kind_of(handle)}, concurrency=4)
    await until_true(lambda: seen)
    assert seen == [99]
    over.set()
    await until(lambda: is_empty(queue.database))
    assert seen == [99, *range(60)]


async def test_a_job_that_is_due_later_waits_and_so_does_its_lane(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    lane, seen = new_id(), list[int]()

    async def handle(job: RunningJob) -> None:
        seen.append(job.payload["number"])

    later = now() + timedelta(hours=1)
    first = await put(
        queue, "note", user_id=ada.id, lane=lane, payload={"number": 1}, run_after=later
    )
    await put(queue, "note", user_id=ada.id, lane=lane, payload={"number": 2})
    await put(queue, "note", user_id=ada.id, payload={"number": 3})
    workshop.worker({"note": kind_of(handle)})
    await until_true(lambda: seen)
    await asyncio.sleep(0.2)
    assert seen == [3]
    async with queue.database.write() as session:
        job = await session.merge(await one(queue.database, first))
        job.run_after = now()
    await until(lambda: is_empty(queue.database))
    assert seen == [3, 1, 2]


async def test_jobs_of_an_unknown_kind_are_not_claimed(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    async def handle(_: RunningJob) -> None: ...

    strange = await put(queue, "strange", user_id=ada.id)
    await put(queue, "note", user_id=ada.id)
    workshop.worker({"note": kind_of(handle)})
    await wait_until_alone(queue.database, strange)
    assert (await one(queue.database, strange)).attempts == 0


async def test_jobs_without_a_user_run(queue: JobQueue, workshop: Workshop) -> None:
    seen: list[UUID | None] = []

    async def handle(job: RunningJob) -> None:
        seen.append(job.user_id)

    await put(queue, "note")
    workshop.worker({"note": kind_of(handle, needs_key=True)})
    await until(lambda: is_empty(queue.database))
    assert seen == [None]


JOBS = 6


class Together:
    """A handler that lets its first `JOBS` runs end at the same moment."""

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
        await until_true(lambda: len(self.runs) >= JOBS)
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


async def count_notes(queue: JobQueue) -> Counter[bytes]:
    async with queue.database.read() as session:
        rows = await session.scalars(select(LoginFailures))
        return Counter({row.key: row.failures for row in rows})


_NOTE = insert(get_table(LoginFailures))


async def note_twice(job: RunningJob) -> None:
    """Insert a row. A job with an odd number has the same key as the job before it."""
    key = b"%d" % (job.payload["number"] // 2)
    await job.finish_statement(_NOTE, [{"key": key, "failures": 1, "last_at": now()}])


EACH_ONCE = Counter(b"%d" % number for number in range(JOBS))


@pytest.mark.parametrize("fails", [None, 3], ids=["all end", "one fails"])
async def test_jobs_that_end_together_share_a_transaction_and_a_failure_costs_one_attempt(
    queue: JobQueue, workshop: Workshop, fails: int | None
) -> None:
    together = Together()
    together.fails = fails
    await together.begin(queue, workshop)
    await until(lambda: is_empty(queue.database))
    assert await count_notes(queue) == EACH_ONCE
    if fails is None:
        assert set(together.runs.values()) == {1}
        assert len(together.sessions) < JOBS
    else:
        assert together.runs[fails] == 2


async def test_one_that_is_no_longer_the_worker_s_changes_nothing_and_the_others_end(
    queue: JobQueue, workshop: Workshop
) -> None:
    together = Together()
    together.loses = 2
    await together.begin(queue, workshop)

    async def only_it_is_left() -> bool:
        return len(await jobs(queue.database)) == 1

    await until(only_it_is_left)
    assert await count_notes(queue) == EACH_ONCE - Counter([b"2"])
    (left,) = await jobs(queue.database)
    assert (left.state, left.payload) == ("running", '{"number":2}')


async def test_only_the_job_with_a_failing_effect_fails(
    queue: JobQueue, workshop: Workshop
) -> None:
    async with queue.database.write() as session:
        for number in range(JOBS):
            await queue.enqueue(session, NewJob("note", payload={"number": number}))
    with caught_logs() as logged:
        workshop.worker(
            {"note": kind_of(note_twice, ends_together=True)}, draw=lambda: 60.0
        )  # no second attempt

        async def half_is_left() -> bool:
            left = await jobs(queue.database)
            return [job.error for job in left] == ["overtaken"] * (JOBS // 2)

        await until(half_is_left)
    assert logged.lines("job.ends_failed")
    assert await count_notes(queue) == Counter([b"0", b"1", b"2"])
    assert {job.attempts for job in await jobs(queue.database)} == {1}


async def test_a_job_that_is_cancelled_when_its_turn_comes_does_not_keep_the_transaction(
    queue: JobQueue, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = list[RunningJob]()
    settle = running._settle

    def cancel_then(future: asyncio.Future[Any], result: object) -> None:
        settle(future, result)
        if isinstance(result, AsyncSession):
            assert begun[0].task is not None
            begun[0].is_lost = begun[0].task.cancel()

    async def handle(job: RunningJob) -> None:
        begun.append(job)
        async with job.finish():
            pytest.fail("The job was cancelled before.")

    monkeypatch.setattr(running, "_settle", cancel_then)
    job_id = await put(queue, "note")
    worker = workshop.worker({"note": kind_of(handle, ends_together=True)})
    await until_true(lambda: begun and not worker.is_busy)
    async with asyncio.timeout(PATIENCE), queue.database.write() as session:
        ended = delete(Job).where(Job.id == job_id).returning(Job.state)
        assert await session.scalar(ended) == "running"
