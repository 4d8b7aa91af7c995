"""`/jobs`, key modes and the account's end, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select, update

from backend.accounts.keys.open_keys import OpenKeys
from backend.accounts.models import KeySlot, LoginFailures
from backend.database.base import now
from backend.enrichment.outbox import REBUILD
from backend.jobs.errors import LostLeaseError
from backend.jobs.keys import JobKeys
from backend.jobs.models import Job
from backend.jobs.queue import JobKey
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.worker import Worker
from tests.integration.jobs.working import Workshop, kind_of, one, put, state_of
from tests.support.clock import Clock
from tests.support.server import (
    PASSWORD,
    ROOT,
    Account,
    Event,
    Running,
    ok,
    problem,
    read_events,
    running,
)
from tests.support.waiting import PATIENCE, until, until_true

pytestmark = pytest.mark.anyio

JOBS = "/api/v1/jobs"
ME = "/api/v1/me"


@pytest.fixture
async def server(database_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(database_url, tmp_path) as server:
        yield server


@pytest.fixture
async def ada(server: Running) -> AsyncGenerator[Account]:
    async with server.account("Ada") as account:
        yield account


@pytest.fixture
async def workshop(server: Running) -> AsyncGenerator[Workshop]:
    workshop = Workshop(server.parts.queue)
    yield workshop
    await workshop.close()


async def grant_key(server: Running, account: Account) -> JobKey:
    """Return the key that a request of this account grants to jobs."""
    ok(await account.client.get(ME))
    here = server.parts.open_keys.get(UUID(account.user["id"]))
    assert here is not None
    mode = account.user["key_mode"]
    return server.parts.queue.grant(here.sealer, mode)


async def put_job(server: Running, account: Account, kind: str = "note", **fields: Any) -> str:
    user_id = UUID(account.user["id"])
    job_id = await put(server.parts.queue, kind, user_id=user_id, **fields)
    return str(job_id)


async def change(server: Running, job_id: str, **values: Any) -> None:
    async with server.parts.database.write() as session:
        await session.execute(update(Job).where(Job.id == UUID(job_id)).values(**values))


async def follow(account: Account, job_id: str, events: list[Event]) -> None:
    async with account.client.stream("GET", f"{JOBS}/{job_id}/events") as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        async for event in read_events(response):
            events += [event]


async def list_standing_slots(server: Running) -> list[KeySlot]:
    async with server.parts.database.read() as session:
        return list(await session.scalars(select(KeySlot).where(KeySlot.kind == "standing")))


async def count_wrapped_keys(server: Running) -> int:
    query = select(func.count()).select_from(Job).where(Job.wrapped_key.is_not(None))
    async with server.parts.database.read() as session:
        return await session.scalar(query) or 0


def make_worker(server: Running, seen: list[UUID], keys: OpenKeys | None = None) -> Worker:
    async def handle(job: RunningJob) -> None:
        assert job.keys.user_id == job.user_id
        seen.append(job.id)

    queue = server.parts.queue
    job_keys = JobKeys(ROOT, keys)
    return Worker(queue, {"note": JobKind(handle)}, job_keys, poll=0.05)


@pytest.mark.every_database
async def test_jobs_are_listed_newest_first_page_by_page(server: Running, ada: Account) -> None:
    ids = [await put_job(server, ada) for _ in range(5)]
    await change(server, ids[1], state="dead", error="unavailable", attempts=8)
    page = ok(await ada.client.get(JOBS, params={"limit": 3}))
    assert [item["id"] for item in page["items"]] == ids[:1:-1]
    rest = ok(await ada.client.get(JOBS, params={"limit": 3, "after": page["next"]}))
    assert [item["id"] for item in rest["items"]] == [ids[1], ids[0]]
    assert rest["next"] is None
    (dead,) = ok(await ada.client.get(JOBS, params={"state": "dead"}))["items"]
    assert dead == ok(await ada.client.get(f"{JOBS}/{ids[1]}"))
    assert (dead["state"], dead["error"], dead["attempts"]) == ("dead", "unavailable", 8)
    assert dead["progress"] == {"done": 0, "total": 0}
    problem(await ada.client.get(JOBS, params={"limit": 0}), 422, "validation-failed")
    problem(await ada.client.get(JOBS, params={"state": "lost"}), 422, "validation-failed")


@pytest.mark.every_database
async def test_a_dead_job_is_tried_again_with_the_key_of_who_asks(
    server: Running, ada: Account
) -> None:
    job_id, seen = await put_job(server, ada), list[UUID]()
    await change(server, job_id, state="dead", error="unavailable", attempts=8)
    view = ok(await ada.client.post(f"{JOBS}/{job_id}/retry"), 202)
    assert (view["state"], view["error"], view["attempts"]) == ("queued", None, 0)
    assert await count_wrapped_keys(server) == 1
    worker = make_worker(server, seen)
    worker.start()

    async def is_gone() -> bool:
        return (await ada.client.get(f"{JOBS}/{job_id}")).status_code == 404

    await until(is_gone)
    await worker.aclose()
    assert seen == [UUID(job_id)]


@pytest.mark.every_database
async def test_running_done_and_duplicate_jobs_are_not_retried(
    server: Running, ada: Account
) -> None:
    job_id = await put_job(server, ada, dedupe_key="index")
    for state in ("running", "done"):
        await change(server, job_id, state=state, lease_until=now() + timedelta(hours=1))
        problem(await ada.client.post(f"{JOBS}/{job_id}/retry"), 409, "job-not-retryable")
    await change(server, job_id, state="dead")
    await put_job(server, ada, dedupe_key="index")
    problem(await ada.client.post(f"{JOBS}/{job_id}/retry"), 409, "job-not-retryable")
    assert await state_of(server.parts.database, UUID(job_id)) == "dead"


@pytest.mark.every_database
async def test_a_stream_reports_progress_and_the_end(
    server: Running, ada: Account, workshop: Workshop
) -> None:
    gate, events = asyncio.Event(), list[Event]()

    async def handle(job: RunningJob) -> None:
        await job.progress(1, 2)
        await gate.wait()
        async with job.finish():
            pass

    job_id = await put_job(server, ada)
    following = asyncio.create_task(follow(ada, job_id, events))
    await until_true(lambda: events)
    workshop.worker({"note": kind_of(handle)})
    await until_true(lambda: "progress" in {event.name for event in events})
    gate.set()
    await following
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert events[0].name == "state"
    assert events[0].data["state"] == "queued"
    told = [event.data for event in events if event.name == "progress"]
    assert told[0] == {"done": 1, "total": 2}
    assert "running" in {event.data["state"] for event in events if event.name == "state"}
    assert events[-1].name == "done"
    assert events[-1].data["state"] == "done"
    problem(await ada.client.get(f"{JOBS}/{job_id}/events"), 404, "job-not-found")


async def test_a_stream_ends_when_its_job_has_died(server: Running, ada: Account) -> None:
    job_id, events = await put_job(server, ada), list[Event]()
    await change(server, job_id, state="dead")
    await follow(ada, job_id, events)
    assert [(event.name, event.data["state"]) for event in events] == [("state", "dead")]


@pytest.mark.every_database
async def test_a_stream_ends_with_the_session_that_opened_it(server: Running, ada: Account) -> None:
    job_id, events = await put_job(server, ada, "strange"), list[Event]()
    async with server.signed_in("Ada") as other:
        following = asyncio.create_task(follow(other, job_id, events))
        await until_true(lambda: events)
        body = {"current_password": PASSWORD, "new_password": "another fine password"}
        assert (await ada.client.post(f"{ME}/password", json=body)).status_code == 204
        async with asyncio.timeout(PATIENCE):
            await following
    assert [event.name for event in events] == ["state"]


async def test_work_of_a_sealed_account_goes_on_when_its_user_is_seen(
    server: Running, ada: Account
) -> None:
    ada.user = ok(await ada.client.patch(ME, json={"key_mode": "sealed"}))
    key, seen = await grant_key(server, ada), list[UUID]()
    keys = server.parts.open_keys
    keys.drop(UUID(ada.user["id"]))
    job_id = await put_job(server, ada, key=key)
    worker = make_worker(server, seen, keys)
    worker.start()
    await asyncio.sleep(0.3)
    assert await state_of(server.parts.database, UUID(job_id)) == "waiting_key"
    ok(await ada.client.get(ME))
    await until_true(lambda: seen)
    await worker.aclose()
    assert seen == [UUID(job_id)]


@pytest.mark.parametrize("way", ["sign-out", "password", "deletion"])
async def test_a_key_in_memory_goes_with_the_session(
    server: Running, ada: Account, way: str
) -> None:
    keys, user_id = server.parts.open_keys, UUID(ada.user["id"])
    ok(await ada.client.get(ME))
    assert keys.get(user_id) is not None
    if way == "sign-out":
        answer = await ada.client.delete("/api/v1/sessions/current")
    elif way == "password":
        body = {"current_password": PASSWORD, "new_password": "another fine password"}
        answer = await ada.client.post(f"{ME}/password", json=body)
    else:
        answer = await ada.client.request("DELETE", ME, json={"password": PASSWORD})
    assert answer.status_code == 204, answer.text
    assert keys.get(user_id) is None


@pytest.mark.every_database
async def test_managed_is_switched_on_by_a_session_and_off_again(
    server: Running, ada: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ok(
        await ada.client.post("/api/v1/api-keys", json={"label": "x", "scope": "manage"}), 201
    )
    async with server.program(made["token"]) as script:
        problem(await script.patch(ME, json={"key_mode": "managed"}), 403, "forbidden")
    assert await list_standing_slots(server) == []
    ada.user = ok(await ada.client.patch(ME, json={"key_mode": "managed"}))
    assert ada.user["key_mode"] == "managed"
    (slot,) = await list_standing_slots(server)
    assert slot.expires_at is not None

    seen = list[UUID]()
    worker = make_worker(server, seen)
    worker.start()
    job_id = await put_job(server, ada, key=await grant_key(server, ada))
    assert await count_wrapped_keys(server) == 0
    await until_true(lambda: seen)
    await worker.aclose()
    assert seen == [UUID(job_id)]

    clock = Clock()
    clock.hang_at_the_door(monkeypatch)
    clock.forward(days=10)
    ok(await ada.client.get(ME))
    (later,) = await list_standing_slots(server)
    assert later.expires_at == clock.at + timedelta(days=30)
    ok(await ada.client.patch(ME, json={"key_mode": "per_job"}))
    assert await list_standing_slots(server) == []


async def test_switching_to_sealed_takes_the_keys_out_of_queued_jobs(
    server: Running, ada: Account
) -> None:
    await put_job(server, ada, "strange", key=await grant_key(server, ada))
    assert await count_wrapped_keys(server) == 1
    ok(await ada.client.patch(ME, json={"key_mode": "sealed"}))
    assert await count_wrapped_keys(server) == 0


@pytest.mark.every_database
async def test_a_recovery_ends_every_key_that_was_lent(server: Running, ada: Account) -> None:
    await put_job(server, ada, "strange", key=await grant_key(server, ada))
    ok(await ada.client.patch(ME, json={"key_mode": "managed"}))
    assert (await count_wrapped_keys(server), len(await list_standing_slots(server))) == (1, 1)
    body = {
        "username": "Ada",
        "recovery_code": ada.recovery_code,
        "new_password": "another fine password",
    }
    async with server.browser() as client:
        back = ok(await client.post("/api/v1/recoveries", json=body), 201)
        assert back["user"]["key_mode"] == "per_job"
        assert ok(await client.get(ME))["key_mode"] == "per_job"
    assert (await count_wrapped_keys(server), len(await list_standing_slots(server))) == (0, 0)


@pytest.mark.every_database
async def test_stopping_a_job_ends_its_stream(server: Running, ada: Account) -> None:
    events = list[Event]()
    later = now() + timedelta(hours=1)
    job_id = await put_job(server, ada, REBUILD, run_after=later)
    path = f"{JOBS}/{job_id}"
    await change(server, job_id, payload='{"counts": {"events": 2}, "chat_id": "x"}')
    following = asyncio.create_task(follow(ada, job_id, events))
    await until_true(lambda: events)
    view = ok(await ada.client.post(f"{path}/stop"), 202)
    assert (view["state"], view["error"], view["counts"]) == ("done", "stopped", {"events": 2})
    await following
    assert [event.name for event in events] == ["state", "done"]
    assert events[-1].data == ok(await ada.client.get(path)) == view
    problem(await ada.client.post(f"{path}/stop"), 409, "job-not-stoppable")
    problem(await ada.client.post(f"{path}/retry"), 409, "job-not-retryable")


@pytest.mark.every_database
async def test_deleting_an_account_takes_its_queued_and_running_jobs_along(
    server: Running, ada: Account, workshop: Workshop
) -> None:
    database = server.parts.database
    begun, gate, outcomes = asyncio.Event(), asyncio.Event(), list[str]()

    async def handle(job: RunningJob) -> None:
        begun.set()
        await gate.wait()
        try:
            async with job.finish() as session:
                session.add(LoginFailures(key=b"late", failures=1, last_at=now()))
        except LostLeaseError:
            outcomes.append("lost")
            raise

    async with server.account("Ben") as ben:
        await put_job(server, ben, key=await grant_key(server, ben))
        await put_job(server, ben, "strange", key=await grant_key(server, ben))
        adas = await put_job(server, ada, "strange")
        workshop.worker({"note": JobKind(handle)})
        await begun.wait()
        gone = await ben.client.request("DELETE", ME, json={"password": PASSWORD})
        assert gone.status_code == 204
        gate.set()
        await until_true(lambda: outcomes)
    left = select(Job.id).where(Job.user_id.is_not(None))
    async with database.read() as session:
        assert [str(job_id) for job_id in await session.scalars(left)] == [adas]
        assert await session.get(LoginFailures, b"late") is None
    assert (await one(database, UUID(adas))).state == "queued"


@pytest.mark.every_database
async def test_a_job_that_brought_its_workers_down_says_so_and_begins_again_by_hand(
    server: Running, ada: Account
) -> None:
    job_id = await put_job(server, ada, kind="strange")
    await change(server, job_id, state="dead", error="job-worker-lost", attempts=3, leases_lost=3)
    found = ok(await ada.client.get(f"{JOBS}/{job_id}"))
    assert found["detail"] == "Its worker stopped 3 times while it ran. Retry the job manually."
    again = ok(await ada.client.post(f"{JOBS}/{job_id}/retry"), 202)
    assert (again["error"], again["detail"], again["attempts"]) == (None, None, 0)
    assert (await one(server.parts.database, UUID(job_id))).leases_lost == 0
