"""Turns that wait for summaries, and the queries that this takes."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from sqlalchemy import update

from backend.database.engine import Database
from backend.enrichment.outbox import GLOSSARY, SUMMARY, SummaryWatch, UnfinishedJob
from backend.jobs.models import Job
from backend.jobs.queue import NewJob, insert_job
from tests.support.statements import record_statements

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


async def test_all_turns_that_wait_share_one_query_and_see_their_own_job(
    database: Database,
) -> None:
    busy, idle, watch = uuid4(), uuid4(), SummaryWatch(database, SUMMARY)
    async with database.write() as session:
        await insert_job(session, NewJob(kind=SUMMARY, lane=busy))
        await insert_job(session, NewJob(kind=GLOSSARY, lane=idle))
    with record_statements() as statements:
        found = await asyncio.gather(*(watch.poll(lane) for lane in [busy, idle] * 20))
    assert len([each for each in statements if "FROM jobs" in each.text]) == 1
    assert found == [[UnfinishedJob("queued", 0)], ()] * 20
    async with database.write() as session:
        await session.execute(update(Job).where(Job.lane == busy).values(state="done"))
    assert await watch.poll(busy) == ()


async def test_a_turn_that_gives_up_leaves_the_others_their_answer(database: Database) -> None:
    watch, lanes = SummaryWatch(database, SUMMARY), [uuid4(), uuid4()]
    first, second = [asyncio.create_task(watch.poll(lane)) for lane in lanes]
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ()
