"""Shapes of the jobs' part of the API."""

from datetime import datetime
from typing import Any, cast
from uuid import UUID

import msgspec

from backend.http.schemas import make_struct
from backend.jobs.errors import WorkerLostError
from backend.jobs.models import Job, JobState


class JobProgress(msgspec.Struct, kw_only=True, frozen=True):
    """How far a job is. `total` is 0 where nobody knows."""

    done: int
    total: int


class JobView(msgspec.Struct, kw_only=True, frozen=True):
    """A piece of work in the background.

    `waiting_key` waits until its owner is signed in, `dead` was tried too often. `error` is the
    last part of the `type` that the problem would have as an answer. A job that is `done` has one
    where it ended early: `stopped`, say, or what no longer let it go on. `counts` is what the job
    has counted so far, by name. `detail` says in a sentence why a job gave up, where the name of
    the error does not.
    """

    id: UUID
    kind: str
    state: JobState
    progress: JobProgress
    counts: dict[str, int]
    attempts: int
    error: str | None
    detail: str | None
    lane: UUID | None
    created_at: datetime
    run_after: datetime

    @classmethod
    def of(cls, job: Job) -> "JobView":
        """The view of a row."""
        progress = JobProgress(done=job.progress_done, total=job.progress_total)
        counts, detail = _counts(job.payload), _detail(job)
        return make_struct(cls, job, progress=progress, counts=counts, detail=detail)


def _detail(job: Job) -> str | None:
    if job.state != "dead" or job.error != WorkerLostError.slug:
        return None
    return f"Its worker stopped {job.leases_lost} times while it ran; retry it by hand."


def _counts(payload: str) -> dict[str, int]:
    """The `counts` of a job's payload; the rest, which is the handler's own, is not shown."""
    counts: Any = msgspec.json.decode(payload, type=dict[str, Any]).get("counts")
    if not isinstance(counts, dict):
        return {}
    named = cast("dict[str, Any]", counts)
    return {name: value for name, value in named.items() if type(value) is int}
