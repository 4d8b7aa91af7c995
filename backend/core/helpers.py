"""Growing pauses between starts of a helper process that fails."""

from __future__ import annotations

import threading
import time

from backend.core.logs import get_logger

log = get_logger(__name__)

FIRST_PAUSE_SECONDS = 4.0
"""The pause after a failed start. Each further failure in a row doubles it, so that there are at
most five starts in a minute."""

MAX_PAUSE_SECONDS = 60.0

STABLE_SECONDS = 60.0
"""A process that ran for this time is restarted at once when it ends."""


class HelperStarts:
    """Decides when a failing helper process may start again. Thread-safe.

    A process fails if it cannot be started, does not become ready, or ends soon after. The first
    unexpected end is forgiven: the process restarts at once. The first pause in a row is logged,
    and so is the next successful start.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_failing = False
        self._failures = 0
        self._next_start = 0.0
        self._ready_at: float | None = None
        self._lock = threading.Lock()

    def describe(self) -> str:
        if self.is_failing:
            return "its process does not start; it is retried automatically"
        return "its process runs" if self._ready_at else "its process starts on first use"

    def is_due(self) -> bool:
        return time.monotonic() >= self._next_start

    def note_success(self) -> None:
        with self._lock:
            if self.is_failing:
                log.info("helper.started", helper=self.name)
            self.is_failing = False
            self._ready_at = time.monotonic()

    def note_failure(self, error: BaseException | None = None) -> None:
        now = time.monotonic()
        with self._lock:
            ready_at, self._ready_at = self._ready_at, None
            if ready_at is not None and now - ready_at >= STABLE_SECONDS:
                self._failures = 0
            is_accident = ready_at is not None and self._failures == 0
            self._failures += 1
            if is_accident:
                return
            pause = FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 10)
            self._next_start = now + min(pause, MAX_PAUSE_SECONDS)
            if not self.is_failing:
                kind = type(error).__name__ if error else None
                log.warning("helper.not_started", helper=self.name, error_type=kind)
            self.is_failing = True
