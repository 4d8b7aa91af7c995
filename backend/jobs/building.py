"""The worker of a process, as the settings want it."""

from __future__ import annotations

from collections.abc import Mapping

from backend.jobs.keys import JobKeys
from backend.jobs.queue import JobQueue
from backend.jobs.running import JobKind
from backend.jobs.worker import Worker
from backend.settings import Settings


def build_worker(
    settings: Settings,
    queue: JobQueue,
    keys: JobKeys,
    kinds: Mapping[str, JobKind],
    *,
    takes_queued: bool,
) -> Worker:
    """What works on jobs in this process.

    On SQLite that is everything. On PostgreSQL `talekeeper work` does most of it, and a server what
    waits for a key that only it has, its user being signed in.
    """
    return Worker(
        queue,
        kinds,
        keys,
        concurrency=settings.job_workers,
        takes_queued=takes_queued,
        poll=3.0 if settings.embedded else 1.0,
    )
