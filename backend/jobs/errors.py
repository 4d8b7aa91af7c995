"""What may go wrong with jobs."""

from __future__ import annotations

from backend.errors import AppError, ConflictError, NotFoundError

MAX_LEASES_LOST = 3
"""Processes in a row that a job may lose. After that it gets one more try, with no other job."""


class JobNotFoundError(NotFoundError):
    """The job does not exist, has ended and was removed, or belongs to another user."""

    slug, title = "job-not-found", "Job not found"


class JobNotRetryableError(ConflictError):
    """The job is running or done."""

    slug, title = "job-not-retryable", "The job cannot be retried"


class JobNotStoppableError(ConflictError):
    """The job has ended, or jobs of its kind cannot be stopped."""

    slug, title = "job-not-stoppable", "The job cannot be stopped"


class LostLeaseError(AppError):
    """Another worker may have the job, so this worker's changes are rolled back."""

    slug, title = "job-lease-lost", "The worker lost the job"


class TakenBackError(AppError):
    """Another job that ended in the same transaction failed, so both were rolled back.

    The handler runs again, and ends in a transaction of its own.
    """

    slug, title = "job-taken-back", "The end of the job was rolled back"


class WorkerLostError(AppError):
    """The process was killed or hung three times in a row, and once more while no other job ran."""

    slug, title = "job-worker-lost", "The process running the job ended too often"


class RetryLaterError(AppError):
    """Raised by a handler to wait for a while. It uses up no attempt.

    Args:
        after: Seconds to wait.
        holds_lane: Seconds that the job holds its lane up, counted from the first time that it is
            put off like this. As long as it waits by default.
    """

    slug, title = "job-retry-later", "The job is postponed"

    def __init__(self, detail: str = "", *, after: float, holds_lane: float | None = None) -> None:
        super().__init__(detail)
        self.after = after
        self.holds_lane = holds_lane
