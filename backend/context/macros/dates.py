"""Dates, times and durations in words, in English whatever the machine's locale.

`strftime` is not used: its names of days and months are those of the process's locale.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final

_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_NOON: Final = 12

_TOKENS: Final[dict[str, Callable[[datetime], str]]] = {
    "YYYY": lambda moment: f"{moment.year:04}",
    "YY": lambda moment: f"{moment.year % 100:02}",
    "MMMM": lambda moment: _MONTHS[moment.month - 1],
    "MMM": lambda moment: _MONTHS[moment.month - 1][:3],
    "MM": lambda moment: f"{moment.month:02}",
    "M": lambda moment: str(moment.month),
    "DD": lambda moment: f"{moment.day:02}",
    "D": lambda moment: str(moment.day),
    "dddd": lambda moment: _DAYS[moment.weekday()],
    "ddd": lambda moment: _DAYS[moment.weekday()][:3],
    "HH": lambda moment: f"{moment.hour:02}",
    "H": lambda moment: str(moment.hour),
    "hh": lambda moment: f"{moment.hour % _NOON or _NOON:02}",
    "h": lambda moment: str(moment.hour % _NOON or _NOON),
    "mm": lambda moment: f"{moment.minute:02}",
    "m": lambda moment: str(moment.minute),
    "ss": lambda moment: f"{moment.second:02}",
    "s": lambda moment: str(moment.second),
    "A": lambda moment: "AM" if moment.hour < _NOON else "PM",
    "a": lambda moment: "am" if moment.hour < _NOON else "pm",
}

# Longest token first, as they stand above; text in square brackets is no token.
_FORMAT: Final = re.compile(r"\[([^\[\]]*)\]|" + "|".join(_TOKENS))

_UTC_OFFSET: Final = re.compile(
    r"(?:UTC|GMT)?\s*(?:([+-])\s*(\d{1,2})(?::?([0-5]\d))?)?", re.IGNORECASE | re.ASCII
)
_WIDEST_OFFSET: Final = timedelta(hours=14)  # Kiribati's; no zone is further from UTC

_FEW_SECONDS: Final = 44.5
_YEAR: Final = 365.25 * 86_400
_UNITS: Final = (
    ("minute", 60, 45),
    ("hour", 3_600, 22),
    ("day", 86_400, 26),
    ("month", _YEAR / 12, 11),
    ("year", _YEAR, 2),
)
"""Each unit, its seconds, and the number of it from which the next one is told."""


def format_moment(moment: datetime, pattern: str) -> str:
    """Write a date and time by a pattern of moment.js's tokens, those of `_TOKENS`.

    Text in `[square brackets]` stands for itself, and so does whatever is no token.
    Source: https://momentjs.com/docs/#/displaying/format/
    """
    return _FORMAT.sub(
        lambda found: found[0][1:-1] if found[0].startswith("[") else _TOKENS[found[0]](moment),
        pattern,
    )


def parse_utc_offset(text: str) -> tzinfo | None:
    """Read `UTC`, `UTC+2`, `+2`, `UTC-3:30` or `UTC+0530`; None for anything else."""
    found = _UTC_OFFSET.fullmatch(text.strip())
    if found is None or not found[0]:
        return None
    sign, hours, minutes = found.groups()
    if sign is None:
        return UTC
    offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
    return timezone(-offset if sign == "-" else offset) if offset <= _WIDEST_OFFSET else None


def describe_duration(duration: timedelta) -> str:
    """About how long it is: `a few seconds`, `3 hours`, `a day`.

    The limits are those of moment.js. Source: https://momentjs.com/docs/#/durations/humanize/
    """
    seconds = max(duration, timedelta(0)).total_seconds()
    if seconds < _FEW_SECONDS:
        return "a few seconds"
    for name, unit, below in _UNITS:
        count = int(seconds / unit + 0.5)
        if count <= 1:
            return f"{'an' if name == 'hour' else 'a'} {name}"
        if count < below:
            return f"{count} {name}s"
    return f"{int(seconds / _YEAR + 0.5)} years"


def describe_difference(first: str, second: str) -> str | None:
    """Where the first moment is, seen from the second: `3 hours ago`, `in 2 days`.

    Both are dates as in ISO 8601, with a time or without. None where one of them is none.
    """
    try:
        left, right = (datetime.fromisoformat(each.strip()) for each in (first, second))
    except ValueError:
        return None
    if (left.tzinfo is None) != (right.tzinfo is None):
        left, right = (each if each.tzinfo else each.replace(tzinfo=UTC) for each in (left, right))
    words = describe_duration(abs(left - right))
    return f"in {words}" if left > right else f"{words} ago"
