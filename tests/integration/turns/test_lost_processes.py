"""A process that is killed or stopped: another one on the same PostgreSQL takes over from it."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Generator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select, update

from backend.database.base import now
from backend.database.engine import Database
from backend.database.processes import Process
from backend.jobs.models import Job
from backend.jobs.queue import NewJob
from backend.quotas.ledgers import RECOUNT_KIND
from backend.turns.models import Turn
from tests.e2e.test_crash import browser
from tests.integration.jobs.test_worker_processes import ROOT_KEY
from tests.integration.turns.following import check_tree, follow, take_words, turn_under_way
from tests.support.process import Served, serving
from tests.support.server import Running, running, text_of
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

LONG = timedelta(days=1)
"""No test waits for a lease to run out."""


@pytest.fixture
async def here(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(postgres_url, tmp_path / "here") as server:
        yield server


@pytest.fixture
def there(postgres_url: str, tmp_path: Path) -> Generator[Served]:
    """A server in a process of its own, whose model speaks slowly."""
    with serving(
        tmp_path, database_url=postgres_url, root_key=ROOT_KEY, demo_tokens_per_second=50
    ) as served:
        yield served


async def find_other(database: Database) -> UUID:
    """The id of the process beside this one."""

    async def found() -> UUID | None:
        async with database.read() as session:
            others = Process.id != database.process_id
            return await session.scalar(select(Process.id).where(others))

    process_id: UUID = await until(found)
    return process_id


async def lease_for_long(database: Database, turn_id: str) -> None:
    async with database.write() as session:
        running = (Turn.id == UUID(turn_id), Turn.state == "running", Turn.lease_until > now())
        await session.execute(update(Turn).where(*running).values(lease_until=now() + LONG))


async def test_the_work_of_a_process_that_is_stopped_and_later_killed_goes_to_another_one(
    here: Running, there: Served
) -> None:
    database, queue = here.parts.database, here.parts.queue
    async with here.account() as ada, browser(there, ada.client.cookies) as elsewhere:
        chat = (await ada.new_chat())["id"]
        async with turn_under_way(elsewhere, chat, text="/demo long 5000") as (turn_id, events):
            heard = await take_words(events, 60)
            there.process.send_signal(signal.SIGSTOP)
            await lease_for_long(database, turn_id)
            told = await follow(ada.client, turn_id)
            assert told[-1].name == "turn.failed"
            assert told[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"
            [_, reply] = await ada.messages(chat)
            assert (reply["status"], reply["text"]) == ("interrupted", text_of(told))
            assert reply["text"]
            more = await ada.turn(chat, **{"continue": True})
            assert more[-1].name == "turn.completed"

            there.process.send_signal(signal.SIGCONT)
            heard += [event async for event in events]
            assert heard[-1].name == "turn.failed"
            assert heard[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"
            [_, after] = await elsewhere.messages(chat)
            assert (after["status"], after["text"]) == ("complete", reply["text"] + text_of(more))

        # It works again: with a turn and a job of it that a kill cuts off.
        async with turn_under_way(elsewhere, chat, text="/demo long 5000") as (turn_id, events):
            await take_words(events, 60)
            async with database.write() as session:
                job_id = await queue.enqueue(session, NewJob(RECOUNT_KIND))
                leased = {
                    "state": "running",
                    "attempts": 1,
                    "fence": 1,
                    "lease_owner": await find_other(database),
                    "lease_until": now() + LONG,
                }
                await session.execute(update(Job).where(Job.id == job_id).values(leased))
            there.process.kill()
            await lease_for_long(database, turn_id)
            told = await follow(ada.client, turn_id)
            assert told[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"
        assert (await ada.turn(chat, text="Go on."))[-1].name == "turn.completed"

        async def job_is_done() -> bool:
            async with database.read() as session:
                return await session.get(Job, job_id) is None

        await until(job_is_done)
    await check_tree(database, chat)
