"""Read the date of a message, in each of the forms that chat programs write.

| Form | Zone |
|---|---|
| `June 19, 2023 2:20pm`, `Jun 19, 2023 14:20` | local time of the writer |
| `2023-06-19@14h20m05s`, `2023-6-19 @14h 20m 5s 123ms` | local time of the writer |
| ISO 8601, such as `2023-06-19T14:20:05.123Z` | as written, or local |
| seconds or milliseconds since 1970, as a number or as digits | UTC |

Pure and linear: a text longer than any of these forms is not looked at.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, tzinfo
from typing import Final

MAX_CHARACTERS: Final = 64
FIRST_YEAR: Final = 1970

FIRST_MILLISECONDS: Final = 5_000_000_000
"""Smaller numbers are seconds, up to the year 2128. As milliseconds it is February 27, 1970."""

_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_NOON: Final = 12

_NAMED_MONTH: Final = re.compile(
    r"([a-z]{3,9})\.? ([0-9]{1,2}), ([0-9]{4}),? ([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))? ?([ap]m)?",
    re.IGNORECASE,
)
_LETTERED: Final = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2}) ?@ ?([0-9]{1,2})h ?([0-9]{1,2})m ?([0-9]{1,2})s"
    r"(?: ?([0-9]{1,3})ms)?"
)
_NUMBER: Final = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,9})?")


def parse_send_date(value: object, *, zone: tzinfo) -> datetime | None:
    """Return a date in UTC, or None if the value is none of the known forms.

    `zone` is the zone of dates without one. Dates before 1970 are taken for errors.
    """
    try:
        found = _parse(value)
        if found is None or found.year < FIRST_YEAR:
            return None
        return (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _parse(value: object) -> datetime | None:
    if isinstance(value, str) and len(value) <= MAX_CHARACTERS:
        return _read_text(value.strip())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _read_number(value)
    return None


def _read_text(text: str) -> datetime | None:
    if _NUMBER.fullmatch(text):
        return _read_number(float(text))
    if match := _NAMED_MONTH.fullmatch(text):
        return _read_named_month(match)
    if match := _LETTERED.fullmatch(text):
        *parts, milliseconds = (int(part or 0) for part in match.groups())
        year, month, day, hour, minute, second = parts
        return datetime(year, month, day, hour, minute, second, milliseconds * 1_000)  # noqa: DTZ001
    return datetime.fromisoformat(text)


def _read_number(value: float) -> datetime:
    if not math.isfinite(value) or value < 0:
        raise ValueError
    return datetime.fromtimestamp(value if value < FIRST_MILLISECONDS else value / 1_000, UTC)


def _read_named_month(match: re.Match[str]) -> datetime | None:
    name, day, year, hour, minute, second, half = match.groups()
    months = [place for place, each in enumerate(_MONTHS, 1) if each.startswith(name.lower())]
    if not months:
        return None
    return datetime(  # noqa: DTZ001
        int(year), months[0], int(day), _read_hour(int(hour), half), int(minute), int(second or 0)
    )


def _read_hour(hour: int, half: str | None) -> int:
    """Return the hour of the day. `half` is am or pm; some programs write `14:20pm`."""
    if half is None or hour > _NOON:
        return hour
    return hour % _NOON + (_NOON if half.lower() == "pm" else 0)
