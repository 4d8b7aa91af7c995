"""Times that a text names, as spans of seconds: "in May", "last week", "on 7 May 2023".

In the languages of `query_words.toml`. What is not understood is no span: its words still count as
terms.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from backend.core.text_forms import normalize

A_FEW = 3

_UNSPACED = ("japanese", "chinese", "korean")
"""There are no spaces around words, or particles hang on them: they are found in any place."""

_IN_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryWords:
    """Those of one language.

    Attributes:
        says_nothing: Find what no answer has: words about the asking; where characters are terms,
            words of times as well, whose characters many other words have.
        signs: Words without one of which no time is named, but for years.
        months: 1 to 12 by name.
        units: "day", "week", "month" or "year" by name.
        counts: Numbers by name.
        spans: Finds words for a span by themselves; the group that matched says which one:
            `back_1` is yesterday, `last_week` last week, `this_year` this year.
        times: Find days, months and years, and how many units ago something was.
    """

    says_nothing: tuple[re.Pattern[str], ...]
    signs: frozenset[str]
    months: Mapping[str, int]
    units: Mapping[str, str]
    counts: Mapping[str, int]
    spans: re.Pattern[str]
    times: tuple[re.Pattern[str], ...]


@cache
def _file() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("query_words.toml").read_text(encoding="utf-8"))


def languages() -> Collection[str]:
    """Those that there are words of, by Snowball's names."""
    return _file().keys()


@cache
def words_of(language: str) -> QueryWords:
    """The words of a language."""
    entry = _file()[language]
    months = {form: i for i, each in enumerate(entry["months"], 1) for form in each.split("|")}
    units = {form: u for u in ("day", "week", "month", "year") for form in entry[u].split("|")}
    counts = {form: i for i, each in enumerate(entry["counts"][:10], 1) for form in each.split("|")}
    counts |= dict.fromkeys(entry["counts"][10].split("|"), A_FEW)
    spans = {f"back_{days}": each for days, each in enumerate(entry["back"])}
    for which in ("last", "this"):
        spans |= {f"{which}_{unit}": each for unit, each in entry[which].items()}
    names = {
        "{day}": r"(?P<day>[12]\d|3[01]|0?[1-9])",
        "{year}": r"(?P<year>(?:19|20)\d\d)",
        "{month}": f"(?P<month>{_either(months)})",
        "{unit}": f"(?P<unit>{_either(units)})",
        "{count}": rf"(?P<count>\d{{1,3}}|{_either(counts)})",
    }

    def pattern(form: str) -> re.Pattern[str]:
        for name, meaning in names.items():
            form = form.replace(name, meaning)
        end = "" if language in _UNSPACED else r"\b"
        return re.compile(rf"(?<!\d){end}(?:{form}){end}")

    single = [form for each in spans.values() for form in each.split("|")]
    asking = pattern(_either(entry["asking"].split("|")))
    by_themselves = pattern(
        "|".join(f"(?P<{name}>{_either(each.split('|'))})" for name, each in spans.items())
    )
    times = tuple(map(pattern, [*entry["dates"], *entry["ago"]]))
    return QueryWords(
        says_nothing=(asking, *times, by_themselves) if language in _UNSPACED else (asking,),
        signs=frozenset({*months, *units, *(re.split(r"\W", form)[-1] for form in single)}),
        months=months,
        units=units,
        counts=counts,
        spans=by_themselves,
        times=times,
    )


def folded(text: str) -> str:
    """A text as the words here are written: small letters, straight `'`, single spaces."""
    return " ".join(normalize("NFKC", text).casefold().replace("\u2019", "'").split())


def words_for_times(text: str) -> list[QueryWords]:
    """The words of each language in which a folded text may name a time."""
    words = frozenset(re.findall(r"\w+", text))
    has_year = _YEAR.search(text) is not None
    spaced = (words_of(each) for each in languages() if each not in _UNSPACED)
    found = [each for each in spaced if has_year or not words.isdisjoint(each.signs)]
    return found + _unspaced(text)


def words_for(text: str, likely: Iterable[str]) -> list[QueryWords]:
    """The words of these languages, as far as there are any, and of those of a text's letters."""
    return [words_of(each) for each in likely if each in languages()] + _unspaced(text)


def asks_for_new(text: str) -> bool:
    """Whether a folded text asks for what is new, in any language."""
    return _in_any_language("recent").search(text) is not None


def strip_request(text: str) -> str:
    """Return a folded text without words like "tell me about", in any language."""
    return _in_any_language("request").sub(" ", text)


@cache
def _in_any_language(kind: str) -> re.Pattern[str]:
    spaced = "|".join(entry[kind] for name, entry in _file().items() if name not in _UNSPACED)
    unspaced = "|".join(_file()[name][kind] for name in _UNSPACED)
    return re.compile(rf"\b(?:{_either(spaced.split('|'))})\b|{_either(unspaced.split('|'))}")


def _unspaced(text: str) -> list[QueryWords]:
    if not _IN_UNSPACED.search(text):
        return []
    return [words_of(each) for each in _UNSPACED if each in languages()]


def _either(forms: Iterable[str]) -> str:
    """Any of these, the longest that fits."""
    return "|".join(re.escape(form) for form in sorted(forms, key=lambda form: (-len(form), form)))


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
