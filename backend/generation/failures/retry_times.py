"""Waiting times that providers ask for, in any of their notations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_WAIT_SECONDS = 86_400.0

_FIRST_MOMENT = 1_000_000_000
"""A plain number from this on is a moment in seconds since 1970, not a duration."""

_FIRST_MOMENT_MS = 100_000_000_000
"""The same in milliseconds."""

_NUMBER = re.compile(r"\d{1,14}(?:\.\d{1,9})?")
_DURATION = re.compile(
    r"(?:(\d{1,9})\s?d(?:ays?)?(?![a-z]))?,?\s?(?:(\d{1,9})\s?h(?:(?:ou)?rs?)?(?![a-z]))?,?\s?"
    r"(?:(\d{1,9})\s?m(?:in(?:ute)?s?)?(?![a-z]))?,?\s?"
    r"(?:(\d{1,9}(?:\.\d{1,9})?)\s?(?:s(?:ec(?:ond)?s?)?|(ms|milliseconds?))(?![a-z]))?",
    re.IGNORECASE,
)
"""Days, hours, minutes and seconds: `6m0s`, `1h2m`, `20ms`, `34.07s`, `1 minute 30 seconds`."""

_IN_WORDS = re.compile(
    r"(?:try again|retry|available again|resets?|wait)(?: after| in| for)?[: ]{1,3}"
    r"(?:about |approximately |up to )?(\d[^.,;)]{0,40}(?:\.\d{1,9}[^.,;)]{0,20})?)",
    re.IGNORECASE,
)

_RETRY_AFTER = ("retry-after-ms", "retry-after", "x-retry-after")
_RESETS = (
    *("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens", "x-ratelimit-reset"),
    *("ratelimit-reset", "anthropic-ratelimit-requests-reset", "anthropic-ratelimit-tokens-reset"),
    *("anthropic-ratelimit-input-tokens-reset", "anthropic-ratelimit-output-tokens-reset"),
)


def find_wait(
    headers: Mapping[str, str], waits: Iterable[object] = (), text: str = ""
) -> float | None:
    """Return the seconds to wait, from 0 to a day; None if nothing says so.

    Args:
        headers: Headers of the answer; names in lower case. The reset of a rate limit counts if
            that limit is used up, and if nothing else says how long to wait.
        waits: Values in the body, such as Google's `retryDelay`. They come first, because they are
            the most exact.
        text: The provider's sentences in lower case, such as "please try again in 20s".
    """
    exact = [wait_seconds(value) for value in waits]
    exact += [wait_seconds(headers.get(name), name) for name in _RETRY_AFTER]
    exact += map(wait_seconds, (match[1] for match in _IN_WORDS.finditer(text)))
    if (found := next((wait for wait in exact if wait is not None), None)) is not None:
        return found
    return max(_resets(headers), default=None)


def wait_seconds(value: object, name: str = "") -> float | None:
    """Return a waiting time in seconds, from 0 to a day; None if the value is not a time.

    Takes `30`, `34.07s`, `6m0s`, an HTTP date, an RFC 3339 time, and seconds or milliseconds since
    1970. `name` is the header that the value comes from: those that end in `-ms` hold milliseconds.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip()[:60]
    if _NUMBER.fullmatch(text):
        seconds = float(text) / 1000 if name.endswith("-ms") else _from_number(float(text))
    elif (parsed := _from_duration(text)) is not None:
        seconds = parsed
    elif (moment := _from_date(text)) is not None:
        seconds = (moment - datetime.now(UTC)).total_seconds()
    else:
        return None
    return min(max(seconds, 0.0), MAX_WAIT_SECONDS)


def _from_number(number: float) -> float:
    if number < _FIRST_MOMENT:
        return number
    moment = number / 1000 if number >= _FIRST_MOMENT_MS else number
    return moment - datetime.now(UTC).timestamp()


def _from_duration(text: str) -> float | None:
    match = _DURATION.match(text)
    if match is None or not match[0].strip():
        return None
    days, hours, minutes, seconds, milliseconds = match.groups()
    last = float(seconds or 0) / (1000 if milliseconds else 1)
    return int(days or 0) * 86_400 + int(hours or 0) * 3600 + int(minutes or 0) * 60 + last


def _from_date(text: str) -> datetime | None:
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = parse(text)
        except ValueError:
            continue
        if moment.tzinfo is not None:
            return moment
    return None


def _resets(headers: Mapping[str, str]) -> Iterator[float]:
    """The waits until the rate limits that are used up are reset."""
    for name in _RESETS:
        if headers.get(name.replace("reset", "remaining"), "0").strip() in {"0", "0.0"}:
            seconds = wait_seconds(headers.get(name))
            if seconds is not None:
                yield seconds
