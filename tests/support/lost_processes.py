"""Taking over from a process that is gone, as the start of another process does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import timedelta
from uuid import UUID

from sqlalchemy import update

from backend.database.base import now
from backend.database.engine import Database
from backend.database.processes import Leases, Process, Processes
from backend.jobs.models import Job
from tests.support.waiting import PATIENCE


@contextlib.asynccontextmanager
async def took_over(database: Database, *leases: Leases, lost: UUID) -> AsyncGenerator[None]:
    """Run one more process until the end of the block, which begins once `lost` was missed."""
    ended = asyncio.Event()

    async def end() -> None:
        async with database.read() as session:
            if await session.get(Process, lost) is None:
                ended.set()

    if not database.is_sqlite:
        async with database.write() as session:
            session.add(Process(id=lost, seen_at=now() - timedelta(hours=1)))
    processes = Processes(database, leases, on_loss=end)
    await processes.start()
    try:
        await asyncio.wait_for(ended.wait(), PATIENCE)
        yield
    finally:
        await processes.aclose()


async def lose_lease(database: Database, kind: str, chat_id: str) -> None:
    """Give a running job of a chat to another worker, as if its lease had expired."""
    async with database.write() as session:
        await session.execute(
            update(Job)
            .where(Job.kind == kind, Job.payload.contains(chat_id))
            .values(fence=Job.fence + 1, state="queued", lease_until=None)
        )
