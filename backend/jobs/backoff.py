"""How long a job that failed waits before it is tried again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

MAX_ATTEMPTS = 8
MAX_LEASES_LOST = 3
"""Workers in a row that a job may bring down. Each costs everybody whom that process served."""
FIRST_DELAY = 5.0
FACTOR = 3.0
LONGEST_DELAY = 3600.0


def delay_after(attempts: int, draw: Callable[[], float]) -> timedelta | None:
    """The wait after that many failed attempts; None when there is to be no further one.

    Full jitter: anywhere from nothing to a bound that grows from 5 s to 1 h, so that jobs that
    failed together do not come back together.

    Args:
        attempts: Failed attempts so far, from 1 on.
        draw: Gives numbers from [0, 1).
    """
    if attempts >= MAX_ATTEMPTS:
        return None
    bound = min(FIRST_DELAY * FACTOR ** (attempts - 1), LONGEST_DELAY)
    return timedelta(seconds=draw() * bound)
