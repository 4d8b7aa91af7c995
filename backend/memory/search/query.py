"""Parse a query, and plan the queries for the index. Pure.

`parse_query` finds names, questions and times in a text. Times are expressions such as "in May",
"last week" or "on 7 May 2023", in the languages of `query_words.toml`. Other expressions are only
terms.

docs/explanation/quality.md has the effect of each step. `search` describes the sequence of a
search.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import UUID

from backend.core.text_forms import normalize
from backend.memory.index.protocol import (
    Floats,
    Kind,
    Query,
    Scope,
    ScopePart,
    Sparse,
    VectorName,
)
from backend.memory.search.terms import (
    COMMON_WORDS,
    DEFAULT_LANGUAGE,
    blind_terms,
    detect_languages,
    query_terms,
)
from backend.vault.blinding import Blinder

FEW_UNITS = 3

_UNSPACED = ("japanese", "chinese", "korean")
"""Languages without spaces around words, or with particles attached. Words match anywhere."""

_IN_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryWords:
    """The words of one language.

    Attributes:
        says_nothing: Match request words, which answers do not contain. For languages without
            spaces they include words of times, whose characters are common.
        signs: Words of which each time expression contains one, except years.
        months: 1 to 12 by name.
        units: "day", "week", "month" or "year" by name.
        counts: Numbers by name.
        spans: Matches words for a span. The name of the matching group identifies it: `back_1` is
            yesterday, `last_week` last week, `this_year` this year.
        times: Match days, months and years, and expressions such as "two weeks ago".
    """

    says_nothing: tuple[re.Pattern[str], ...]
    signs: frozenset[str]
    months: Mapping[str, int]
    units: Mapping[str, str]
    counts: Mapping[str, int]
    spans: re.Pattern[str]
    times: tuple[re.Pattern[str], ...]


@cache
def _load_file() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("query_words.toml").read_text(encoding="utf-8"))


def list_languages() -> Collection[str]:
    """Return the languages in the file, by Snowball's names."""
    return _load_file().keys()


@cache
def load_words(language: str) -> QueryWords:
    entry = _load_file()[language]
    months = {form: i for i, each in enumerate(entry["months"], 1) for form in each.split("|")}
    units = {form: u for u in ("day", "week", "month", "year") for form in entry[u].split("|")}
    counts = {form: i for i, each in enumerate(entry["counts"][:10], 1) for form in each.split("|")}
    counts |= dict.fromkeys(entry["counts"][10].split("|"), FEW_UNITS)
    spans = {f"back_{days}": each for days, each in enumerate(entry["back"])}
    for which in ("last", "this"):
        spans |= {f"{which}_{unit}": each for unit, each in entry[which].items()}
    names = {
        "{day}": r"(?P<day>[12]\d|3[01]|0?[1-9])",
        "{year}": r"(?P<year>(?:19|20)\d\d)",
        "{month}": f"(?P<month>{_join_forms(months)})",
        "{unit}": f"(?P<unit>{_join_forms(units)})",
        "{count}": rf"(?P<count>\d{{1,3}}|{_join_forms(counts)})",
    }

    def pattern(form: str) -> re.Pattern[str]:
        for name, meaning in names.items():
            form = form.replace(name, meaning)
        end = "" if language in _UNSPACED else r"\b"
        return re.compile(rf"(?<!\d){end}(?:{form}){end}")

    single = [form for each in spans.values() for form in each.split("|")]
    asking = pattern(_join_forms(entry["asking"].split("|")))
    by_themselves = pattern(
        "|".join(f"(?P<{name}>{_join_forms(each.split('|'))})" for name, each in spans.items())
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


def fold_text(text: str) -> str:
    """Normalize a text like the words in the file: lower case, straight `'`, single spaces."""
    return " ".join(normalize("NFKC", text).casefold().replace("\u2019", "'").split())


def list_time_words(text: str) -> list[QueryWords]:
    """Return the words of each language in which a normalized text may name a time."""
    words = frozenset(re.findall(r"\w+", text))
    has_year = _YEAR.search(text) is not None
    spaced = (load_words(each) for each in list_languages() if each not in _UNSPACED)
    found = [each for each in spaced if has_year or not words.isdisjoint(each.signs)]
    return found + _list_unspaced_words(text)


def list_words(text: str, likely: Iterable[str]) -> list[QueryWords]:
    """Return the words of the likely languages, and of those with a script of the text."""
    return [load_words(each) for each in likely if each in list_languages()] + _list_unspaced_words(
        text
    )


def asks_for_new(text: str) -> bool:
    """True if a normalized text asks for recent things, in any language."""
    return _compile_any_language("recent").search(text) is not None


def strip_request(text: str) -> str:
    """Remove request words from a normalized text, in any language."""
    return _compile_any_language("request").sub(" ", text)


@cache
def _compile_any_language(kind: str) -> re.Pattern[str]:
    spaced = "|".join(entry[kind] for name, entry in _load_file().items() if name not in _UNSPACED)
    unspaced = "|".join(_load_file()[name][kind] for name in _UNSPACED)
    return re.compile(
        rf"\b(?:{_join_forms(spaced.split('|'))})\b|{_join_forms(unspaced.split('|'))}"
    )


def _list_unspaced_words(text: str) -> list[QueryWords]:
    if not _IN_UNSPACED.search(text):
        return []
    return [load_words(each) for each in _UNSPACED if each in list_languages()]


def _join_forms(forms: Iterable[str]) -> str:
    return "|".join(re.escape(form) for form in sorted(forms, key=lambda form: (-len(form), form)))


Span = tuple[int, int]

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip

_NUMERIC = (
    re.compile(
        r"\b(?P<year>(?:19|20)\d\d)-(?P<number>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])\b"
    ),
    re.compile(
        r"\b(?P<day>0?[1-9]|[12]\d|3[01])\.(?P<number>0?[1-9]|1[0-2])\.(?P<year>(?:19|20)\d\d)\b"
    ),
)
_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}


def find_spans(text: str, now: datetime) -> list[Span]:
    """Return the times that a text names, relative to `now` and in its time zone.

    A month or a day without a year is the last one that has begun. "Last week" and "two months ago"
    are extended by half of the span on either side, because they are not exact to the day.
    """
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    rest = fold_text(text)
    spans: list[Span | None] = []
    for pattern in _NUMERIC:
        spans += [
            _resolve_date(each.groupdict(), None, midnight) for each in pattern.finditer(rest)
        ]
        rest = pattern.sub(" ", rest)
    for words in list_time_words(rest):
        for pattern in words.times:
            for match in pattern.finditer(rest):
                found = match.groupdict()
                if unit := found.get("unit"):
                    spans.append(
                        _resolve_span_ago(words.units[unit], _parse_count(found, words), midnight)
                    )
                else:
                    spans.append(_resolve_date(found, words, midnight))
            rest = pattern.sub(" ", rest)  # so that "May 2023" is not also the year 2023
        for match in words.spans.finditer(rest):
            spans.append(_resolve_named_span(match.lastgroup or "", midnight))
        rest = words.spans.sub(" ", rest)
    return list(dict.fromkeys(each for each in spans if each))


def _resolve_named_span(name: str, midnight: datetime) -> Span:
    which, _, unit = name.partition("_")
    if which == "back":
        start = midnight - timedelta(days=int(unit))
        return _build_span(start, start + timedelta(days=1))
    days = _DAYS[unit]
    back = days if which == "this" else days * 3 // 2
    return _build_span(midnight - timedelta(days=back), midnight + timedelta(days=1))


def _parse_count(found: dict[str, str | None], words: QueryWords) -> int:
    count = found.get("count")
    if not count:
        return 1
    return int(count) if count.isdecimal() else words.counts[count]


def _resolve_span_ago(unit: str, count: int, midnight: datetime) -> Span:
    days = _DAYS[unit]
    middle = midnight - timedelta(days=days * count)
    half = timedelta(days=max(1, days // 2))
    return _build_span(middle - half, middle + half)


def _resolve_date(
    found: dict[str, str | None], words: QueryWords | None, now: datetime
) -> Span | None:
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
    return _build_span(start, end)


def _build_span(start: datetime, end: datetime) -> Span:
    return int(start.timestamp()), int(end.timestamp())


Signal = Literal[
    "dense",
    "sparse",
    "dense_window",
    "sparse_window",
]
"""A way in which a search finds points. Each signal is one query."""

HITS_PER_SIGNAL = 100

OTHER_HITS_PER_SIGNAL = 40
"""Hits of each signal among other kinds. Lower ranks are never used."""


class HitLimits(NamedTuple):
    """The number of hits of each signal, among messages and among other kinds."""

    messages: int = HITS_PER_SIGNAL
    others: int = OTHER_HITS_PER_SIGNAL


USUAL_LIMITS = HitLimits()

_VECTORS: Mapping[Signal, VectorName] = {
    "dense": "dense",
    "sparse": "sparse",
    "dense_window": "dense_window",
    "sparse_window": "sparse_window",
}

CONTEXT_WEIGHT = 0.3
"""Weight of a term of the last exchange, relative to one of the query."""

CONTEXT_TERMS = 24
"""Terms of the last exchange in a query, the longest ones."""

QUESTION_CHARACTERS = 4_000
"""Characters of the query. Of a longer text, the beginning and the end are used, because the cost
of a search grows with the number of terms."""

CONTEXT_CHARACTERS = 8_000
"""Characters of the last exchange that are used."""

TIME_CHARACTERS = 1_000
"""Characters of the query that are searched for times."""

_MIN_NAME_PART = 3
"""Minimum letters of a part of a name, such as `Elizabeth`, that matches the whole name."""

MAX_SENTENCES = 40
"""Sentences that are searched for questions, the last ones."""

MAX_QUESTIONS = 4
"""Questions that are compared separately, the last ones."""

_SENTENCE_END = re.compile(r"([.!?…。！？\n])")  # noqa: RUF001  # Chinese marks
"""Splits a text into sentences and the marks between them."""

_COMMON = COMMON_WORDS | {"may", "mark"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedQuery:
    """The parsed text of a query.

    Attributes:
        meaning: The text to embed, without the names of the cast. They are in half of all messages
            and would dominate the vector.
        terms: The text whose terms are searched in messages with full weight, without these names.
        lore_terms: The same text for other kinds, with the names.
        questions: The last sentences that are questions, without names.
        context: A text whose terms have less weight.
        names: The members of the cast that it names, in the order of the text.
        spans: The times that it names.
        wants_recent: True if it asks for recent things.
    """

    meaning: str
    terms: str
    lore_terms: str
    questions: Sequence[str] = ()
    context: str = ""
    names: Sequence[str] = ()
    spans: Sequence[Span] = ()
    wants_recent: bool = False


def parse_query(
    text: str,
    *,
    now: datetime,
    context: str = "",
    cast: Sequence[str] = (),
) -> ParsedQuery:
    """Parse the text of a query.

    `context` is the last exchange before it. `cast` are the names of the speakers in the searched
    chats. `now` is in the user's time zone, for expressions such as "yesterday".
    """
    text = _take_ends(text, QUESTION_CHARACTERS)
    context = _take_ends(context, CONTEXT_CHARACTERS)
    places = {name: _find_name(name, text) for name in cast}
    named = sorted((name for name in places if places[name] >= 0), key=lambda name: places[name])
    bare = remove_names(text, named)
    return ParsedQuery(
        meaning=bare,
        terms=_remove_request_words(bare),
        lore_terms=_remove_request_words(text),
        questions=[_remove_request_words(each) for each in _find_questions(bare)],
        context=remove_names(context, cast) if context else "",
        names=named,
        spans=find_spans(_take_ends(text, TIME_CHARACTERS), now),
        wants_recent=asks_for_new(fold_text(_take_ends(text, TIME_CHARACTERS))),
    )


def plan_queries(
    parsed: ParsedQuery,
    *,
    owner_id: UUID,
    parts: Sequence[ScopePart],
    kinds: Collection[Kind],
    dense: Floats | None,
    blinder: Blinder,
    limits: HitLimits = USUAL_LIMITS,
    audience: Sequence[str] = (),
) -> list[tuple[Signal, Query]]:
    """Plan the queries of a search, which are one batch.

    Messages have their own queries. They are so many that their hits would displace all others.

    `dense` is the blinded vector of `parsed.meaning`, shape (d,); None without an embedder. If
    `kinds` is empty, all kinds are searched. With an `audience`, only points with one of its words
    are found.

    Returns:
        At most six queries with their signals.
    """
    wanted = set(kinds) or {"message", "lore", "event", "campaign"}
    others = sorted(wanted - {"message"})
    queries: list[tuple[Signal, Query]] = []

    def add(signal: Signal, near: Floats | Sparse, kinds: Sequence[Kind], limit: int) -> None:
        there = [part for part in parts if not part.kinds or set(part.kinds) & set(kinds)]
        if not there:
            return
        scope = Scope(owner_id=owner_id, parts=there, kinds=kinds, audience=audience)
        queries.append(
            (signal, Query(vector=_VECTORS[signal], near=near, scope=scope, limit=limit))
        )

    if "message" in wanted:
        sparse = blind_terms(weigh_terms(parsed, parsed.terms), blinder)
        if dense is not None:
            add("dense", dense, ["message"], limits.messages)
            add("dense_window", dense, ["message"], limits.messages)
        add("sparse", sparse, ["message"], limits.messages)
        add("sparse_window", sparse, ["message"], limits.messages)
    if others:
        sparse = blind_terms(weigh_terms(parsed, parsed.lore_terms), blinder)
        if dense is not None:
            add("dense", dense, others, limits.others)
        add("sparse", sparse, others, limits.others)
    return queries


def weigh_terms(parsed: ParsedQuery, text: str) -> dict[str, float]:
    """Return the terms of `text` with full weight, and those of the context with less weight."""
    context = query_terms(parsed.context)
    # Long words are usually rare. The number is limited because each term costs time.
    rarest = sorted(context, key=lambda term: (-len(term), term))[:CONTEXT_TERMS]
    weights = {term: context[term] * CONTEXT_WEIGHT for term in rarest}
    weights |= query_terms(text)
    return weights


def remove_names(text: str, names: Iterable[str]) -> str:
    """Remove names (and their 's) from a text, unless nothing else would remain."""
    bare = text
    for name in names:
        bare = compile_name(name).sub(" ", bare)
    return _tidy_text(bare, text)


def _tidy_text(bare: str, text: str) -> str:
    bare = re.sub(" (?=[?!.,;:])", "", " ".join(bare.split()))
    return bare if re.search(r"\w", bare) else text


def _take_ends(text: str, most: int) -> str:
    """Return the text; if it is too long, its beginning and its end."""
    return text if len(text) <= most else f"{text[: most // 2]}\n{text[-most // 2 :]}"


def _remove_request_words(text: str) -> str:
    """Remove words that no answer contains, unless nothing else would remain."""
    bare = fold_text(text)
    for words in list_words(bare, detect_languages(text) or [DEFAULT_LANGUAGE]):
        for pattern in words.says_nothing:
            bare = pattern.sub(" ", bare)
    return _tidy_text(bare, text)


def _find_questions(text: str) -> list[str]:
    """Return the last sentences that are questions or requests, normalized, without request words.

    O(n) for n characters.
    """
    parts = [*_SENTENCE_END.split(text), ""]
    sentences = [each for each in zip(parts[::2], parts[1::2], strict=True) if each[0].strip()]
    asked: list[str] = []
    for said, end in sentences[-MAX_SENTENCES:]:
        whole = fold_text(said)
        bare = strip_request(whole)
        if end in {"?", "？"} or bare != whole:  # noqa: RUF001  # the Chinese question mark
            asked.append(bare)
    return asked[-MAX_QUESTIONS:]


def _find_name(name: str, text: str) -> int:
    found = compile_name(name).search(text) if name.strip() else None
    return found.start() if found else -1


def compile_name(name: str) -> re.Pattern[str]:
    """Return a pattern that matches a name, or a long enough part of it, as a whole word.

    It ignores case, except for names that are common words (Will). In scripts without spaces, it
    matches anywhere.
    """
    whole = name.strip()
    parts = [part for part in whole.split() if len(part) >= _MIN_NAME_PART]
    forms = sorted({whole, *parts}, key=lambda form: (-len(form), form))
    either = "|".join(
        re.escape(form) if form.casefold() in _COMMON else f"(?i:{re.escape(form)})"
        for form in forms
    )
    if whole and not _HAS_NO_SPACES.search(whole):
        either = rf"\b(?:{either})(?:['’]s)?\b"  # noqa: RUF001  # the typographic apostrophe
    return re.compile(either)


_HAS_NO_SPACES = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
