"""The queue and its worker: in order, once, each in turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from uuid import UUID

import pytest

from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.jobs import worker as slots
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
    state_of,
)
from tests.support.waiting import until

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
    """What the transaction writes beside it, the job has to see."""
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


async def test_what_is_rolled_back_was_never_enqueued(queue: JobQueue) -> None:
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


async def test_of_jobs_with_one_dedupe_key_one_waits(
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

    async def runs() -> bool:
        return await state_of(database, first) == "running"

    await until(runs)
    assert await put(queue, "note", user_id=ada.id, dedupe_key="index") is not None
    assert await put(queue, "note", user_id=ada.id, dedupe_key="index") is None
    gate.set()
    await until(lambda: is_empty(database))


async def test_of_many_who_enqueue_the_same_at_once_one_comes_through(
    queue: JobQueue, ada: Person
) -> None:
    made = await asyncio.gather(
        *(put(queue, "note", user_id=ada.id, dedupe_key="index") for _ in range(20))
    )
    assert len([each for each in made if each]) == 1
    assert len(await jobs(queue.database)) == 1


async def test_who_has_very_many_jobs_does_not_keep_others_waiting(
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
    queue: JobQueue,
    workshop: Workshop,
    ada: Person,
    ben: Person,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So that ten are taken ahead also where jobs take ten times as long.
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


async def test_what_is_behind_very_many_jobs_of_a_lane_that_is_held_up_runs_all_the_same(
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
    await until(lambda: _any(seen))
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
    await until(lambda: _any(seen))
    await asyncio.sleep(0.2)
    assert seen == [3]
    async with queue.database.write() as session:
        job = await session.merge(await one(queue.database, first))
        job.run_after = now()
    await until(lambda: is_empty(queue.database))
    assert seen == [3, 1, 2]


async def _any(seen: list[int]) -> bool:
    return bool(seen)


async def test_a_kind_that_nobody_knows_is_left_alone(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    async def handle(_: RunningJob) -> None: ...

    strange = await put(queue, "strange", user_id=ada.id)
    await put(queue, "note", user_id=ada.id)
    workshop.worker({"note": kind_of(handle)})
    database: Database = queue.database

    async def is_left() -> bool:
        return [job.id for job in await jobs(database)] == [strange]

    await until(is_left)
    assert (await one(database, strange)).attempts == 0


async def test_what_is_done_for_nobody_is_done_too(queue: JobQueue, workshop: Workshop) -> None:
    seen: list[UUID | None] = []

    async def handle(job: RunningJob) -> None:
        seen.append(job.user_id)

    await put(queue, "note")
    workshop.worker({"note": kind_of(handle, needs_key=True)})
    await until(lambda: is_empty(queue.database))
    assert seen == [None]
