"""Errors of jobs."""

from __future__ import annotations

from backend.errors import AppError, ConflictError, NotFoundError

MAX_LEASES_LOST = 3
"""Processes in a row that a job may lose. Then it gets one more attempt without other jobs."""


class JobNotFoundError(NotFoundError):
    """The job does not exist, has been deleted, or belongs to another user."""

    slug, title = "job-not-found", "Job not found"


class JobNotRetryableError(ConflictError):
    """The job is running or done."""

    slug, title = "job-not-retryable", "The job cannot be retried"


class JobNotStoppableError(ConflictError):
    """The job has ended, or its kind does not support stopping."""

    slug, title = "job-not-stoppable", "The job cannot be stopped"


class LostLeaseError(AppError):
    """Another worker may have the job. The transaction is rolled back."""

    slug, title = "job-lease-lost", "The job belongs to another worker"


class RolledBackError(AppError):
    """Another job in the same transaction failed, so both were rolled back.

    The handler runs again, and ends in a separate transaction.
    """

    slug, title = "job-taken-back", "The end of the job was rolled back"


class WorkerLostError(AppError):
    """The job's process crashed or hung 3 times in a row, and once more without other jobs."""

    slug, title = "job-worker-lost", "The job's process ended too often"


class RetryLaterError(AppError):
    """Raised by a handler to postpone the job, without losing an attempt.

    Args:
        after: Seconds to wait.
        holds_lane: Seconds for which the job blocks its lane, from the first time that it is
            postponed. By default it blocks the lane as long as it waits.
    """

    slug, title = "job-retry-later", "The job is postponed"

    def __init__(self, detail: str = "", *, after: float, holds_lane: float | None = None) -> None:
        super().__init__(detail)
        self.after = after
        self.holds_lane = holds_lane
