"""Shapes of the jobs' part of the API."""

from datetime import datetime
from uuid import UUID

import msgspec

from backend.jobs.models import Job, JobState


class JobProgress(msgspec.Struct, kw_only=True, frozen=True):
    """How far a job is. `total` is 0 where nobody knows."""

    done: int
    total: int


class JobView(msgspec.Struct, kw_only=True, frozen=True):
    """A piece of work in the background.

    `waiting_key` waits until its owner is signed in, `dead` was tried too often. `error` is the
    last part of the `type` that the problem would have as an answer.
    """

    id: UUID
    kind: str
    state: JobState
    progress: JobProgress
    attempts: int
    error: str | None
    lane: UUID | None
    created_at: datetime
    run_after: datetime

    @classmethod
    def of(cls, job: Job) -> "JobView":
        """The view of a row."""
        return cls(
            id=job.id,
            kind=job.kind,
            state=job.state,
            progress=JobProgress(done=job.progress_done, total=job.progress_total),
            attempts=job.attempts,
            error=job.error,
            lane=job.lane,
            created_at=job.created_at,
            run_after=job.run_after,
        )
