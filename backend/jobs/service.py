"""Users' access to their jobs, and deletion of old jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.keys.slots import clear_expired_keys
from backend.database.base import now
from backend.database.engine import OvertakenError
from backend.http.schemas import Page, make_page
from backend.jobs.claims import ENDED_VALUES
from backend.jobs.errors import JobNotFoundError, JobNotRetryableError, JobNotStoppableError
from backend.jobs.models import Job, JobState
from backend.jobs.queue import JobQueue
from backend.jobs.schemas import JobProgress, JobView

DONE_RETENTION = timedelta(days=1)
CLEAN_INTERVAL = timedelta(minutes=5)
STOPPED_SLUG = "stopped"
POLL_SECONDS = 0.5


class JobService:
    """Lists, retries, stops and follows the jobs of a user.

    Args:
        stoppable: Kinds that may be stopped, in any process.
    """

    def __init__(self, queue: JobQueue, *, stoppable: frozenset[str] = frozenset()) -> None:
        self._queue = queue
        self._stoppable = stoppable
        self._database = queue.database
        self._cleaned_at = datetime.min.replace(tzinfo=UTC)
        self._closed = asyncio.Event()

    async def list_jobs(
        self, owner_id: UUID, *, state: JobState | None, limit: int, after: UUID | None
    ) -> Page[JobView]:
        query = select(Job).where(Job.user_id == owner_id)
        if state is not None:
            query = query.where(Job.state == state)
        if after is not None:
            query = query.where(Job.id < after)
        query = query.order_by(Job.id.desc()).limit(limit + 1)
        async with self._database.read() as session:
            rows, following = make_page(list(await session.scalars(query)), limit)
        return Page(items=[JobView.from_row(row) for row in rows], next=following)

    async def get(self, owner_id: UUID, job_id: UUID) -> JobView:
        """Raises `JobNotFoundError`."""
        async with self._database.read() as session:
            return JobView.from_row(await _find_owned(session, job_id, owner_id))

    async def retry(self, identity: Identity, job_id: UUID) -> JobView:
        """Retry a dead or waiting job. Raises `JobNotFoundError` and `JobNotRetryableError`."""
        at = now()
        key = self._queue.grant(identity.sealer, identity.key_mode)
        try:
            async with self._database.write() as session:
                job = await _find_owned(session, job_id, identity.user_id, lock=True)
                if job.state in {"running", "done"}:
                    raise JobNotRetryableError(f"The job is {job.state}.")
                for name, value in key.columns(job.id, job.user_id, at).items():
                    setattr(job, name, value)
                job.attempts, job.leases_lost, job.error = 0, 0, None
                job.run_after, job.updated_at = at, at
        except OvertakenError as error:
            raise JobNotRetryableError("The same work is already in the queue.") from error
        self._queue.wake()
        return JobView.from_row(job)

    async def stop(self, owner_id: UUID, job_id: UUID) -> JobView:
        """Stop a job. Its row is kept for a day.

        Its worker loses the lease: it can commit no more transactions, and is interrupted within
        two seconds. Raises `JobNotFoundError` and `JobNotStoppableError`.
        """
        async with self._database.write() as session:
            job = await _find_owned(session, job_id, owner_id, lock=True)
            if job.kind not in self._stoppable:
                raise JobNotStoppableError("Jobs of this kind cannot be stopped.")
            if job.state in {"done", "dead"}:
                raise JobNotStoppableError(f"The job is {job.state}.")
            changes = {**ENDED_VALUES, "state": "done", "error": STOPPED_SLUG, "updated_at": now()}
            for name, value in changes.items():
                setattr(job, name, value)
        # Other jobs of its lane can run now.
        self._queue.wake()
        return JobView.from_row(job)

    async def follow(self, owner_id: UUID, job_id: UUID) -> AsyncGenerator[JobView | None]:
        """Yield the job whenever it changes, and None in between, twice a second.

        The last view is `done` or `dead`. Raises `JobNotFoundError`.
        """
        view = await self.get(owner_id, job_id)
        yield view
        while view.state not in {"done", "dead"} and not self._closed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._closed.wait()
                    return
            try:
                found = await self.get(owner_id, job_id)
            except JobNotFoundError:  # most finished jobs are deleted
                yield _done(view)
                return
            yield found if found != view else None
            view = found

    def close(self) -> None:
        """End all streams, for a shutdown."""
        self._closed.set()

    async def clean(self, *, at: datetime) -> None:
        """Delete expired keys, at most every few minutes."""
        if at - self._cleaned_at < CLEAN_INTERVAL:
            return
        self._cleaned_at = at
        async with self._database.write() as session:
            await clear_expired_keys(session, at=at)


def _done(view: JobView) -> JobView:
    total = max(view.progress.total, view.progress.done)
    progress = JobProgress(done=total, total=total)
    return msgspec.structs.replace(view, state="done", progress=progress, error=None)


async def _find_owned(
    session: AsyncSession, job_id: UUID, owner_id: UUID, *, lock: bool = False
) -> Job:
    query = select(Job).where(Job.id == job_id, Job.user_id == owner_id)
    job = await session.scalar(query.with_for_update() if lock else query)
    if job is None:
        raise JobNotFoundError
    return job
