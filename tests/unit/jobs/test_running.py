"""The wait between two attempts."""

from __future__ import annotations

from datetime import timedelta

from backend.jobs.running import MAX_ATTEMPTS, draw_delay


def bounds(draw: float) -> list[float]:
    waits = [draw_delay(attempts, lambda: draw) for attempts in range(1, MAX_ATTEMPTS)]
    return [wait.total_seconds() for wait in waits if wait is not None]


def test_a_delay_is_drawn_up_to_a_bound_that_grows_from_5_s_to_1_h() -> None:
    assert bounds(0.0) == [0.0] * 7
    assert bounds(1.0) == [5, 15, 45, 135, 405, 1215, 3600]
    assert bounds(0.5) == [each / 2 for each in bounds(1.0)]


def test_after_the_eighth_attempt_there_is_no_further_one() -> None:
    assert draw_delay(7, lambda: 0.5) == timedelta(seconds=1800)
    assert draw_delay(8, lambda: 0.5) is None
