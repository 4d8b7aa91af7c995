"""Taking over from a process that is gone, as the start of another process does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import timedelta
from uuid import UUID

from backend.database.base import now
from backend.database.engine import Database
from backend.database.processes import Leases, Process, Processes
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
