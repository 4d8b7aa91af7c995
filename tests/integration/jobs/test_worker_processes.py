"""Tests of worker processes: the command, kills, and jobs of a process that is gone."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO
from uuid import UUID

import httpx
import pytest
from sqlalchemy import select, update

from backend.accounts.models import LoginFailures
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.jobs.keys import JobKeys
from backend.jobs.models import JOB_LEASES, Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.worker import Worker
from backend.vault.root import RootKeys
from tests.integration.jobs.working import (
    Person,
    is_empty,
    one,
    run_worker,
    wait_for_job,
    wait_until_alone,
)
from tests.support.compose import free_port
from tests.support.lost_processes import took_over
from tests.support.process import TALEKEEPER, Process, environment, run_command, started
from tests.support.thorough import rounds
from tests.support.waiting import PATIENCE, until

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

JOBS = 300
KILLS = rounds(2, 4)


@contextmanager
def working(url: str) -> Generator[tuple[Process, IO[str]]]:
    with started(run_worker, url) as (process, output):
        assert output.readline() == "works\n"
        yield process, output


@pytest.mark.slow
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


@pytest.mark.slow
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
        await wait_for_job(database, job_id, state="dead")
        await wait_until_alone(database, job_id)
    assert (await one(database, job_id)).error == "job-worker-lost"


ROOT_KEYS = RootKeys({1: b"r" * 32})


async def leave(database: Database, *, until: datetime, leases_lost: int = 0) -> UUID:
    """Leave a running job of a lost process. Return the id of the process."""
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
        await JobQueue(database, ROOT_KEYS).enqueue(session, NewJob(kind="work"))
        await session.execute(update(Job).values(values))
    return process_id


async def test_a_job_of_a_process_that_is_gone_is_taken_over(database: Database) -> None:
    done: list[int] = []

    async def handler(job: RunningJob) -> None:
        done.append(job.attempt)

    process_id = await leave(database, until=now() + timedelta(days=1))
    kinds = {"work": JobKind(handler, needs_key=False)}
    worker = Worker(JobQueue(database, ROOT_KEYS), kinds, JobKeys(ROOT_KEYS), poll=0.05)
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


ROOT_KEY = "1:" + "cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI="
NOBODY_THERE = "http://127.0.0.1:9"
"""An index that does not answer. The worker starts anyway, and its jobs wait."""


@contextmanager
def work_command(folder: Path, url: str, **more: str) -> Generator[subprocess.Popen[str]]:
    settings = {
        **more,
        "database_url": url,
        "root_key": ROOT_KEY,
        "qdrant_url": NOBODY_THERE,
        "drain_seconds": "3600",
    }
    with subprocess.Popen(
        [str(TALEKEEPER), "work", "--data-dir", str(folder)],
        cwd=folder,
        env=environment(**settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_with_sqlite_it_says_that_serve_does_it(tmp_path: Path) -> None:
    ended = run_command(tmp_path, "work")
    assert ended.returncode == 1
    assert "`talekeeper serve` runs the jobs itself" in ended.stderr


def test_with_no_workers_it_says_that_there_is_nothing_to_do(tmp_path: Path) -> None:
    url = "postgresql+asyncpg://user@127.0.0.1:1/name"
    ended = run_command(
        tmp_path, "work", database_url=url, qdrant_url=NOBODY_THERE, job_workers="0"
    )
    assert ended.returncode == 1
    assert "TALEKEEPER_JOB_WORKERS is 0" in ended.stderr


@pytest.mark.postgres
def test_it_works_until_it_is_told_to_stop(postgres_url: str, tmp_path: Path) -> None:
    metrics = f"127.0.0.1:{free_port(['127.0.0.1'])}"
    with work_command(tmp_path, postgres_url, worker_metrics=metrics) as process:
        assert process.stdout is not None
        assert "is running jobs" in process.stdout.readline()
        assert "talekeeper_database_connections" in httpx.get(f"http://{metrics}/metrics").text
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert process.stdout.readline().startswith("Talekeeper is stopping.")
