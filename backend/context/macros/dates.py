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

_UNITS: Final = (
    ("year", timedelta(days=365)),
    ("month", timedelta(days=30)),
    ("day", timedelta(days=1)),
    ("hour", timedelta(hours=1)),
    ("minute", timedelta(minutes=1)),
)


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
    """The largest whole unit: `3 hours`, `1 day`; less than a minute is `a few seconds`."""
    for name, unit in _UNITS:
        if count := max(duration, timedelta(0)) // unit:
            return f"{count} {name}" if count == 1 else f"{count} {name}s"
    return "a few seconds"
