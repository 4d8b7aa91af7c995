"""Ends of several jobs in one transaction.

A commit waits for the disk, and with the statements around it costs more than the few rows that
most jobs write. Each job makes its effects as it would by itself; all of it is committed together,
or none of it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.engine import Database
from backend.jobs import claims
from backend.jobs.claims import Claimed
from backend.jobs.errors import LostLeaseError, TakenBackError

T = TypeVar("T")

MOST = 64
"""Jobs that end in one transaction: who comes later waits for it."""


class SharedEnds:
    """The transactions in which a worker's jobs end, one after the other.

    The first job to come begins one at once. Those that come while it is under way end together in
    the next, so nobody waits for company.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock
        self._waiting: list[_Place] = []
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def place(self, job: Claimed) -> AsyncGenerator[AsyncSession]:
        """A job's part of a transaction that ends it, which is committed when the block is left.

        Raises `LostLeaseError` when the job is another worker's by now, and `TakenBackError` when
        the transaction was rolled back for a reason that lies outside of the block.
        """
        place = _Place(job)
        self._waiting.append(place)
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="jobs.ends")
        session = await place.entered
        if session is None:
            raise LostLeaseError if place.is_lost else TakenBackError
        is_done = False
        try:
            yield session
            is_done = True
        finally:
            _settle(place.left, is_done)
        if not await place.committed:
            raise TakenBackError

    async def _work(self) -> None:
        try:
            while self._waiting:
                places, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                is_committed = False
                with contextlib.suppress(Exception):  # each tries by itself, and finds out
                    is_committed = await self._end(places)
                for place in places:
                    _settle(place.entered, None)
                    _settle(place.committed, is_committed)
        finally:
            self._task = None

    async def _end(self, places: list[_Place]) -> bool:
        """End these jobs, each with its effects; whether all of it is committed."""
        async with self._database.write() as session:
            jobs = [place.job for place in places]
            held = await claims.end_many(session, jobs, at=self._clock())
            for place in places:
                place.is_lost = place.job.id not in held
                _settle(place.entered, None if place.is_lost else session)
                if not place.is_lost and not await place.has_left():
                    await session.rollback()
                    return False
                # The next one reads everything anew.
                await session.flush()
                session.expunge_all()
        return True


class _Place:
    """One job's part: it gets the session, lets go of it, and hears whether it was committed."""

    def __init__(self, job: Claimed) -> None:
        loop = asyncio.get_running_loop()
        self.job = job
        self.is_lost = False
        self.entered: asyncio.Future[AsyncSession | None] = loop.create_future()
        self.left: asyncio.Future[bool] = loop.create_future()
        self.committed: asyncio.Future[bool] = loop.create_future()

    async def has_left(self) -> bool:
        """Wait until the job has made its effects; whether it did, and was not interrupted."""
        return not self.entered.cancelled() and await self.left


def _settle(future: asyncio.Future[T], result: T) -> None:
    """Set a result, where the one who waits for it has not been interrupted."""
    if not future.done():
        future.set_result(result)
