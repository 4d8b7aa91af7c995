"""One place for one evidence: a message, the event made from it, or the fact that says the same.

Rows are compared if one was made from the other, or both from the same message. This alone does not
mean that they say the same: a long message says more than its event. So their words decide: a row
gives its place to another one that contains nearly all of its words.

A vector does not show whether a name or a number is missing, so vectors are not used. The speaker
is one of the words of a message that may be about its speaker or listeners.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, islice
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

from msgspec import structs

from backend.core.reasons import PreferredBecause
from backend.memory.indexing.sources import MemoryItem
from backend.memory.search.features import Candidate
from backend.memory.search.terms import NEGATION, detect_languages, list_terms, query_terms

COVERED_SHARE = 0.75
"""Share of a row's terms that another row must contain to say the same.

A message gives its place only if all of its terms are in the other text, because it is the
original, and a missing word may be the answer. With 0.75, a question loses 2 points of recall on
LoCoMo.
"""

MIN_TERMS = 3
"""A text with fewer terms is not compared, because it says too little alone."""

MAX_COMPARED_ORIGINS = 12
"""A row made from more messages is not compared, because it says little about each of them."""

MAX_COMPARED_CHARACTERS = 20_000
"""Characters that are compared in one search. They take 4 ms, or up to 60 in Cyrillic script."""

MAX_PAIRS = 500
"""Pairs of rows that are compared in one search."""

MAX_QUERY_CHARACTERS = 1_000
"""Only this many characters of the query, the first ones, are compared with rows."""

MAX_SENTENCE_CHARACTERS = 400
"""A longer sentence of a summary covers nothing. Not all languages have marks between sentences."""

MAX_SUMMARY_CHARACTERS = 100_000
"""Characters of a summary and of the rows that are compared with it, in a thread."""

_SENTENCE_END = re.compile(
    "(?<=[.!?\u2026])[\"'\u201d\u2019\u00bb)]*\\s"
    "|(?<=[\u3002\uff01\uff1f\u0964\u06d4\u061f\u0589\u104b])|\n"
)
"""The end of a sentence in Latin, Chinese, Indic, Arabic, Armenian and Burmese scripts."""


Pair = tuple[MemoryItem, MemoryItem]


class Preference(NamedTuple):
    """A row that gives its place, the row that is preferred to it, and the rule."""

    left: MemoryItem
    kept: MemoryItem
    because: PreferredBecause


_PERSONS = re.compile(
    r"\b(?:i|me|my|mine|myself|we|us|our|ours|ourselves|you|your|yours|yourself|yourselves)\b",
    re.IGNORECASE,
)
"""English words for the speaker and the listeners. Many other languages leave them out."""


class _Words(NamedTuple):
    """The terms that a row says, which may include its speaker, and those of text and title."""

    said: frozenset[str]
    known: frozenset[str]

    def cover(self, other: _Words, share: float = COVERED_SHARE) -> bool:
        """True if they contain a share of the terms of another row, and all of its numbers.

        Either both or none of them contain a negation.
        """
        missing = other.said - self.known
        is_opposite = (NEGATION in other.said) != (NEGATION in self.said)
        if is_opposite or len(missing) > (1 - share) * len(other.said):
            return False
        return len(other.said) >= MIN_TERMS and not any(map(_has_digit, missing))

    def has_words(self, other: _Words, asked: Collection[str]) -> bool:
        """True if they contain all terms of the query that another row contains."""
        return other.said.intersection(asked) <= self.known


def list_relatives(rows: Sequence[MemoryItem]) -> list[Pair]:
    """Return the pairs of rows of which one was made from the other, or both from one message.

    `rows` are in the order of their ranks. Rows with different audiences are no pair, because the
    mark of one of them would be lost.
    """
    return list(islice(_generate_relatives(rows), MAX_PAIRS))


def find_preferences(
    pairs: Sequence[Pair], query: str, *, shown: Collection[UUID] = ()
) -> dict[UUID, Preference]:
    """Return the rows that give their place to their relative, by their ids. CPU-bound.

    The prompt contains those in `shown` anyway.
    """
    asked = query_terms(query[:MAX_QUERY_CHARACTERS]).keys()
    words = _read_words([row for pair in pairs for row in pair])
    given: dict[UUID, Preference] = {}
    for one, other in pairs:
        ids = {one.source_id, other.source_id}
        if ids <= words.keys() and ids.isdisjoint(given):
            for kept, left in ((one, other), (other, one)):
                because = _prefer(kept, left, words, asked, shown)
                if because is not None:
                    given[left.source_id] = Preference(left, kept, because)
                    break
    last: dict[UUID, Preference] = {}
    for each, found in given.items():
        # A preferred row may give its place to a third one later, which must then say the same.
        kept = _follow(given, found).kept
        because = _prefer(kept, found.left, words, asked, shown)
        if because is not None:
            last[each] = Preference(found.left, kept, because)
    return last


def find_summarised(
    places: Sequence[Sequence[MemoryItem]], summary: str, query: str
) -> frozenset[UUID]:
    """Return the first rows of the places that a summary covers. CPU-bound.

    Each place has a row and those that gave their place to it. For each of them the summary needs a
    sentence that covers it, as another row would. The summary must be about the messages of the
    rows. O(n * m) time for n rows and m sentences.
    """
    rows = [row for place in places for row in place]
    lines = [
        line
        for line in _SENTENCE_END.split(summary)
        if line.strip() and len(line) <= MAX_SENTENCE_CHARACTERS
    ]
    size = sum(map(len, lines)) + sum(len(row.title) + len(row.text) for row in rows)
    if not rows or size > MAX_SUMMARY_CHARACTERS:
        return frozenset()
    spoken = (f"{row.title} {row.text}" if _needs_speaker(row) else row.text for row in rows)
    texts = [*lines, *spoken]
    terms = [_Words(each, each) for each in list_terms(texts)]
    asked = query_terms(query[:MAX_QUERY_CHARACTERS]).keys()
    told = {
        row.source_id
        for row, said in zip(rows, terms[len(lines) :], strict=True)
        if not row.is_authoritative
        and any(
            line.cover(said, _find_least_share(row)) and line.has_words(said, asked)
            for line in terms[: len(lines)]
        )
    }
    return frozenset(
        place[0].source_id for place in places if told.issuperset(each.source_id for each in place)
    )


def join_places(
    candidates: Sequence[Candidate], given: Mapping[UUID, Preference]
) -> list[Candidate]:
    """Return the candidates that keep a place, best first.

    A preferred one gets the best score of those that it replaces.
    """
    scores: dict[int, float] = {}
    for each in candidates:
        row_id = each.payload.source_id
        kept = given[row_id].kept.source_id if row_id in given else row_id
        scores[kept.int] = max(each.score, scores.get(kept.int, each.score))
    joined = [
        structs.replace(each, score=scores[each.payload.source_id.int])
        for each in candidates
        if each.payload.source_id not in given
    ]
    return sorted(joined, key=attrgetter("score"), reverse=True)


def _follow(given: Mapping[UUID, Preference], found: Preference) -> Preference:
    """Return the last preference of a chain."""
    while found.kept.source_id in given:
        found = given[found.kept.source_id]
    return found


def _generate_relatives(rows: Sequence[MemoryItem]) -> Iterator[Pair]:
    families: dict[UUID, list[MemoryItem]] = {}
    for row in {row.source_id: row for row in rows}.values():
        if row.kind == "message":
            families.setdefault(row.source_id, []).append(row)
        elif len(row.origins) <= MAX_COMPARED_ORIGINS:
            for message_id in {origin.message_id for origin in row.origins}:
                families.setdefault(message_id, []).append(row)
    seen: set[tuple[UUID, UUID]] = set()
    for family in families.values():
        for one, other in combinations(family, 2):
            key = one.source_id, other.source_id
            if key not in seen and one.audience == other.audience:
                seen.add(key)
                yield one, other


def _read_words(rows: Sequence[MemoryItem]) -> dict[UUID, _Words]:
    """Return the words of the first rows, up to `MAX_COMPARED_CHARACTERS`. CPU-bound."""
    read: dict[UUID, MemoryItem] = {}
    left = MAX_COMPARED_CHARACTERS
    for row in rows:
        size = len(row.title) + len(row.text)
        if row.source_id not in read and size <= left:
            left -= size
            read[row.source_id] = row
    titles = list({row.title for row in read.values()})
    terms = list_terms([*titles, *(row.text for row in read.values())])
    named = dict(zip(titles, terms, strict=False))
    words: dict[UUID, _Words] = {}
    for (row_id, row), text in zip(read.items(), terms[len(titles) :], strict=True):
        known = text | named[row.title]
        words[row_id] = _Words(known if _needs_speaker(row) else text, known)
    return words


def _needs_speaker(row: MemoryItem) -> bool:
    """True for a message that may say something else if another person says it. CPU-bound."""
    if row.kind != "message":
        return False
    return bool(_PERSONS.search(row.text)) or detect_languages(row.text) != ["english"]


def _prefer(
    kept: MemoryItem,
    left: MemoryItem,
    words: Mapping[UUID, _Words],
    asked: Collection[str],
    shown: Collection[UUID],
) -> PreferredBecause | None:
    """Return the reason to prefer one row to another; None if there is none."""
    mine, others = words[kept.source_id], words[left.source_id]
    is_fixed = left.source_id in shown or (left.is_authoritative and not kept.is_authoritative)
    if is_fixed or not (_covers(kept, left, words) and mine.has_words(others, asked)):
        return None
    if kept.source_id in shown:
        return "in_prompt"
    if kept.is_authoritative and not left.is_authoritative:
        return "current"
    if not _covers(left, kept, words):
        return "says_more"
    if not others.has_words(mine, asked):
        return "asked_words"
    return "shorter" if len(kept.text) <= len(left.text) else None


def _covers(one: MemoryItem, other: MemoryItem, words: Mapping[UUID, _Words]) -> bool:
    """True if one row contains enough of another one to replace it."""
    return words[one.source_id].cover(words[other.source_id], _find_least_share(other))


def _find_least_share(row: MemoryItem) -> float:
    """Return the share of a row's terms that must be elsewhere before it gives its place."""
    return 1.0 if row.kind == "message" else COVERED_SHARE


def _has_digit(term: str) -> bool:
    return any(character.isdigit() for character in term)
