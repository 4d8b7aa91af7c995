"""A job while it is worked on: what its handler is given, and what becomes of it if that fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Executable, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.core.logs import get_logger
from backend.database.base import UNSYNCHRONIZED
from backend.database.engine import Database
from backend.errors import AppError
from backend.jobs import claims
from backend.jobs.claims import ENDED_VALUES, ClaimedJob
from backend.jobs.errors import (
    MAX_LEASES_LOST,
    LostLeaseError,
    RetryLaterError,
    RolledBackError,
    WorkerLostError,
)
from backend.jobs.models import Job
from backend.vault.sealing import Sealer

log = get_logger(__name__)

T = TypeVar("T")

MAX_SHARED_ENDS = 64
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
    async def place(self, job: ClaimedJob) -> AsyncGenerator[AsyncSession]:
        """A job's part of a transaction that ends it, which is committed when the block is left.

        Raises `LostLeaseError` when the job is another worker's by now, and `RolledBackError` when
        the transaction was rolled back for a reason that lies outside of the block.
        """
        place = self._join(_Place(job))
        session = await place.entered
        if session is None:
            raise LostLeaseError if place.is_lost else RolledBackError
        is_done = False
        try:
            yield session
            is_done = True
        finally:
            _settle(place.left, is_done)
        if not await place.committed:
            raise RolledBackError

    async def end(self, job: ClaimedJob, effect: Effect) -> None:
        """End a job with an effect that is known before. Raises as `place` does."""
        place = self._join(_Place(job, effect))
        is_committed = await place.committed
        if place.is_lost:
            raise LostLeaseError
        if not is_committed:
            raise RolledBackError

    def _join(self, place: _Place) -> _Place:
        self._waiting.append(place)
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="jobs.ends")
        return place

    async def _work(self) -> None:
        try:
            while self._waiting:
                places, self._waiting = (
                    self._waiting[:MAX_SHARED_ENDS],
                    self._waiting[MAX_SHARED_ENDS:],
                )
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
            held = await claims.end_jobs(session, jobs, at=self._clock())
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

    def __init__(self, job: ClaimedJob, effect: Effect | None = None) -> None:
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


PROGRESS_INTERVAL = timedelta(seconds=1)
"""How often progress is stored, at most."""

MAX_ATTEMPTS = 8
FIRST_DELAY_SECONDS = 5.0
DELAY_FACTOR = 3.0
MAX_DELAY_SECONDS = 3600.0

UNEXPECTED_SLUG = "internal-error"
"""Slug of what our own errors do not name."""

Clock = Callable[[], datetime]

_HELD = select(Job.id).where(claims.IS_OWNED).with_for_update()


class RunningJob:
    """One attempt at a job.

    What a handler changes, it changes in `finish` or `step`: both make sure, in the transaction
    itself, that the job is still this worker's. `payload` is what was enqueued, or what the last
    `checkpoint` left. `sealer` is None where the kind needs no key. `attempt` counts from 1;
    `created_at` is when the work was caused.
    The rest is the worker's: `ends` is where it ends with others, if it does, and `leave` hears
    that it has nothing left to do but that. While `runs_alone`, no other job runs in its process,
    because it has lost several; that is over once it has stored a checkpoint.
    """

    def __init__(
        self,
        database: Database,
        claimed: ClaimedJob,
        *,
        keep: bool,
        lasts: timedelta,
        clock: Clock,
    ) -> None:
        self.claimed = claimed
        self.id = claimed.id
        self.user_id = claimed.user_id
        self.kind = claimed.kind
        self.lane = claimed.lane
        self.attempt = claimed.attempts
        self.created_at = claimed.created_at
        self.payload: dict[str, Any] = msgspec.json.decode(claimed.payload, type=dict[str, Any])
        self.sealer: Sealer | None = None
        self.ends: SharedEnds | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_lost = False
        self.is_over = False
        self.is_writing = False
        self.is_ending = False
        self.runs_alone = claimed.leases_lost >= MAX_LEASES_LOST
        self.leave: Callable[[RunningJob], None] | None = None
        self._database = database
        self._keep = keep
        self._lasts = lasts
        self._clock = clock
        self._changes: dict[str, Any] = {}
        self._stored_at: datetime | None = None

    @property
    def keys(self) -> Sealer:
        """The user's sealer, of a kind that needs it: the worker gives such jobs no other way."""
        if self.sealer is None:
            raise LostLeaseError("The job has no key at hand.")
        return self.sealer

    @asynccontextmanager
    async def finish(self) -> AsyncGenerator[AsyncSession]:
        """The transaction that makes the job's effects and ends it, both or neither.

        Raises `LostLeaseError` before anything is done when the job is another worker's by now.
        Jobs of a kind that `ends_together` may share it: each sees what those before it did.
        """
        async with self._writing(self._ending()) as session:
            yield session
        self.is_over = True

    async def finish_with(self, statement: Executable, rows: Sequence[Mapping[str, Any]]) -> None:
        """End the job with what one statement makes of `rows`: as `finish`, both or neither.

        Of jobs that end together, those with the same statement run it in one call.
        """
        if self.ends is None:
            async with self.finish() as session:
                if rows:
                    await session.execute(statement, rows)
            return
        async with self._writing(self._ending_with(self.ends, Effect(statement, rows))):
            pass
        self.is_over = True

    def _ending(self) -> AbstractAsyncContextManager[AsyncSession]:
        if self.ends is None:
            return self._ending_alone()
        self._leave()
        return self.ends.place(self.claimed)

    @asynccontextmanager
    async def _ending_with(self, ends: SharedEnds, effect: Effect) -> AsyncGenerator[None]:
        self._leave()
        await ends.end(self.claimed, effect)
        yield

    def _leave(self) -> None:
        self.is_ending = True
        if self.leave is not None:
            self.leave(self)

    @asynccontextmanager
    async def _ending_alone(self) -> AsyncGenerator[AsyncSession]:
        async with self._database.write() as session:
            if not await claims.end_job(session, self.claimed, at=self._clock(), keep=self._keep):
                raise LostLeaseError
            yield session

    @asynccontextmanager
    async def step(self) -> AsyncGenerator[AsyncSession]:
        """A transaction on the way: its effects, progress and checkpoint, all or nothing.

        Raises `LostLeaseError` as `finish` does.
        """
        async with self._writing(self._database.write()) as session:
            if await session.scalar(_HELD, self.claimed.held(self._clock())) is None:
                raise LostLeaseError
            yield session
            has_checkpoint = await self._store(session)
        self.runs_alone = self.runs_alone and not has_checkpoint

    def checkpoint(self, payload: dict[str, Any]) -> None:
        """Replace the payload: what the next attempt begins with, should this one fail.

        Stored with the `step` that it is called in, or with the next one.
        """
        self.payload = payload
        self._changes["payload"] = msgspec.json.encode(payload).decode()

    async def progress(self, done: int, total: int) -> None:
        """Say how far it is. Stored at once inside `step`, else once a second at most."""
        self._changes |= {"progress_done": done, "progress_total": total}
        at = self._clock()
        if self.is_writing or self.is_over:
            return
        if done < total and self._stored_at and at - self._stored_at < PROGRESS_INTERVAL:
            return
        async with self.step():
            pass

    @asynccontextmanager
    async def _writing(self, transaction: AbstractAsyncContextManager[T]) -> AsyncGenerator[T]:
        if self.is_over or self.is_writing:
            raise LostLeaseError("The job has ended, or another transaction of its own is open.")
        self.is_writing = True
        changes, payload = dict(self._changes), self.payload
        try:
            async with transaction as session:
                yield session
        except BaseException:
            # A checkpoint that was set in here speaks of effects that there are not.
            self._changes, self.payload = changes, payload
            raise
        finally:
            self.is_writing = False

    async def _store(self, session: AsyncSession) -> bool:
        """Store the changes of a step in the row. True if there is a checkpoint among them."""
        at = self._clock()
        changes, self._changes = self._changes, {}
        values = {"lease_until": at + self._lasts, "updated_at": at, **changes}
        has_checkpoint = "payload" in changes
        if has_checkpoint:  # the next attempt goes on from there
            values["leases_lost"] = 0
        query = update(Job).where(Job.id == self.id).values(values)
        await session.execute(query, execution_options=UNSYNCHRONIZED)
        self._stored_at = at
        return has_checkpoint


Handler = Callable[[RunningJob], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class JobKind:
    """How a kind of job is done.

    A handler that returns without `finish` is finished, with no effects. Raising `RetryLaterError`
    puts the job off; anything else counts as a failed attempt.

    Args:
        needs_key: Whether it waits until its user's key is at hand.
        keep: Whether the row stays for a day when it is done, for people to see.
        stoppable: Whether its owner may end it half-way. What its steps did until then stays.
        ends_together: Whether several may end in one transaction. What they change in `finish` is
            their own lane's, or rows would be locked in any order, and their handler can run twice
            in one attempt, should the transaction fail. Not with `keep`.
    """

    handler: Handler
    needs_key: bool = True
    keep: bool = False
    stoppable: bool = False
    ends_together: bool = False


def find_stoppable_kinds(kinds: Mapping[str, JobKind]) -> frozenset[str]:
    """Which of these kinds may be ended half-way."""
    return frozenset(name for name, kind in kinds.items() if kind.stoppable)


def draw_delay(attempts: int, draw: Callable[[], float]) -> timedelta | None:
    """The wait after that many failed attempts; None when there is to be no further one.

    Full jitter: anywhere from nothing to a bound that grows from 5 s to 1 h, so that jobs that
    failed together do not come back together. `draw` gives numbers from [0, 1).
    """
    if attempts >= MAX_ATTEMPTS:
        return None
    bound = min(FIRST_DELAY_SECONDS * DELAY_FACTOR ** (attempts - 1), MAX_DELAY_SECONDS)
    return timedelta(seconds=draw() * bound)


def make_queued_values(at: datetime) -> dict[str, Any]:
    """What changes about a job that is to be taken again from then on."""
    return {"state": "queued", "run_after": at, "lane_until": None}


def handle_failure(
    job: RunningJob, error: Exception, *, at: datetime, draw: Callable[[], float]
) -> dict[str, Any]:
    """What changes about a job whose handler raised, and a line in the log that says so.

    Of the error its slug is kept, and never its text, which may be a user's.
    """
    slug, unexpected = (
        (error.slug, None) if isinstance(error, AppError) else (UNEXPECTED_SLUG, error)
    )
    about = log.bind(job_id=job.id, job_kind=job.kind, problem=slug)
    if isinstance(error, RetryLaterError):
        about.info("job.put_off", retry_after_s=error.after)
        due = claims.make_due_time(job.claimed, at + timedelta(seconds=error.after))
        later = {**make_queued_values(at), "run_after": due}
        if error.holds_lane is not None:
            first = at + timedelta(seconds=error.holds_lane)
            later["lane_until"] = job.claimed.lane_until or first
        return {**later, "attempts": job.attempt - 1, "leases_lost": 0}
    about = about.bind(attempt=job.attempt, exc_info=unexpected)
    wait = None if isinstance(error, WorkerLostError) else draw_delay(job.attempt, draw)
    if wait is None:
        about.error("job.died", leases_lost=job.claimed.leases_lost)
        return {"state": "dead", "error": slug, **ENDED_VALUES}
    about.warning("job.failed", retry_after_s=round(wait.total_seconds(), 1))
    return {**make_queued_values(at + wait), "error": slug, "leases_lost": 0}
