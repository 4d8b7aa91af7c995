"""Helper functions and the cache of decrypted values."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from uuid import uuid4

import pytest

from backend.core.helpers import STABLE_SECONDS, HelperStarts
from backend.core.plain_cache import PlainCache
from tests.support.logs import Logged, caught_logs


class Clock:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    monotonic = __call__


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
    """The times at which a process that always fails is started if it is always needed."""
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


USER, OTHER = uuid4(), uuid4()
FIRST, SECOND, THIRD = uuid4(), uuid4(), uuid4()


def cache(most: int = 10, clock: Clock | None = None) -> PlainCache[str]:
    return PlainCache(most=most, seconds=600, clock=clock or Clock())


def test_a_cached_value_belongs_to_one_user() -> None:
    kept = cache()
    kept.put(USER, FIRST, "a", size=1)
    assert kept.get(USER, FIRST) == "a"
    assert kept.get(OTHER, FIRST) is None
    assert kept.get(USER, SECOND) is None


def test_a_later_value_replaces_an_earlier_one() -> None:
    kept = cache()
    kept.put(USER, FIRST, "a", size=3)
    kept.put(USER, FIRST, "b", size=2)
    assert kept.get(USER, FIRST) == "b"
    assert kept.size == 2


def test_an_unused_value_is_dropped_after_a_while() -> None:
    clock = Clock()
    kept = cache(clock=clock)
    kept.put(USER, FIRST, "a", size=1)
    for _ in range(2):
        clock.now += 500
        assert kept.get(USER, FIRST) == "a"
    clock.now += 601
    kept.sweep()
    assert kept.size == 0


def test_the_least_recently_used_value_is_evicted_at_the_limit() -> None:
    kept = cache(most=5)
    kept.put(USER, FIRST, "a", size=2)
    kept.put(USER, SECOND, "b", size=2)
    kept.get(USER, FIRST)
    kept.put(USER, THIRD, "c", size=2)
    assert kept.get(USER, SECOND) is None
    assert kept.get(USER, FIRST) == "a"
    kept.put(USER, uuid4(), "too large", size=6)
    assert kept.size == 4


def test_a_user_can_be_forgotten() -> None:
    kept = cache()
    kept.put(USER, FIRST, "a", size=0)
    kept.put(OTHER, SECOND, "b", size=0)
    kept.forget(USER)
    assert kept.get(USER, FIRST) is None
    assert kept.get(OTHER, SECOND) == "b"
    assert kept.size == 1
