"""Tests of jobs that their owner stops."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import select

from backend.accounts.models import KeyMode, LoginFailures
from backend.database.base import now
from backend.database.engine import Database
from backend.jobs import worker
from backend.jobs.errors import JobNotFoundError, JobNotStoppableError, LostLeaseError
from backend.jobs.queue import JobQueue
from backend.jobs.running import JobKind, RunningJob, find_stoppable_kinds
from backend.jobs.service import DONE_RETENTION, JobService
from backend.operations.pruning import prune
from backend.settings import Settings
from tests.integration.jobs.working import Person, Workshop, is_empty, kind_of, one, put
from tests.support.waiting import PATIENCE, until_true

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

KIND = "long"


@pytest.fixture
def service(queue: JobQueue) -> JobService:
    return JobService(queue, stoppable=frozenset({KIND}))


async def note(job: RunningJob, key: bytes, *, done: int) -> None:
    """Run a step with a visible effect: a row."""
    async with job.step() as session:
        session.add(LoginFailures(key=key, failures=1, last_at=now()))
        job.checkpoint({"done": done, "counts": {"events": 3 * done, "odd": "text"}})
        await job.progress(done, 4)


async def notes(database: Database) -> set[bytes]:
    async with database.read() as session:
        return set(await session.scalars(select(LoginFailures.key)))


@pytest.mark.parametrize(("mode", "state"), [("per_job", "queued"), ("sealed", "waiting_key")])
async def test_a_waiting_job_that_is_stopped_never_starts(
    queue: JobQueue, service: JobService, workshop: Workshop, ada: Person, mode: KeyMode, state: str
) -> None:
    seen: list[UUID] = []

    async def handle(job: RunningJob) -> None:
        seen.append(job.id)

    key = queue.grant(ada.sealer, mode)
    job_id = await put(queue, KIND, user_id=ada.id, key=key, lane=ada.id)
    assert job_id is not None
    assert (await one(queue.database, job_id)).state == state
    view = await service.stop(ada.id, job_id)
    assert (view.state, view.error) == ("done", "stopped")
    row = await one(queue.database, job_id)
    assert (row.wrapped_key, row.root_version, row.key_until) == (None, None, None)
    behind = await put(queue, KIND, user_id=ada.id, lane=ada.id)
    workshop.worker({KIND: kind_of(handle)})
    await until_true(lambda: seen)
    assert seen == [behind]
    assert (await one(queue.database, job_id)).state == "done"


async def test_a_running_job_that_is_stopped_keeps_its_effects(
    queue: JobQueue, service: JobService, workshop: Workshop, ada: Person
) -> None:
    database, begun, gate, outcomes = queue.database, asyncio.Event(), asyncio.Event(), list[str]()

    async def handle(job: RunningJob) -> None:
        await note(job, b"first", done=1)
        begun.set()
        await gate.wait()
        for way in (note(job, b"second", done=2), job.finish().__aenter__()):
            with pytest.raises(LostLeaseError):
                await way
            outcomes.append("lost")
        raise LostLeaseError

    job_id = await put(queue, KIND, user_id=ada.id)
    assert job_id is not None
    worker = workshop.worker({KIND: kind_of(handle)})
    await begun.wait()
    await service.stop(ada.id, job_id)
    gate.set()
    await until_true(lambda: not worker.is_busy)
    assert outcomes == ["lost", "lost"]
    assert await notes(database) == {b"first"}
    view = await service.get(ada.id, job_id)
    assert (view.state, view.error) == ("done", "stopped")
    assert (view.progress.done, view.progress.total) == (1, 4)
    assert view.counts == {"events": 3}


async def test_a_step_that_is_under_way_is_kept_whole_and_the_next_is_not_begun(
    queue: JobQueue, service: JobService, workshop: Workshop, ada: Person
) -> None:
    inside, gate, told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(job: RunningJob) -> None:
        async with job.step() as session:
            session.add(LoginFailures(key=b"first", failures=1, last_at=now()))
            await session.flush()
            job.checkpoint({"counts": {"events": 1}})
            inside.set()
            await gate.wait()
        await told.wait()
        await note(job, b"second", done=2)

    job_id = await put(queue, KIND, user_id=ada.id)
    assert job_id is not None
    worker = workshop.worker({KIND: kind_of(handle)})
    await inside.wait()
    stopping = asyncio.create_task(service.stop(ada.id, job_id))
    gate.set()
    stopped = await stopping
    told.set()
    await until_true(lambda: not worker.is_busy)
    found = await notes(queue.database)
    assert b"first" in found
    assert b"second" not in found
    assert stopped.counts["events"] == 1
    assert (await service.get(ada.id, job_id)).error == "stopped"


@pytest.mark.parametrize("notices_by", ["heartbeat", "poll"])
async def test_the_worker_interrupts_a_stopped_job(
    queue: JobQueue,
    service: JobService,
    workshop: Workshop,
    ada: Person,
    monkeypatch: pytest.MonkeyPatch,
    notices_by: str,
) -> None:
    monkeypatch.setattr(worker, "HEARTBEAT_INTERVAL", timedelta(hours=1))
    begun, interrupted = asyncio.Event(), asyncio.Event()

    async def handle(_: RunningJob) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.set()

    job_id = await put(queue, KIND, user_id=ada.id)
    assert job_id is not None
    kinds = {KIND: kind_of(handle, stoppable=notices_by == "poll")}
    running_worker = workshop.worker(kinds)
    await begun.wait()
    await service.stop(ada.id, job_id)
    if notices_by == "heartbeat":
        await running_worker.renew()
    async with asyncio.timeout(PATIENCE):
        await interrupted.wait()
    assert (await one(queue.database, job_id)).error == "stopped"


async def test_only_its_owner_stops_a_job_and_only_of_a_kind_that_allows_it(
    queue: JobQueue, service: JobService, ada: Person, ben: Person
) -> None:
    long = await put(queue, KIND, user_id=ada.id)
    short = await put(queue, "short", user_id=ada.id)
    assert long is not None
    assert short is not None
    with pytest.raises(JobNotFoundError):
        await service.stop(ben.id, long)
    with pytest.raises(JobNotStoppableError):
        await service.stop(ada.id, short)
    await service.stop(ada.id, long)
    with pytest.raises(JobNotStoppableError):
        await service.stop(ada.id, long)
    assert (await one(queue.database, short)).state == "queued"


async def test_a_stopped_job_is_shown_for_a_day(
    queue: JobQueue, service: JobService, ada: Person
) -> None:
    job_id = await put(queue, KIND, user_id=ada.id)
    assert job_id is not None
    await service.stop(ada.id, job_id)
    await prune(
        queue.database,
        Settings.model_validate({}),
        at=now() + DONE_RETENTION - timedelta(minutes=1),
    )
    assert (await service.get(ada.id, job_id)).error == "stopped"
    await prune(
        queue.database,
        Settings.model_validate({}),
        at=now() + DONE_RETENTION + timedelta(minutes=10),
    )
    assert await is_empty(queue.database)


def test_a_kind_says_itself_whether_it_may_be_stopped() -> None:
    async def handle(_: RunningJob) -> None: ...

    kinds = {"one": JobKind(handle, stoppable=True), "other": JobKind(handle)}
    assert find_stoppable_kinds(kinds) == {"one"}
