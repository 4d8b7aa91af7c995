"""Turns that wait for summaries, and the queries that this takes."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import event, update

from backend.database.engine import Database
from backend.enrichment.outbox import GLOSSARY, SUMMARY, SummaryWatch, UnfinishedJob
from backend.jobs.models import Job
from backend.jobs.queue import NewJob, insert_job

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


async def test_all_turns_that_wait_share_one_query_and_see_their_own_job(
    database: Database,
) -> None:
    busy, idle, watch = uuid4(), uuid4(), SummaryWatch(database, SUMMARY)
    async with database.write() as session:
        await insert_job(session, NewJob(kind=SUMMARY, lane=busy))
        await insert_job(session, NewJob(kind=GLOSSARY, lane=idle))
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM jobs" in statement:
            statements.append(statement)

    engine = database._reader.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        found = await asyncio.gather(*(watch.look(lane) for lane in [busy, idle] * 20))
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert len(statements) == 1
    assert found == [[UnfinishedJob("queued", 0)], ()] * 20
    async with database.write() as session:
        await session.execute(update(Job).where(Job.lane == busy).values(state="done"))
    assert await watch.look(busy) == ()


async def test_a_turn_that_gives_up_leaves_the_others_their_answer(database: Database) -> None:
    watch, lanes = SummaryWatch(database, SUMMARY), [uuid4(), uuid4()]
    first, second = [asyncio.create_task(watch.look(lane)) for lane in lanes]
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ()
