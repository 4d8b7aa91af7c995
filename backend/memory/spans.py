"""Times that a text names, as spans of seconds: "in May", "last week", "on 7 May 2023".

In the languages of `query_words.toml`. What is not understood is no span: its words still count as
terms.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from backend.memory.query_words import QueryWords, folded, words_for_times

Span = tuple[int, int]
"""From and to, in seconds since 1970; the end is not in it."""

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
"""As documents are dated."""

_NUMERIC = (
    re.compile(
        r"\b(?P<year>(?:19|20)\d\d)-(?P<number>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])\b"
    ),
    re.compile(
        r"\b(?P<day>0?[1-9]|[12]\d|3[01])\.(?P<number>0?[1-9]|1[0-2])\.(?P<year>(?:19|20)\d\d)\b"
    ),
)
_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}


def spans_in(text: str, now: datetime) -> list[Span]:
    """The times that a text names, seen from `now`, in the time zone of `now`.

    A month or a day without its year is the last one that has begun. "Last week" and "two months
    ago" are the span and half of it to either side: nobody means them to the day.
    """
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    rest = folded(text)
    spans: list[Span | None] = []
    for pattern in _NUMERIC:
        spans += [_dated(each.groupdict(), None, midnight) for each in pattern.finditer(rest)]
        rest = pattern.sub(" ", rest)
    for words in words_for_times(rest):
        for pattern in words.times:
            for match in pattern.finditer(rest):
                found = match.groupdict()
                if unit := found.get("unit"):
                    spans.append(_ago(words.units[unit], _number(found, words), midnight))
                else:
                    spans.append(_dated(found, words, midnight))
            rest = pattern.sub(" ", rest)  # the year of "May 2023" is no year by itself
        for match in words.spans.finditer(rest):
            spans.append(_named(match.lastgroup or "", midnight))
        rest = words.spans.sub(" ", rest)
    return list(dict.fromkeys(each for each in spans if each))


def _named(name: str, midnight: datetime) -> Span:
    """A span that has a word of its own, by the name of `QueryWords.spans`."""
    which, _, unit = name.partition("_")
    if which == "back":
        start = midnight - timedelta(days=int(unit))
        return _span(start, start + timedelta(days=1))
    days = _DAYS[unit]
    back = days if which == "this" else days * 3 // 2
    return _span(midnight - timedelta(days=back), midnight + timedelta(days=1))


def _number(found: dict[str, str | None], words: QueryWords) -> int:
    count = found.get("count")
    if not count:
        return 1
    return int(count) if count.isdecimal() else words.counts[count]


def _ago(unit: str, count: int, midnight: datetime) -> Span:
    days = _DAYS[unit]
    middle = midnight - timedelta(days=days * count)
    half = timedelta(days=max(1, days // 2))
    return _span(middle - half, middle + half)


def _dated(found: dict[str, str | None], words: QueryWords | None, now: datetime) -> Span | None:
    """A day, a month or a year; None for a day that is not in the calendar."""
    name, number, day, year = (found.get(key) for key in ("month", "number", "day", "year"))
    month = int(number) if number else words.months[name] if words and name else 0
    try:
        start = now.replace(year=int(year) if year else now.year, month=month or 1, day=1)
        if day:
            start = start.replace(day=int(day))
        if not year and start > now:
            start = start.replace(year=start.year - 1)
        if day:
            end = start + timedelta(days=1)
        elif month:
            end = (start + timedelta(days=31)).replace(day=1)
        else:
            end = start.replace(year=start.year + 1)
    except (ValueError, OverflowError):
        return None
    return _span(start, end)


def _span(start: datetime, end: datetime) -> Span:
    return int(start.timestamp()), int(end.timestamp())
