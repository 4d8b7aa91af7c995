"""What may go wrong with jobs."""

from __future__ import annotations

from backend.errors import AppError, ConflictError, NotFoundError

MAX_LEASES_LOST = 3
"""Processes in a row that a job may lose. After that it gets one more try, with no other job."""


class JobNotFoundError(NotFoundError):
    """There is no such job, or it ended and was cleared away, or it is someone else's."""

    slug, title = "job-not-found", "Job not found"


class JobNotRetryableError(ConflictError):
    """It is running or done: there is nothing to try again."""

    slug, title = "job-not-retryable", "The job cannot be tried again now"


class JobNotStoppableError(ConflictError):
    """It is over, or of a kind that is not stopped half-way."""

    slug, title = "job-not-stoppable", "The job cannot be stopped"


class LostLeaseError(AppError):
    """Another worker may have the job by now: what this one did is rolled back."""

    slug, title = "job-lease-lost", "The job is no longer this worker's"


class RolledBackError(AppError):
    """Another job that ended in the same transaction failed: nothing came of either.

    The handler runs again, and ends in a transaction of its own.
    """

    slug, title = "job-taken-back", "The end of the job was taken back"


class WorkerLostError(AppError):
    """Its process was killed or hung 3 times in a row, and once more while no other job ran."""

    slug, title = "job-worker-lost", "The process that worked on it ended too often"


class RetryLaterError(AppError):
    """Raised by a handler to wait for a while. It uses up no attempt.

    Args:
        after: Seconds to wait.
        holds_lane: Seconds that the job holds its lane up, counted from the first time that it is
            put off like this. As long as it waits by default.
    """

    slug, title = "job-retry-later", "The job waits for a while"

    def __init__(self, detail: str = "", *, after: float, holds_lane: float | None = None) -> None:
        super().__init__(detail)
        self.after = after
        self.holds_lane = holds_lane
