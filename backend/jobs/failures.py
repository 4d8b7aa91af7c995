"""What becomes of a job whose attempt failed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from backend.errors import AppError
from backend.jobs.backoff import delay_after
from backend.jobs.claims import ENDED
from backend.jobs.errors import RetryLaterError, WorkerLostError
from backend.jobs.running import RunningJob
from backend.logs import get_logger

log = get_logger(__name__)

UNEXPECTED = "internal-error"
"""Slug of what our own errors do not name."""


def queued_at(at: datetime) -> dict[str, Any]:
    """What changes about a job that is to be taken again from then on."""
    return {"state": "queued", "run_after": at}


def after_failure(
    job: RunningJob, error: Exception, *, at: datetime, draw: Callable[[], float]
) -> dict[str, Any]:
    """What changes about a job whose handler raised, and a line in the log that says so.

    Of the error its slug is kept, and never its text, which may be a user's.
    """
    slug = error.slug if isinstance(error, AppError) else UNEXPECTED
    unexpected = None if isinstance(error, AppError) else error
    if isinstance(error, RetryLaterError):
        log.info(
            "job.put_off",
            job_id=job.id,
            job_kind=job.kind,
            problem=slug,
            retry_after_s=error.after,
        )
        later = queued_at(at + timedelta(seconds=error.after))
        return {**later, "attempts": job.attempt - 1, "leases_lost": 0}
    if isinstance(error, WorkerLostError):  # it was claimed once more to say so
        wait, attempts = None, job.attempt - 1
    else:
        wait, attempts = delay_after(job.attempt, draw), job.attempt
    if wait is None:
        log.error(
            "job.died",
            job_id=job.id,
            job_kind=job.kind,
            attempt=attempts,
            problem=slug,
            exc_info=unexpected,
        )
        return {"state": "dead", "error": slug, "attempts": attempts, **ENDED}
    log.warning(
        "job.failed",
        job_id=job.id,
        job_kind=job.kind,
        attempt=job.attempt,
        problem=slug,
        retry_after_s=round(wait.total_seconds(), 1),
        exc_info=unexpected,
    )
    return {**queued_at(at + wait), "error": slug, "leases_lost": 0}
