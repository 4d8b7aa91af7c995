"""How often helper processes are started that do not run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from backend.core.helpers import STABLE_SECONDS, HelperStarts
from tests.support.logs import Logged, caught_logs


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("backend.core.helpers.time", clock)
    return clock


@pytest.fixture
def logged() -> Iterator[Logged]:
    with caught_logs() as logged:
        yield logged


def starts_of(
    helper: HelperStarts, clock: Clock, *, seconds: int, becomes_ready: bool
) -> list[float]:
    """When a process is started that always fails, if it is wanted all the time."""
    starts: list[float] = []
    for _ in range(10 * seconds):
        if helper.is_due():
            starts.append(clock.now)
            if becomes_ready:
                helper.note_success()
            helper.note_failure()
        clock.now += 0.1
    return starts


@pytest.mark.parametrize("becomes_ready", [False, True])
def test_a_process_that_fails_is_started_at_most_five_times_a_minute_and_ever_more_rarely(
    clock: Clock, becomes_ready: bool
) -> None:
    starts = starts_of(HelperStarts("regex"), clock, seconds=600, becomes_ready=becomes_ready)

    assert max(sum(at <= other < at + 60 for other in starts) for at in starts) <= 5
    pauses = [after - before for before, after in pairwise(starts)]
    assert all(after >= before - 0.2 for before, after in pairwise(pauses))
    assert pauses[-1] < 61


def test_a_process_that_ran_for_long_is_started_again_at_once(clock: Clock) -> None:
    helper = HelperStarts("regex")
    for _ in range(5):
        helper.note_success()
        clock.now += STABLE_SECONDS
        helper.note_failure()

        assert helper.is_due()
        assert not helper.is_failing


def test_the_log_says_once_that_a_process_does_not_start_and_once_that_it_does(
    clock: Clock, logged: Logged
) -> None:
    helper = HelperStarts("regex")
    starts_of(helper, clock, seconds=120, becomes_ready=False)
    assert helper.is_failing
    helper.note_success()

    assert [line["helper"] for line in logged.lines("helper.not_started")] == ["regex"]
    assert [line["helper"] for line in logged.lines("helper.started")] == ["regex"]
