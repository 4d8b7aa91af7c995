"""Waiting times in the notations of providers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from backend.generation.failures.failures import find_wait, parse_wait


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30", 30),
        ("34.074824224s", 34.074824224),
        (" 5 ", 5),
        ("0", 0),
        (30, 30),
        (20.5, 20.5),
        ("6m0s", 360),
        ("1h2m", 3720),
        ("20ms", 0.02),
        ("1 minute 30 seconds", 90),
        ("2 hours", 7200),
        ("999999999", 86_400),
        ("-3", None),
        ("soon", None),
        ("5 messages", None),
        ("3 days", 86_400),
        ("", None),
        ("nan", None),
        (None, None),
        (True, None),
        ([], None),
        ("9" * 5_000, None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("2001-01-01T00:00:00Z", 0),
        ("1893456000000", 86_400),
    ],
)
def test_a_wait_is_read_in_every_notation(value: object, seconds: float | None) -> None:
    assert parse_wait(value) == seconds


@pytest.mark.parametrize("form", ["date", "seconds", "milliseconds", "time"])
def test_a_moment_is_counted_from_now(form: str) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    value = {
        "date": format_datetime(moment, usegmt=True),
        "seconds": str(round(moment.timestamp())),
        "milliseconds": str(round(moment.timestamp() * 1000)),
        "time": moment.isoformat(),
    }[form]

    assert parse_wait(value) == pytest.approx(3600, abs=60)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("please try again in 20s. visit the page", 20),
        ("please try again in 5m38.688s. need more tokens?", 338.688),
        ("please retry in 34.074824224s.", 34.074824224),
        ("please try again in 6ms.", 0.006),
        ("retry after 30 seconds", 30),
        ("please wait 20 seconds, then go on", 20),
        ("the limit resets in 2 hours", 7200),
        ("try again later", None),
        ("try again in a while", None),
        ("retry in 3 messages", None),
    ],
)
def test_a_wait_in_words_is_understood(text: str, seconds: float | None) -> None:
    assert find_wait({}, text=text) == seconds


def test_retry_after_comes_before_the_resets() -> None:
    assert find_wait({"retry-after": "7", "x-ratelimit-reset": "30"}) == 7


def test_the_longest_reset_of_a_limit_that_is_used_up_counts() -> None:
    headers = {
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "1h",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "30s",
        "ratelimit-reset": "10",
    }

    assert find_wait(headers) == 30
