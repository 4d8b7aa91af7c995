"""Times that a text names, as spans of seconds: "in May", "last week", "on 7 May 2023".

English alone. What is not understood is no span: the words still count as terms.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

Span = tuple[int, int]
"""From and to, in seconds since 1970; the end is not in it."""

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
_NAMES = "|".join(f"{name}|{name[:3]}" for name in MONTHS if name != "May")
_MONTH = rf"(?P<month>{_NAMES}|sept|may)\.?"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_DAY = r"(?P<day>[12]\d|3[01]|0?[1-9])(?:st|nd|rd|th)?"
_DATES = tuple(
    re.compile(rf"\b{pattern}\b", re.IGNORECASE)
    for pattern in (
        r"(?P<year>(?:19|20)\d\d)-(?P<number>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])",
        rf"{_DAY}(?:\s+of)?\s+{_MONTH}(?:,?\s+{_YEAR})?",
        rf"{_MONTH}\s+{_DAY}(?:,?\s+{_YEAR})?",
        rf"{_MONTH},?\s+(?:of\s+)?{_YEAR}",
        rf"(?:in|of|during|since|last|early|late|mid)[\s-]+{_MONTH}",
        rf"(?:in|of|during|since)\s+{_YEAR}",
    )
)
_AGO = re.compile(
    r"\b(?P<count>\d{1,3}|an?|one|two|three|four|five|six|seven|a few)\s+"
    r"(?P<unit>day|week|month|year)s?\s+ago\b",
    re.IGNORECASE,
)
_LAST = re.compile(r"\b(?P<which>last|this|past)\s+(?P<unit>week|month|year)\b", re.IGNORECASE)
_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
_COUNTS = {
    "a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7,
    "a few": 3,
}  # fmt: skip


def spans_in(text: str, now: datetime) -> list[Span]:
    """The times that a text names, seen from `now`, in the time zone of `now`.

    A month or a day without its year is the last one that has begun. "Last week" and "two months
    ago" are the span and half of it to either side: nobody means them to the day.
    """
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    spans: list[Span] = []
    rest = text
    for pattern in _DATES:
        for match in pattern.finditer(rest):
            span = _dated(match.groupdict(), midnight)
            if span:
                spans.append(span)
        rest = pattern.sub(" ", rest)  # the year of "May 2023" is no year by itself
    for word, back in (("today", 0), ("yesterday", 1)):
        if re.search(rf"\b{word}\b", text, re.IGNORECASE):
            start = midnight - timedelta(days=back)
            spans.append(_span(start, start + timedelta(days=1)))
    for match in _LAST.finditer(text):
        days = _DAYS[match["unit"].lower()]
        back = 0 if match["which"].lower() == "this" else days * 3 // 2
        spans.append(_span(midnight - timedelta(days=back or days), midnight + timedelta(days=1)))
    for match in _AGO.finditer(text):
        count = match["count"].lower()
        days = _DAYS[match["unit"].lower()]
        middle = midnight - timedelta(days=days * (_COUNTS.get(count) or int(count)))
        half = timedelta(days=max(1, days // 2))
        spans.append(_span(middle - half, middle + half))
    return spans


def _dated(found: dict[str, str | None], now: datetime) -> Span | None:
    """A day, a month or a year; None for a day that is not in the calendar."""
    name, number, day, year = (found.get(key) for key in ("month", "number", "day", "year"))
    month = int(number) if number else 0
    if name:
        month = next(i for i, each in enumerate(MONTHS, 1) if each.startswith(name.title()[:3]))
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
