"""Schemas of the jobs API."""

from datetime import datetime
from typing import Any, cast
from uuid import UUID

import msgspec

from backend.http.schemas import make_struct
from backend.jobs.errors import WorkerLostError
from backend.jobs.models import Job, JobState


class JobProgress(msgspec.Struct, kw_only=True, frozen=True):
    """The progress of a job. `total` is 0 if it is unknown."""

    done: int
    total: int


class JobView(msgspec.Struct, kw_only=True, frozen=True):
    """A background job.

    The state `waiting_key` means that it waits until its owner signs in, `dead` that all attempts
    failed. `error` is the last part of a problem's `type`. A job that is `done` has one if it ended
    early, for example `stopped`. `counts` are numbers that the job has counted so far, by name.
    `detail` explains why a job is dead, if the error's name does not.
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
    def from_row(cls, job: Job) -> "JobView":
        progress = JobProgress(done=job.progress_done, total=job.progress_total)
        counts, detail = _counts(job.payload), _detail(job)
        return make_struct(cls, job, progress=progress, counts=counts, detail=detail)


def _detail(job: Job) -> str | None:
    if job.state != "dead" or job.error != WorkerLostError.slug:
        return None
    return f"Its worker stopped {job.leases_lost} times while it ran. Retry the job manually."


def _counts(payload: str) -> dict[str, int]:
    """Return the `counts` of a job's payload. The rest is internal to its handler."""
    counts: Any = msgspec.json.decode(payload, type=dict[str, Any]).get("counts")
    if not isinstance(counts, dict):
        return {}
    named = cast("dict[str, Any]", counts)
    return {name: value for name, value in named.items() if type(value) is int}
