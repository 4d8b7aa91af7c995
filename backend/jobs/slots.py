"""Room for the jobs that a worker runs at once, and those that it took ahead of it.

Claiming many jobs takes one transaction, as claiming one does. A worker whose jobs are quick
therefore takes some before there is room for them: no more than it does in `AHEAD_SECONDS`, by what
its jobs took lately. A job that only waits for the transaction that ends it needs no room.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from uuid import UUID

from backend.jobs.running import RunningJob

AHEAD_SECONDS = 0.1
MOST_AHEAD = 64
PATIENCE = 1.0
"""Seconds after which a job that found no room goes to another worker: those before it are slow."""
SMOOTHING = 0.1
"""Weight of one job in the mean of what jobs take."""
UNKNOWN_SECONDS = 1.0
"""What the first jobs are taken to take: nothing is claimed ahead of them."""


class Slots:
    """Which jobs of a worker run, and which wait until others have run.

    Args:
        count: Jobs at once.
        begin: Starts one.
    """

    def __init__(self, count: int, begin: Callable[[RunningJob], None]) -> None:
        self._count = count
        self._begin = begin
        self._seconds = UNKNOWN_SECONDS
        self._waiting: deque[tuple[RunningJob, float]] = deque()
        self._working: dict[UUID, float] = {}

    @property
    def ahead(self) -> int:
        """How many jobs more than run at once may be claimed."""
        return min(MOST_AHEAD, int(self._count * AHEAD_SECONDS / max(self._seconds, 1e-6)))

    def room(self, held: int, *, ahead: int) -> int:
        """How many jobs to claim, where `held` are claimed in all; 0 until it is worth while."""
        if len(self._waiting) > ahead // 2:
            return 0
        free = self._count + ahead - len(self._working) - len(self._waiting)
        return max(0, min(free, self._count + 2 * MOST_AHEAD - held))

    def add(self, job: RunningJob) -> None:
        """Start a job, or have it wait for room."""
        self._waiting.append((job, time.monotonic()))
        self._fill()

    def leave(self, job: RunningJob) -> None:
        """Note that a job has run: the next one gets its room."""
        began = self._working.pop(job.id, None)
        if began is not None:
            self._seconds += SMOOTHING * (time.monotonic() - began - self._seconds)
            self._fill()

    def take_back(self, *, after: float = PATIENCE) -> list[RunningJob]:
        """Those that have waited for room longer than `after` seconds, who wait no more."""
        found: list[RunningJob] = []
        until = time.monotonic() - after
        while self._waiting and self._waiting[0][1] <= until:
            found.append(self._waiting.popleft()[0])
        if found:  # they would be claimed again at once
            self._seconds = max(self._seconds, UNKNOWN_SECONDS)
        return found

    def _fill(self) -> None:
        while self._waiting and len(self._working) < self._count:
            job, _ = self._waiting.popleft()
            self._working[job.id] = time.monotonic()
            self._begin(job)
