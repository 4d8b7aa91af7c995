"""A running job, its transactions, and retries after failures."""

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


@dataclass(frozen=True, slots=True)
class Effect:
    """The result of a job: a statement that is executed for each of `rows`."""

    statement: Executable
    rows: Sequence[Mapping[str, Any]]


class SharedEnds:
    """Ends a worker's jobs in shared transactions, one transaction at a time.

    The first job begins a transaction at once. Jobs that end while it runs share the next one.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock
        self._waiting: list[_Place] = []
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def place(self, job: ClaimedJob) -> AsyncGenerator[AsyncSession]:
        """Enter a job's share of the transaction that ends it. It is committed after the block.

        Raises `LostLeaseError` if another worker has the job, and `RolledBackError` if the
        transaction was rolled back because of another job.
        """
        place = self._join(_Place(job))
        is_done = False
        try:
            # The job may be cancelled after it was let in. The transaction must not wait for it.
            session = await place.entered
            if session is None:
                raise LostLeaseError if place.is_lost else RolledBackError
            yield session
            is_done = True
        finally:
            _settle(place.left, is_done)
        if not await place.committed:
            raise RolledBackError

    async def end(self, job: ClaimedJob, effect: Effect) -> None:
        """End a job with this effect. Raises the errors of `place`."""
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
        """End these jobs with their effects. True if the transaction was committed."""
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
                if place.effect is None and not await self._apply_effects(place, session):
                    await session.rollback()
                    return False
        return True

    async def _apply_effects(self, place: _Place, session: AsyncSession) -> bool:
        """Let a job apply its effects. False if it failed or was interrupted."""
        _settle(place.entered, None if place.is_lost else session)
        if place.is_lost:
            return True
        if not await place.has_left():
            return False
        # The next job must not see stale rows.
        await session.flush()
        session.expunge_all()
        return True


class _Place:
    """One job's share of a batched commit. A job with an effect only waits for `committed`."""

    def __init__(self, job: ClaimedJob, effect: Effect | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.job = job
        self.effect = effect
        self.is_lost = False
        self.entered: asyncio.Future[AsyncSession | None] = loop.create_future()
        self.left: asyncio.Future[bool] = loop.create_future()
        self.committed: asyncio.Future[bool] = loop.create_future()

    async def has_left(self) -> bool:
        """Wait until the job has applied its effects. False if it failed or was interrupted."""
        return not self.entered.cancelled() and await self.left


def _settle(future: asyncio.Future[T], result: T) -> None:
    """Set a result, unless the waiting task was cancelled."""
    if not future.done():
        future.set_result(result)


PROGRESS_INTERVAL = timedelta(seconds=1)
"""Minimum time between two updates of the stored progress."""

MAX_ATTEMPTS = 8
FIRST_DELAY_SECONDS = 5.0
DELAY_FACTOR = 3.0
MAX_DELAY_SECONDS = 3600.0

UNEXPECTED_SLUG = "internal-error"
"""Slug of errors that are not `AppError`."""

Clock = Callable[[], datetime]

_OWNED_JOB = select(Job.id).where(claims.IS_OWNED).with_for_update()


class RunningJob:
    """One attempt at a job.

    A handler writes only in `finish` or `step`, whose transactions check that the job still belongs
    to this worker. `payload` is the enqueued one, or that of the last `checkpoint`. `sealer` is
    None if the kind needs no key. `attempt` counts from 1.

    The other attributes are for the worker. `ends` is set if the job ends together with others;
    `leave` is called when only this end remains. While `runs_alone`, no other job runs in the
    process, because this job crashed several processes. A checkpoint resets it.
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
        """The user's sealer. Only for kinds with `needs_key`."""
        if self.sealer is None:
            raise LostLeaseError("The job has no key.")
        return self.sealer

    @asynccontextmanager
    async def finish(self) -> AsyncGenerator[AsyncSession]:
        """Begin the transaction that applies the job's effects and ends the job.

        Raises `LostLeaseError` at its beginning if another worker has the job. Jobs of a kind with
        `ends_together` may share the transaction, and see the effects of earlier ones.
        """
        async with self._writing(self._begin_end()) as session:
            yield session
        self.is_over = True

    async def finish_statement(
        self, statement: Executable, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """End the job with a statement for each of `rows`. Jobs that end together share it."""
        if self.ends is None:
            async with self.finish() as session:
                if rows:
                    await session.execute(statement, rows)
            return
        async with self._writing(self._end_shared(self.ends, Effect(statement, rows))):
            pass
        self.is_over = True

    def _begin_end(self) -> AbstractAsyncContextManager[AsyncSession]:
        if self.ends is None:
            return self._end_alone()
        self._leave()
        return self.ends.place(self.claimed)

    @asynccontextmanager
    async def _end_shared(self, ends: SharedEnds, effect: Effect) -> AsyncGenerator[None]:
        self._leave()
        await ends.end(self.claimed, effect)
        yield

    def _leave(self) -> None:
        self.is_ending = True
        if self.leave is not None:
            self.leave(self)

    @asynccontextmanager
    async def _end_alone(self) -> AsyncGenerator[AsyncSession]:
        async with self._database.write() as session:
            if not await claims.end_job(session, self.claimed, at=self._clock(), keep=self._keep):
                raise LostLeaseError
            yield session

    @asynccontextmanager
    async def step(self) -> AsyncGenerator[AsyncSession]:
        """Begin a transaction for effects, progress and checkpoint. Raises `LostLeaseError`."""
        async with self._writing(self._database.write()) as session:
            values = self.claimed.make_owner_values(self._clock())
            if await session.scalar(_OWNED_JOB, values) is None:
                raise LostLeaseError
            yield session
            has_checkpoint = await self._store(session)
        self.runs_alone = self.runs_alone and not has_checkpoint

    def checkpoint(self, payload: dict[str, Any]) -> None:
        """Replace the payload for later attempts. This `step`, or the next one, stores it."""
        self.payload = payload
        self._changes["payload"] = msgspec.json.encode(payload).decode()

    async def progress(self, done: int, total: int) -> None:
        """Set the progress. It is stored by the current `step`, else at most once a second."""
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
            raise LostLeaseError("The job has ended, or another of its transactions is open.")
        self.is_writing = True
        changes, payload = dict(self._changes), self.payload
        try:
            async with transaction as session:
                yield session
        except BaseException:
            # A checkpoint of this block would describe effects that were rolled back.
            self._changes, self.payload = changes, payload
            raise
        finally:
            self.is_writing = False

    async def _store(self, session: AsyncSession) -> bool:
        """Store the changes of a step. True if they include a checkpoint."""
        at = self._clock()
        changes, self._changes = self._changes, {}
        values = {"lease_until": at + self._lasts, "updated_at": at, **changes}
        has_checkpoint = "payload" in changes
        if has_checkpoint:  # the next attempt continues from there
            values["leases_lost"] = 0
        query = update(Job).where(Job.id == self.id).values(values)
        await session.execute(query, execution_options=UNSYNCHRONIZED)
        self._stored_at = at
        return has_checkpoint


Handler = Callable[[RunningJob], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class JobKind:
    """The handler and options of a kind of job.

    If a handler returns without `finish`, the job ends without effects. `RetryLaterError` postpones
    the job; any other exception is a failed attempt.

    Args:
        needs_key: True if the job waits until its user's key is available.
        keep: True to keep the row of a finished job for a day, so that the user can see it.
        stoppable: True if the owner may stop the job. The effects of its steps are kept.
        ends_together: True if several jobs may end in one transaction. In `finish` they may change
            only rows of their own lane, otherwise they could deadlock. Their handler may run twice
            in one attempt, if the transaction fails. Not with `keep`.
    """

    handler: Handler
    needs_key: bool = True
    keep: bool = False
    stoppable: bool = False
    ends_together: bool = False


def find_stoppable_kinds(kinds: Mapping[str, JobKind]) -> frozenset[str]:
    return frozenset(name for name, kind in kinds.items() if kind.stoppable)


def draw_delay(attempts: int, draw: Callable[[], float]) -> timedelta | None:
    """Return the wait after this many failed attempts, or None after the last one.

    Full jitter: a random part of a bound that grows from 5 s to 1 h, so that jobs which failed
    together are not retried together. `draw` returns numbers in [0, 1).
    """
    if attempts >= MAX_ATTEMPTS:
        return None
    bound = min(FIRST_DELAY_SECONDS * DELAY_FACTOR ** (attempts - 1), MAX_DELAY_SECONDS)
    return timedelta(seconds=draw() * bound)


def make_queued_values(at: datetime) -> dict[str, Any]:
    return {"state": "queued", "run_after": at, "lane_until": None}


def handle_failure(
    job: RunningJob, error: Exception, *, at: datetime, draw: Callable[[], float]
) -> dict[str, Any]:
    """Log a handler's error, and return the new column values of the job.

    Only the slug of the error is stored, because its message may quote a user.
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
