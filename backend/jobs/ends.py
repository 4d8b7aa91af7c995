"""Ends of several jobs in one transaction.

A commit waits for the disk, and with the statements around it costs more than the few rows that
most jobs write. Each job makes its effects as it would by itself; all of it is committed together,
or none of it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.engine import Database
from backend.jobs import claims
from backend.jobs.claims import Claimed
from backend.jobs.errors import LostLeaseError, TakenBackError
from backend.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")

MOST = 64
"""Jobs that end in one transaction: who comes later waits for it."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a job leaves behind: a statement, run once for each of `rows`."""

    statement: Executable
    rows: Sequence[Mapping[str, Any]]


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
        place = self._join(_Place(job))
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

    async def end(self, job: Claimed, effect: Effect) -> None:
        """End a job with an effect that is known before. Raises as `place` does."""
        place = self._join(_Place(job, effect))
        is_committed = await place.committed
        if place.is_lost:
            raise LostLeaseError
        if not is_committed:
            raise TakenBackError

    def _join(self, place: _Place) -> _Place:
        self._waiting.append(place)
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="jobs.ends")
        return place

    async def _work(self) -> None:
        try:
            while self._waiting:
                places, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                is_committed = False
                try:
                    is_committed = await self._end(places)
                except Exception as error:  # each job tries again alone
                    log.warning("job.ends_failed", count=len(places), exc_info=error)
                for place in places:
                    _settle(place.entered, None)
                    _settle(place.committed, is_committed)
        finally:
            self._task = None

    async def _end(self, places: list[_Place]) -> bool:
        """End these jobs, each with its effects; whether all of it is committed."""
        async with self._database.write() as session:
            places = [place for place in places if not place.committed.cancelled()]
            if not places:
                return False
            jobs = [place.job for place in places]
            held = await claims.end_many(session, jobs, at=self._clock())
            effects: dict[Executable, list[Mapping[str, Any]]] = {}
            for place in places:
                place.is_lost = place.job.id not in held
                if place.effect is not None and place.effect.rows and not place.is_lost:
                    effects.setdefault(place.effect.statement, []).extend(place.effect.rows)
            for statement, rows in effects.items():
                await session.execute(statement, rows)
            for place in places:
                if place.effect is None and not await self._let_in(place, session):
                    await session.rollback()
                    return False
        return True

    async def _let_in(self, place: _Place, session: AsyncSession) -> bool:
        """Have a job make its effects; whether it did, or has none to make any more."""
        _settle(place.entered, None if place.is_lost else session)
        if place.is_lost:
            return True
        if not await place.has_left():
            return False
        # The next one reads everything anew.
        await session.flush()
        session.expunge_all()
        return True


class _Place:
    """One job's part: it gets the session, lets go of it, and hears whether it was committed.

    One whose effect is known hears of the commit alone.
    """

    def __init__(self, job: Claimed, effect: Effect | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.job = job
        self.effect = effect
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
