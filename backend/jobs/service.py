"""A user's own jobs: looking, trying again, stopping, following; and clearing away what is over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
from sqlalchemy import and_, delete, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.keys.server_held import clear_old_keys
from backend.database.base import now
from backend.database.engine import OvertakenError
from backend.http.schemas import Page, make_page
from backend.jobs.claims import ENDED_VALUES
from backend.jobs.errors import JobNotFoundError, JobNotRetryableError, JobNotStoppableError
from backend.jobs.models import Job, JobState
from backend.jobs.queue import JobQueue
from backend.jobs.schemas import JobProgress, JobView

DONE_RETENTION = timedelta(days=1)
DEAD_RETENTION = timedelta(days=30)
CLEAN_INTERVAL = timedelta(minutes=5)
STOPPED_SLUG = "stopped"
"""`error` of a job that its owner ended."""
POLL_SECONDS = 0.5
"""How often a stream looks how far its job is."""


class JobService:
    """What people see of their jobs.

    Args:
        stoppable: The kinds that may be ended half-way, whichever process works on them.
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
        """A page of the user's jobs, newest first."""
        query = select(Job).where(Job.user_id == owner_id)
        if state is not None:
            query = query.where(Job.state == state)
        if after is not None:
            query = query.where(Job.id < after)
        query = query.order_by(Job.id.desc()).limit(limit + 1)
        async with self._database.read() as session:
            rows, following = make_page(list(await session.scalars(query)), limit)
        return Page(items=[JobView.of(row) for row in rows], next=following)

    async def get(self, owner_id: UUID, job_id: UUID) -> JobView:
        """Raises `JobNotFoundError`."""
        async with self._database.read() as session:
            return JobView.of(await _owned(session, job_id, owner_id))

    async def retry(self, identity: Identity, job_id: UUID) -> JobView:
        """Have a job that is dead or waits tried anew, now, with the key of who asks.

        Raises `JobNotFoundError`, `JobNotRetryableError`.
        """
        at = now()
        key = self._queue.grant(identity.sealer, identity.key_mode)
        try:
            async with self._database.write() as session:
                job = await _owned(session, job_id, identity.user_id, lock=True)
                if job.state in {"running", "done"}:
                    raise JobNotRetryableError(f"It is {job.state}.")
                for name, value in key.columns(job.id, job.user_id, at).items():
                    setattr(job, name, value)
                job.attempts, job.leases_lost, job.error = 0, 0, None
                job.run_after, job.updated_at = at, at
        except OvertakenError as error:
            raise JobNotRetryableError("The same work waits in the queue already.") from error
        self._queue.wake()
        return JobView.of(job)

    async def stop(self, owner_id: UUID, job_id: UUID) -> JobView:
        """End a job where it is; its row stays for a day.

        A worker that is at it has lost it: its next transaction changes nothing, and it is
        interrupted after a second or two. Raises
        `JobNotFoundError`, and `JobNotStoppableError` when it is over or of another kind.
        """
        async with self._database.write() as session:
            job = await _owned(session, job_id, owner_id, lock=True)
            if job.kind not in self._stoppable:
                raise JobNotStoppableError("Work of its kind ends by itself.")
            if job.state in {"done", "dead"}:
                raise JobNotStoppableError(f"It is {job.state}.")
            changes = {**ENDED_VALUES, "state": "done", "error": STOPPED_SLUG, "updated_at": now()}
            for name, value in changes.items():
                setattr(job, name, value)
        # Others of its lane need not wait any longer.
        self._queue.wake()
        return JobView.of(job)

    async def follow(self, owner_id: UUID, job_id: UUID) -> AsyncGenerator[JobView | None]:
        """What changes about a job, as it does, and in between None, a few times a second.

        It ends with the job: the last one says `done` or `dead`. Raises `JobNotFoundError` when
        there is no such job to begin with.
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
            except JobNotFoundError:  # its row goes when it is done
                yield _done(view)
                return
            yield found if found != view else None
            view = found

    def close(self) -> None:
        """End every stream: the server stops."""
        self._closed.set()

    async def clean(self, *, at: datetime) -> None:
        """Clear away jobs that are over, and keys whose time is; once in a few minutes."""
        if at - self._cleaned_at < CLEAN_INTERVAL:
            return
        self._cleaned_at = at
        over = or_(
            and_(Job.state == "done", Job.updated_at <= at - DONE_RETENTION),
            and_(Job.state == "dead", Job.updated_at <= at - DEAD_RETENTION),
        )
        async with self._database.write() as session:
            await session.execute(delete(Job).where(over))
            await clear_old_keys(session, at=at)


def _done(view: JobView) -> JobView:
    total = max(view.progress.total, view.progress.done)
    progress = JobProgress(done=total, total=total)
    return msgspec.structs.replace(view, state="done", progress=progress, error=None)


async def _owned(session: AsyncSession, job_id: UUID, owner_id: UUID, *, lock: bool = False) -> Job:
    query = select(Job).where(Job.id == job_id, Job.user_id == owner_id)
    job = await session.scalar(query.with_for_update() if lock else query)
    if job is None:
        raise JobNotFoundError
    return job
