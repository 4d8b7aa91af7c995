"""Accounts, workers and queries for tests of jobs, and a worker for a separate process."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from backend.accounts.keys.keyring import (
    Protection,
    UserKey,
    make_data_key,
    open_sealer,
    wrap_derivation_key,
)
from backend.accounts.keys.open_keys import OpenKeys
from backend.accounts.keys.slots import make_slot
from backend.accounts.models import KeyMode, LoginFailures, User
from backend.core.logs import configure_logging
from backend.database.base import new_id, now, upsert
from backend.database.engine import Database
from backend.jobs import claims as candidates
from backend.jobs.keys import JobKeys
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.worker import Worker
from backend.vault.root import RootKeys
from backend.vault.sealing import Sealer
from tests.support.waiting import until

ROOT = RootKeys({1: b"r" * 32})


@dataclass(frozen=True)
class Person:
    id: UUID
    user_key: bytes
    sealer: Sealer


async def new_person(
    database: Database, name: str, *, mode: KeyMode = "per_job", root: RootKeys = ROOT
) -> Person:
    """Make an account that owns jobs. It has no working password."""
    user_id, user_key = new_id(), os.urandom(32)
    data_key = make_data_key(user_id, 1, user_key=user_key)
    user = User(
        id=user_id,
        name_lookup=name.encode(),
        wrapped_name=b"",
        key_mode=mode,
        key_generation=0,
        newest_data_key=0,
        settings_mac=Protection(generation=0, key_mode=mode, kdf=b"").mac(user_key),
    )
    wrap_derivation_key(user, os.urandom(32), user_key=user_key)
    async with database.write() as session:
        session.add(user)
        await session.flush()
        session.add(data_key)
        session.add(
            make_slot(
                "password", user_id, UserKey(user_key, 0), secret=os.urandom(32), root=root, kdf=b""
            )
        )
    return Person(user_id, user_key, open_sealer(user, [data_key], user_key=user_key))


class Workshop:
    def __init__(self, queue: JobQueue) -> None:
        self.queue = queue
        self.workers: list[Worker] = []

    def worker(
        self,
        kinds: Mapping[str, JobKind],
        *,
        open_keys: OpenKeys | None = None,
        start: bool = True,
        **options: Any,
    ) -> Worker:
        keys = JobKeys(ROOT, open_keys)
        settings: dict[str, Any] = {"poll": 0.05, **options}
        worker = Worker(self.queue, kinds, keys, **settings)
        self.workers.append(worker)
        if start:
            worker.start()
        return worker

    async def close(self) -> None:
        for worker in self.workers:
            await worker.aclose()


def kind_of(handler: Callable[[RunningJob], Awaitable[None]], **options: Any) -> JobKind:
    settings: dict[str, Any] = {"needs_key": False, **options}
    return JobKind(handler, **settings)


async def put(queue: JobQueue, kind: str, **fields: Any) -> UUID | None:
    """Enqueue a job in a separate transaction."""
    key = fields.pop("key", None)
    async with queue.database.write() as session:
        return await queue.enqueue(session, NewJob(kind=kind, **fields), key=key)


async def jobs(database: Database) -> list[Job]:
    async with database.read() as session:
        return list(await session.scalars(select(Job).order_by(Job.id)))


async def one(database: Database, job_id: UUID | None) -> Job:
    assert job_id is not None
    async with database.read() as session:
        return await session.get_one(Job, job_id)


async def is_empty(database: Database) -> bool:
    async with database.read() as session:
        return not await session.scalar(select(func.count()).select_from(Job))


async def wait_for_job(database: Database, job_id: UUID | None, **values: object) -> None:
    async def has_values() -> bool:
        job = await one(database, job_id)
        return all(getattr(job, name) == value for name, value in values.items())

    await until(has_values)


async def wait_until_alone(database: Database, job_id: UUID | None) -> None:
    async def is_alone() -> bool:
        return [job.id for job in await jobs(database)] == [job_id]

    await until(is_alone)


async def state_of(database: Database, job_id: UUID | None) -> str | None:
    async with database.read() as session:
        return await session.scalar(select(Job.state).where(Job.id == job_id))


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


async def work_on(url: str) -> None:
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


def run_worker(url: str) -> None:
    """Work on the jobs of the database at this URL until the process is killed."""
    asyncio.run(work_on(url))
