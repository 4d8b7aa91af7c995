from __future__ import annotations

import pytest

from backend.quotas.limits import RateLimit


class Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_minutes_worth_passes_at_once_and_the_next_one_waits(clock: Clock) -> None:
    rate = RateLimit(60, clock=clock)
    assert [rate.take("ada") for _ in range(60)] == [0.0] * 60
    assert rate.take("ada") == pytest.approx(1.0)
    assert rate.take("ben") == 0.0
    assert (rate.used("ada"), rate.used("ben")) == (60, 1)


def test_requests_come_back_evenly_and_never_more_than_a_minutes_worth(clock: Clock) -> None:
    rate = RateLimit(60, clock=clock)
    for _ in range(60):
        rate.take("ada")
    clock.at += 2.5
    assert [rate.take("ada") for _ in range(3)] == [0.0, 0.0, pytest.approx(0.5)]
    clock.at += 3600
    assert rate.used("ada") == 0
    assert [rate.take("ada") for _ in range(60)] == [0.0] * 60
    assert rate.take("ada") > 0


def test_a_refused_request_takes_nothing(clock: Clock) -> None:
    rate = RateLimit(2, clock=clock)
    waits = [rate.take("ada") for _ in range(50)]
    assert waits[2:] == [pytest.approx(30.0)] * 48
    clock.at += 30
    assert rate.take("ada") == 0.0


def test_no_limit_lets_everything_through_and_remembers_nothing(clock: Clock) -> None:
    rate = RateLimit(0, clock=clock)
    assert [rate.take("ada") for _ in range(1000)] == [0.0] * 1000
    assert (len(rate), rate.used("ada"), rate.seconds_until_full("ada")) == (0, 0, 0.0)


def test_who_was_quiet_for_a_minute_is_forgotten(clock: Clock) -> None:
    rate = RateLimit(60, clock=clock)
    for number in range(1000):
        rate.take(number)
    clock.at += 61
    rate.take("ada")
    assert len(rate) == 1
