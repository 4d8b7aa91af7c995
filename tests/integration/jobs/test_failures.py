"""Tests of jobs that fail, and of workers that disappear."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from backend.accounts.models import LoginFailures
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.errors import UnavailableError
from backend.jobs import claims
from backend.jobs import worker as worker_module
from backend.jobs.errors import LostLeaseError, RetryLaterError
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import RunningJob
from backend.jobs.service import DONE_RETENTION, JobService
from backend.jobs.worker import Worker
from backend.operations.pruning import prune
from backend.settings import Settings
from tests.integration.jobs.working import (
    Person,
    Workshop,
    is_empty,
    jobs,
    kind_of,
    one,
    put,
    state_of,
    wait_for_job,
    wait_until_alone,
)
from tests.support.clock import Clock
from tests.support.logs import caught_logs
from tests.support.waiting import until, until_true

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

SECRET = "the-canary-sings-in-the-cellar"


async def lapse(database: Database, job_id: UUID | None) -> None:
    """Make a lease expire so long ago that no wait is left."""
    async with database.write() as session:
        query = update(Job).where(Job.id == job_id)
        await session.execute(query.values(lease_until=now() - timedelta(minutes=10)))


async def note(job: RunningJob, key: bytes) -> None:
    """Finish with a visible effect: a row."""
    async with job.finish() as session:
        session.add(LoginFailures(key=key, failures=job.attempt, last_at=now()))


async def notes(database: Database) -> dict[bytes, float]:
    async with database.read() as session:
        return {row.key: row.failures for row in await session.scalars(select(LoginFailures))}


async def test_a_failing_job_is_retried_and_dies_after_eight_attempts(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database, clock, waits = queue.database, Clock(), list[float]()

    async def handle(_: RunningJob) -> None:
        raise UnavailableError(SECRET)

    job_id = await put(queue, "note", user_id=ada.id, key=queue.grant(ada.sealer, "per_job"))
    clock.at = now()
    workshop.worker({"note": kind_of(handle)}, clock=clock, draw=lambda: 0.5)
    for attempt in range(1, 8):

        async def waits_again(attempt: int = attempt) -> Job | None:
            job = await one(database, job_id)
            return job if (job.state, job.attempts) == ("queued", attempt) else None

        job: Job = await until(waits_again)
        assert job.error == "unavailable"
        assert job.wrapped_key is not None
        waits.append((job.run_after - clock.at).total_seconds())
        clock.at = job.run_after
    await wait_for_job(database, job_id, state="dead")
    assert waits == [2.5, 7.5, 22.5, 67.5, 202.5, 607.5, 1800]
    job = await one(database, job_id)
    assert (job.attempts, job.error, job.lease_owner) == (8, "unavailable", None)
    assert (job.wrapped_key, job.root_version, job.key_until) == (None, None, None)


async def test_only_the_kind_of_an_unexpected_error_is_stored(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    async def handle(_: RunningJob) -> None:
        raise ValueError(SECRET)

    with caught_logs() as logged:
        job_id = await put(queue, "note", user_id=ada.id)
        workshop.worker({"note": kind_of(handle)}, draw=lambda: 1.0)

        async def has_failed() -> bool:
            return (await one(queue.database, job_id)).error is not None

        await until(has_failed)
    assert (await one(queue.database, job_id)).error == "internal-error"
    (line,) = logged.lines("job.failed")
    assert line["job_id"] == str(job_id)
    assert SECRET not in json.dumps(line)


async def test_a_rate_limit_uses_up_no_attempt(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    seen: list[int] = []

    async def handle(job: RunningJob) -> None:
        seen.append(job.attempt)
        if len(seen) < 12:
            raise RetryLaterError(after=0)

    await put(queue, "note", user_id=ada.id)
    workshop.worker({"note": kind_of(handle)})
    await until(lambda: is_empty(queue.database))
    assert seen == [1] * 12


async def test_a_job_that_is_called_for_while_it_runs_is_put_off_for_no_time(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    seen = list[int]()

    async def handle(job: RunningJob) -> None:
        seen.append(job.attempt)
        if len(seen) == 1:
            async with queue.database.write() as session:
                await session.execute(update(Job).values(run_after=now()))
            raise RetryLaterError(after=900)

    await put(queue, "note", user_id=ada.id)
    workshop.worker({"note": kind_of(handle)})
    await until(lambda: is_empty(queue.database))
    assert seen == [1, 1]


async def test_a_dead_job_holds_its_lane_up_no_longer(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    lane = new_id()
    dead = await put(queue, "note", user_id=ada.id, lane=lane)
    async with queue.database.write() as session:
        await session.execute(update(Job).where(Job.id == dead).values(state="dead"))

    async def handle(_: RunningJob) -> None: ...

    await put(queue, "note", user_id=ada.id, lane=lane)
    workshop.worker({"note": kind_of(handle)})
    await wait_until_alone(queue.database, dead)


async def test_a_worker_that_slept_past_its_lease_changes_nothing(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database, gates = queue.database, [asyncio.Event(), asyncio.Event()]
    outcomes: list[str] = []

    async def handle(job: RunningJob) -> None:
        await gates[job.claimed.fence - 1].wait()
        try:
            await note(job, b"by claim %d" % job.claimed.fence)
        except LostLeaseError:
            outcomes.append(f"claim {job.claimed.fence} lost")
            raise
        outcomes.append(f"claim {job.claimed.fence} done")

    job_id = await put(queue, "note", user_id=ada.id)
    workshop.worker({"note": kind_of(handle)})
    await wait_for_job(database, job_id, state="running")
    await lapse(database, job_id)
    workshop.worker({"note": kind_of(handle)})
    await wait_for_job(database, job_id, fence=2)
    gates[0].set()
    await until_true(lambda: outcomes == ["claim 1 lost"])
    assert await notes(database) == {}
    gates[1].set()
    await until(lambda: is_empty(database))
    assert await notes(database) == {b"by claim 2": 1}
    assert outcomes == ["claim 1 lost", "claim 2 done"]


async def test_a_heartbeat_stops_what_is_no_longer_this_workers(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database, started, ended = queue.database, list[str](), list[str]()

    async def handle(_: RunningJob) -> None:
        started.append("job")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("interrupted")
            raise

    job_id, other = [await put(queue, "note", user_id=ada.id) for _ in range(2)]
    worker = workshop.worker({"note": kind_of(handle)})
    await until_true(lambda: len(started) == 2)
    await worker.renew()
    before = await one(database, other)
    async with database.write() as session:
        await session.delete(await session.get_one(Job, job_id))
    await worker.renew()
    await until_true(lambda: worker.job_count == 1)
    assert ended == ["interrupted"]
    after = await one(database, other)
    assert before.lease_until is not None
    assert after.lease_until is not None
    assert after.lease_until > before.lease_until


async def test_a_worker_that_stops_returns_its_jobs(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database = queue.database

    async def wait(job: RunningJob) -> None:
        async with job.finish() as session:
            session.add(LoginFailures(key=b"half", failures=1, last_at=now()))
            await session.flush()
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()
    job_id = await put(queue, "note", user_id=ada.id, key=queue.grant(ada.sealer, "per_job"))
    worker = workshop.worker({"note": kind_of(wait)})
    await started.wait()
    await worker.aclose()
    job = await one(database, job_id)
    assert (job.state, job.attempts, job.lease_owner) == ("queued", 0, None)
    assert job.wrapped_key is not None
    assert await notes(database) == {}


async def test_a_worker_that_drains_ends_its_job_and_begins_no_other(
    queue: JobQueue, workshop: Workshop
) -> None:
    started, may_end = asyncio.Event(), asyncio.Event()

    async def wait(job: RunningJob) -> None:
        started.set()
        await may_end.wait()
        await note(job, b"first")

    async def write(job: RunningJob) -> None:
        await note(job, b"second")

    await put(queue, "long")
    worker = workshop.worker({"long": kind_of(wait), "note": kind_of(write)})
    await started.wait()
    worker.drain()
    second = await put(queue, "note")
    may_end.set()
    await until_true(lambda: not worker.is_busy)
    assert await notes(queue.database) == {b"first": 1}
    assert [(job.id, job.state) for job in await jobs(queue.database)] == [(second, "queued")]


async def test_a_returned_job_absorbs_the_one_that_was_queued_since(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database, started = queue.database, asyncio.Event()

    async def wait(_: RunningJob) -> None:
        started.set()
        await asyncio.Event().wait()

    first = await put(queue, "note", user_id=ada.id, dedupe_key="index")
    worker = workshop.worker({"note": kind_of(wait)})
    await started.wait()
    await put(queue, "strange", user_id=ada.id, dedupe_key="index")
    await worker.aclose()
    assert [(job.id, job.state) for job in await jobs(database)] == [(first, "queued")]


async def test_a_job_that_is_lost_in_its_last_attempt_begins_it_again(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database, attempts = queue.database, list[int]()
    job_id = await put(queue, "note", user_id=ada.id)
    async with database.write() as session:
        query = update(Job).where(Job.id == job_id)
        past = now() - timedelta(seconds=1)
        await session.execute(query.values(state="running", attempts=8, lease_until=past))

    async def handle(job: RunningJob) -> None:
        attempts.append(job.attempt)

    workshop.worker({"note": kind_of(handle)})
    await until(lambda: is_empty(database))
    assert attempts == [8]


async def lose_worker(worker: Worker, database: Database, job_id: UUID | None, fence: int) -> None:
    """Wait until a job runs, then kill its worker and let the lease expire."""
    await wait_for_job(database, job_id, fence=fence)
    await worker.kill()
    await lapse(database, job_id)


async def hang(_: RunningJob) -> None:
    await asyncio.Event().wait()


async def test_a_job_that_is_lost_alone_as_well_dies_and_is_retried_by_hand(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database, service = queue.database, JobService(queue)
    job_id = await put(queue, "note", user_id=ada.id)
    assert job_id is not None
    with caught_logs() as logged:
        for fence in (1, 2, 3, 4):
            await lose_worker(workshop.worker({"note": kind_of(hang)}), database, job_id, fence)
        workshop.worker({"note": kind_of(hang)})
        await wait_for_job(database, job_id, state="dead")
    view = await service.get(ada.id, job_id)
    assert (view.error, view.attempts) == ("job-worker-lost", 1)
    assert view.detail == "Its worker stopped 4 times while it ran. Retry the job manually."
    (line,) = logged.lines("job.died")
    assert (line["job_id"], line["problem"]) == (str(job_id), "job-worker-lost")


async def lose(database: Database, job_id: UUID | None, *, times: int, ago: timedelta) -> None:
    """Give a job the columns of one that has lost this many processes."""
    async with database.write() as session:
        values = {
            "state": "running",
            "attempts": 1,
            "leases_lost": times - 1,
            "lease_until": now() - ago,
        }
        await session.execute(update(Job).where(Job.id == job_id).values(values))


@pytest.mark.parametrize(("times", "wait"), [(1, 0), (2, 15), (3, 60)])
async def test_a_job_waits_longer_each_time_that_its_process_is_lost(
    queue: JobQueue, workshop: Workshop, ada: Person, times: int, wait: int
) -> None:
    job_id = await put(queue, "note", user_id=ada.id)
    await lose(queue.database, job_id, times=times, ago=timedelta())
    begun, clock = now(), Clock()
    worker = workshop.worker({"note": kind_of(hang)}, start=False, poll=0.0, clock=clock)
    for seconds in (wait - 1, wait + 1):
        clock.at = begun + timedelta(seconds=seconds)
        await worker.run_once()
        is_claimed = (await one(queue.database, job_id)).lease_owner == worker.id
        assert is_claimed == (seconds >= wait)


async def put_lost(queue: JobQueue, owner: Person, **values: Any) -> UUID | None:
    """Enqueue a job of the kind `suspect` with these columns."""
    async with queue.database.write() as session:
        job_id = await queue.enqueue(session, NewJob(kind="suspect", user_id=owner.id))
        await session.execute(update(Job).where(Job.id == job_id).values(values))
    queue.wake()
    return job_id


@pytest.mark.parametrize("goes_on", ["at its end", "at a checkpoint"])
async def test_a_job_that_lost_three_processes_runs_alone(
    queue: JobQueue, workshop: Workshop, ada: Person, monkeypatch: pytest.MonkeyPatch, goes_on: str
) -> None:
    monkeypatch.setattr(worker_module, "FINISH_SECONDS", 0.1)
    database, running, together = queue.database, set[str](), list[set[str]]()
    gate, is_alone, others_done = asyncio.Event(), asyncio.Event(), list[int]()

    async def suspect(job: RunningJob) -> None:
        running.add("suspect")
        is_alone.set()
        together.append(set(running))
        await asyncio.sleep(0.2)
        together.append(set(running))
        running.discard("suspect")
        if goes_on == "at a checkpoint":
            async with job.step():
                job.checkpoint({"from": 1})
            await gate.wait()

    async def other(job: RunningJob) -> None:
        running.add("other")
        try:
            if not is_alone.is_set():
                await asyncio.Event().wait()
        finally:
            running.discard("other")
        others_done.append(job.attempt)

    worker = workshop.worker({"suspect": kind_of(suspect), "note": kind_of(other)})
    for _ in range(3):
        await put(queue, "note", user_id=ada.id)
    await until_true(lambda: "other" in running)
    long_ago = now() - timedelta(hours=1)
    await put_lost(queue, ada, state="running", leases_lost=2, lease_until=long_ago)
    await put(queue, "note", user_id=ada.id)
    await until_true(lambda: len(others_done) == 4)
    assert together == [{"suspect"}] * 2
    # The jobs that were put back lost no attempt.
    assert set(others_done) == {1}
    gate.set()
    await until(lambda: is_empty(database))
    await until_true(lambda: not worker.is_busy)


async def test_a_process_that_ends_before_a_job_runs_alone_is_not_lost_by_it(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database = queue.database
    other = await put(queue, "note", user_id=ada.id)
    worker = workshop.worker({"note": kind_of(hang), "suspect": kind_of(hang)})
    await wait_for_job(database, other, state="running")
    job_id = await put_lost(queue, ada, leases_lost=3, fence=3)
    await wait_for_job(database, job_id, fence=4, state="queued")
    await worker.kill()
    assert (await one(database, job_id)).leases_lost == 3
    await lapse(database, other)
    again = workshop.worker({"suspect": kind_of(hang)})
    await wait_for_job(database, job_id, state="running", lease_owner=again.id, leases_lost=3)


async def test_a_job_that_could_not_be_put_back_is_claimed_when_its_lease_runs_out(
    queue: JobQueue, workshop: Workshop, ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, fails = queue.database, asyncio.Event()

    async def fail(_: RunningJob) -> None:
        await fails.wait()
        raise UnavailableError

    lost, other = [await put(queue, kind, user_id=ada.id) for kind in ("fail", "note")]
    worker = workshop.worker({"fail": kind_of(fail), "note": kind_of(hang)})

    async def both_run() -> bool:
        return {job.state for job in await jobs(database)} == {"running"}

    await until(both_run)

    async def refuse(*_: object, **__: object) -> bool:
        raise UnavailableError

    monkeypatch.setattr(claims, "put_back", refuse)
    fails.set()
    await until_true(lambda: worker.job_count == 1)
    monkeypatch.undo()
    before = {job.id: job.lease_until for job in await jobs(database)}
    await worker.renew()
    after = {job.id: job.lease_until for job in await jobs(database)}
    assert [after[each] != before[each] for each in (lost, other) if each] == [False, True]


async def test_a_worker_that_is_stopped_in_order_loses_no_lease(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database = queue.database
    job_id = await put(queue, "note", user_id=ada.id)
    for fence in range(1, 6):
        worker = workshop.worker({"note": kind_of(hang)})
        await wait_for_job(database, job_id, fence=fence)
        await worker.aclose()
    job = await one(database, job_id)
    assert (job.state, job.attempts, job.leases_lost) == ("queued", 0, 0)


@pytest.mark.parametrize("reports", ["failure", "checkpoint"])
async def test_a_worker_that_is_heard_of_begins_the_count_again(
    queue: JobQueue, workshop: Workshop, ada: Person, reports: str
) -> None:
    database = queue.database
    job_id = await put(queue, "note", user_id=ada.id)

    async def report(job: RunningJob) -> None:
        if reports == "failure":
            raise UnavailableError
        async with job.step():
            job.checkpoint({"from": 1})
        await asyncio.Event().wait()

    for fence in (1, 2):
        await lose_worker(workshop.worker({"note": kind_of(hang)}), database, job_id, fence)
    workshop.worker({"note": kind_of(report)}, draw=lambda: 1.0)
    await wait_for_job(database, job_id, fence=3, leases_lost=0)
    assert await state_of(database, job_id) == ("queued" if reports == "failure" else "running")


async def test_jobs_beside_one_that_brings_workers_down_do_not_die_with_it(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database = queue.database
    killer = await put(queue, "killer", user_id=ada.id)
    others = [await put(queue, "note", user_id=ada.id) for _ in range(3)]
    down = asyncio.Event()

    async def kill(_: RunningJob) -> None:
        down.set()
        await asyncio.Event().wait()

    async def work(job: RunningJob) -> None:
        await asyncio.sleep(0.3)
        async with job.finish():
            pass

    for _ in range(8):
        down.clear()
        worker = workshop.worker({"killer": kind_of(kill), "note": kind_of(work)})

        async def is_over() -> bool:
            return down.is_set() or await state_of(database, killer) == "dead"

        await until(is_over)
        await asyncio.sleep(0.05)
        if await state_of(database, killer) == "dead":
            break
        await worker.kill()
        for job in await jobs(database):
            if job.state == "running":
                await lapse(database, job.id)
    await wait_for_job(database, killer, state="dead")
    await wait_until_alone(database, killer)
    assert others


async def test_long_work_goes_on_from_its_checkpoint(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database, begun = queue.database, list[int]()

    async def handle(job: RunningJob) -> None:
        begun.append(job.payload["from"])
        for number in range(job.payload["from"], 4):
            if number == 2 and job.attempt == 1:
                raise UnavailableError
            async with job.step() as session:
                row = LoginFailures(key=b"%d" % number, failures=job.attempt, last_at=now())
                session.add(row)
                job.checkpoint({"from": number + 1})
                await job.progress(number + 1, 4)

    job_id = await put(queue, "note", user_id=ada.id, payload={"from": 0})
    workshop.worker({"note": kind_of(handle, keep=True)}, draw=lambda: 0.0)
    await wait_for_job(database, job_id, state="done")
    assert begun == [0, 2]
    assert await notes(database) == {b"0": 1, b"1": 1, b"2": 2, b"3": 2}
    job = await one(database, job_id)
    assert (job.progress_done, job.progress_total, job.lease_owner) == (4, 4, None)

    await prune(database, Settings.model_validate({}), at=now())
    assert await state_of(database, job_id) == "done"
    await prune(database, Settings.model_validate({}), at=now() + DONE_RETENTION)
    assert await is_empty(database)


async def test_a_step_that_fails_keeps_neither_effects_nor_checkpoint(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    async def handle(job: RunningJob) -> None:
        async with job.step() as session:
            session.add(LoginFailures(key=b"half", failures=1, last_at=now()))
            job.checkpoint({"from": 1})
            await session.flush()
            raise UnavailableError

    job_id = await put(queue, "note", user_id=ada.id, payload={"from": 0})
    workshop.worker({"note": kind_of(handle)}, draw=lambda: 1.0)

    async def has_failed() -> bool:
        return (await one(queue.database, job_id)).error is not None

    await until(has_failed)
    assert (await one(queue.database, job_id)).payload == '{"from":0}'
    assert await notes(queue.database) == {}
