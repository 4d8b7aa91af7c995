"""The features by which the hits of a search are ranked.

The index weighs a word by how rare it is among a user's points. In a young world no word is rare
there, and in a running chat the messages before a question contain its words. So two more figures
are computed from the terms of the texts that were found:

- a BM25 score with the rareness of a corpus of `LARGE_CORPUS_POINTS` texts, which is a floor for
  the index's score
- `aboutness`: the share of the query's words that the text contains, where common words of the
  language weigh little

The rank of a word in the vocabulary of the tokenizer shows how common it is.
docs/explanation/quality.md has the limits and their effect.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from backend.generation.tokens import Tokenizer, get_tokenizer
from backend.memory.index.protocol import Hit, Payload, Sparse
from backend.memory.search.query import ParsedQuery, Signal, Span
from backend.memory.search.terms import list_forms, query_terms, query_words
from backend.vault.blinding import Blinder

SIGNALS: tuple[Signal, ...] = ("dense", "sparse", "dense_window", "sparse_window")
DENSE_SIGNALS: tuple[Signal, ...] = ("dense", "dense_window")
SPARSE_SIGNALS: tuple[Signal, ...] = ("sparse", "sparse_window")

SignalHits = Mapping[Signal, Sequence[Hit]]


class Scores(msgspec.Struct, frozen=True, gc=False):
    """The scores of a point by signal, as the index returned them; None if it was not found.

    A search has hundreds of them. The garbage collector skips a struct of numbers, while it takes a
    millisecond for as many dicts.
    """

    dense: float | None = None
    sparse: float | None = None
    dense_window: float | None = None
    sparse_window: float | None = None

    def to_dict(self) -> dict[str, float]:
        return {name: score for name, score in structs.asdict(self).items() if score is not None}


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A point that at least one signal found.

    Attributes:
        score: The fused score, which only determines the order.
        cosine: The best of its cosines; -1 if no vector found it.
        bm25: The best of its sums of weighted terms; 0 if no term found it.
        joined: The score of an event that was made from it, relative to the best hit.
        aboutness: The share of the query's words in it; 1 is enough. Messages have none.
    """

    id: UUID
    payload: Payload
    score: float
    signals: Scores = Scores()
    cosine: float = -1.0
    bm25: float = 0.0
    joined: float = 0.0
    aboutness: float = 0.0


def gather(signals: Sequence[Signal], hits: Sequence[Sequence[Hit]]) -> SignalHits:
    """Group the hits of a batch by signal. One signal may have several queries."""
    found: dict[Signal, list[Hit]] = {}
    for signal, some in zip(signals, hits, strict=True):
        found.setdefault(signal, []).extend(some)
    return found


FEATURES = (*SIGNALS, "speaker", "length", "question", "span", "answer")

MIN_SAMPLE_HITS = 10
"""With fewer hits, the lowest score is not used as 0 of the scale."""

_LONG_TEXT = 4.0


class _Column(NamedTuple):
    """The rows of the points that a signal found, their scores, and these scaled to 0 to 1."""

    rows: Sequence[int]
    scores: Sequence[float]
    scaled: NDArray[np.float64]


class FeatureTable:
    """The n points that the signals of a search found, with their features.

    O(n) time and memory for n hits.

    Args:
        found: Hits by signal, best first.
        speakers: Keyed ids of the speakers that the query names.
        spans: Times that the query names.
        aboutness: The aboutness of rows, by the integers of their ids.

    Attributes:
        hits: One hit of each point.
        lines: Their payloads.
        cosines: The best cosine of each, shape (n,); -1 if no vector found it.
        values: The features, shape (n, 9), with the columns of `FEATURES`. The column of a signal
            is scaled to 0 to 1 (`scale_to_one`); points that it did not find have 0.
    """

    def __init__(
        self,
        found: SignalHits,
        *,
        speakers: Collection[int] = (),
        spans: Sequence[Span] = (),
        aboutness: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        self._aboutness = aboutness
        self.hits = points(found)
        self.lines = [hit.payload for hit in self.hits]
        rows = {hit.id.int: row for row, hit in enumerate(self.hits)}
        self._columns: dict[Signal, _Column] = {
            signal: _build_column(hits, rows) for signal, hits in found.items()
        }
        self.cosines = self._best(DENSE_SIGNALS, -1.0)
        self.values = self._values(speakers, spans)

    def candidates(
        self,
        order: Iterable[int],
        scores: Sequence[float],
        *,
        most: int | None = None,
    ) -> list[Candidate]:
        """Return the first `most` candidates in an `order` of points. Each row appears once.

        `scores` are those of all points.
        """
        hits, lines = self.hits, self.lines
        first: dict[int, int] = {}
        for row in order:
            if most is not None and len(first) >= most:
                break
            first.setdefault(lines[row].source_id.int, row)
        signals = self._signals()
        cosines, bm25 = self.cosines.tolist(), self._best(SPARSE_SIGNALS, 0.0).tolist()
        return [
            Candidate(
                id=hits[row].id,
                payload=lines[row],
                score=scores[row],
                signals=Scores(*signals[row]),
                cosine=cosines[row],
                bm25=bm25[row],
                aboutness=self._aboutness.get(lines[row].source_id.int, 0.0),
            )
            for row in first.values()
        ]

    def _signals(self) -> list[tuple[float | None, ...]]:
        """Return the scores of each point, in the order of `SIGNALS`, the fields of `Scores`."""
        columns: list[list[float | None]] = [[None] * len(self.hits) for _ in SIGNALS]
        for signal, scores in zip(SIGNALS, columns, strict=True):
            if column := self._columns.get(signal):
                for row, score in zip(column.rows, column.scores, strict=True):
                    scores[row] = score
        return list(zip(*columns, strict=True))

    def _best(self, signals: Sequence[Signal], least: float) -> NDArray[np.float64]:
        """Return the best score of each point by some signals, shape (n,); `least` if none."""
        best = np.full(len(self.hits), least)
        for column in (self._columns[each] for each in signals if each in self._columns):
            best[column.rows] = np.maximum(best[column.rows], column.scores)
        return best

    def _values(self, speakers: Collection[int], spans: Sequence[Span]) -> NDArray[np.float64]:
        lines = self.lines
        table = np.zeros((len(lines), len(FEATURES)))
        for place, signal in enumerate(SIGNALS):
            if column := self._columns.get(signal):
                table[column.rows, place] = column.scaled
        # Only messages have windows. Other kinds use their own scores instead, because messages
        # would otherwise have two more signals.
        is_line = np.array([line.kind == "message" for line in lines], dtype=bool)
        table[~is_line, 2:4] = table[~is_line, 0:2]
        words = np.array([line.words for line in lines], dtype=np.float64)
        said_at = np.array([line.said_at for line in lines], dtype=np.int64)
        if speakers:
            table[:, 4] = [line.speaker in speakers for line in lines]
        table[:, 5] = np.minimum(1.0, np.log1p(words) / _LONG_TEXT)
        table[:, 6] = [line.is_question for line in lines]
        for start, end in spans:
            table[(start <= said_at) & (said_at < end), 7] = 1.0
        table[:, 8] = _score_answers(lines, table[:, 0])
        table[~is_line, 4:] = 0.0
        return table


def points(found: SignalHits) -> list[Hit]:
    """Return one hit of each point."""
    # Integers as keys, because hashing a UUID takes ten times as long.
    return list({hit.id.int: hit for some in found.values() for hit in some}.values())


def _build_column(hits: Sequence[Hit], rows: Mapping[int, int]) -> _Column:
    """Build the column of a signal. `rows` are the rows of points by the integers of their ids."""
    scores = [hit.score for hit in hits]
    scaled = scale_to_one(np.array(scores, dtype=np.float64))
    return _Column([rows[hit.id.int] for hit in hits], scores, scaled)


def _score_answers(lines: Sequence[Payload], near: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the dense score of the bare question before each message, shape (n,); or else 0.

    The question must be among the points and in the same scene. `near` are the scaled dense scores.
    O(n) time and memory.
    """
    asked: dict[tuple[int, int], float] = {}
    for line, score in zip(lines, near.tolist(), strict=True):
        if line.is_question and score and line.scene_id:
            place = line.scene_id.int, line.position + 1
            asked[place] = max(score, asked.get(place, 0.0))
    return np.array(
        [
            asked.get((line.scene_id.int, line.position), 0.0) if line.scene_id else 0.0
            for line in lines
        ]
    )


def scale_to_one(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale scores, shape (n,), to 0 to 1: the lowest hit is 0, the best 1 (min-max)."""
    if not len(scores):
        return scores
    low = scores.min() if len(scores) >= MIN_SAMPLE_HITS else min(0.0, scores.min())
    span = scores.max() - low
    return (scores - low) / span if span > 0 else np.ones_like(scores)


QUESTION_SHARE = 0.48
"""The share of a question's words that a text must contain."""

STATEMENT_SHARE = 0.75
"""The same share for statements, because they may mention many things in passing."""

LARGE_CORPUS_POINTS = 400
"""Points from which on rare words weigh as in the data for which the thresholds were chosen."""

MAX_WORDS = 64
"""Words of a query or a question that are compared, the first ones."""

VOCABULARY = "o200k_base"
COMMON, RARE = 1_000, 100_000
"""Ranks in the vocabulary. Words below `COMMON` weigh least, words above `RARE` weigh 1."""

_MIN_WORD_WEIGHT = 0.05
"""The weight of the most common words."""


class Reading(NamedTuple):
    """The words of a query or of one question in it.

    Attributes:
        words: The ids of each word's terms, and its weight: its rareness in general, up to 1.
        enough: The share of them that a text must contain.
    """

    words: Sequence[tuple[frozenset[int], float]]
    enough: float

    def measure(self, text_terms: frozenset[int]) -> float:
        """Return the aboutness of a text with these terms; 1 is enough.

        It is the weighted share of the words that the text contains, times the length of the vector
        of their weights (at most 1). So two common words are not worth a rare one.
        """
        shared = [weight for terms, weight in self.words if not terms.isdisjoint(text_terms)]
        if not shared:
            return 0.0
        share = sum(shared) / sum(weight for _, weight in self.words)
        return share * min(1.0, math.hypot(*shared)) / self.enough


@dataclass(frozen=True, slots=True)
class LineWords:
    """The words of a query with the ids of the index.

    Attributes:
        terms: The ids of its terms with their weights, without those of the last exchange.
        readings: The words of the whole query and of its questions.
    """

    terms: Mapping[int, float]
    readings: Sequence[Reading]

    def match(self, texts: Mapping[UUID, Sparse]) -> dict[UUID, WordMatch]:
        """Compare the query with texts, given by their sparse vectors.

        It assumes that no other text of the corpus contains the terms. O(terms of all texts).
        """
        shared = {each: self._find_shared(text) for each, text in texts.items()}
        counts = Counter(term for terms in shared.values() for term in terms)
        rarity = {term: _compute_idf(count) for term, count in counts.items()}
        return {
            each: WordMatch(
                bm25=sum(
                    self.terms[term] * rarity[term] * weight for term, weight in terms.items()
                ),
                aboutness=max(
                    (reading.measure(frozenset(terms)) for reading in self.readings), default=0.0
                ),
            )
            for each, terms in shared.items()
        }

    def _find_shared(self, text: Sparse) -> dict[int, float]:
        pairs = zip(text.ids.tolist(), text.weights.tolist(), strict=True)
        return {term: weight for term, weight in pairs if term in self.terms}


class WordMatch(NamedTuple):
    bm25: float
    aboutness: float


def read_words(parsed: ParsedQuery, blinder: Blinder) -> LineWords:
    """Return the words of a query: with names, without names, and of each question in it.

    The first call in a process loads the vocabulary, which takes half a second.
    """
    tokenizer = get_tokenizer(VOCABULARY)
    enough = QUESTION_SHARE if parsed.questions else STATEMENT_SHARE
    texts = [(each, QUESTION_SHARE) for each in parsed.questions]
    texts += [(each, enough) for each in dict.fromkeys([parsed.lore_terms, parsed.terms])]
    terms: dict[int, float] = {}
    for text, _ in texts:
        for term, weight in query_terms(text).items():
            number = blinder.term_id(term)
            terms[number] = max(weight, terms.get(number, 0.0))
    return LineWords(
        terms=terms,
        readings=[Reading(_read_words(text, tokenizer, blinder), least) for text, least in texts],
    )


def scale_to_large_corpus(found: SignalHits, points: int) -> SignalHits:
    """Scale BM25 scores of a user with so many points to `LARGE_CORPUS_POINTS` points."""
    factor = find_corpus_factor(points)
    if factor == 1:
        return found
    return {
        signal: hits
        if signal in DENSE_SIGNALS
        else [structs.replace(hit, score=hit.score * factor) for hit in hits]
        for signal, hits in found.items()
    }


def find_aboutness(found: SignalHits, matches: Mapping[UUID, WordMatch]) -> dict[int, float]:
    """Return the aboutness of each row's best chunk, by the integer of the row's id."""
    best: dict[int, float] = {}
    for hit in found.get("sparse", ()):
        if hit.id in matches:
            row = hit.payload.source_id.int
            best[row] = max(matches[hit.id].aboutness, best.get(row, 0.0))
    return best


def apply_matches(found: SignalHits, matches: Mapping[UUID, WordMatch]) -> SignalHits:
    """Raise BM25 scores of hits to those of their matches, and sort the hits again."""
    if not matches:
        return found
    hits = [
        structs.replace(hit, score=max(hit.score, matches[hit.id].bm25))
        if hit.id in matches
        else hit
        for hit in found["sparse"]
    ]
    return {**found, "sparse": sorted(hits, key=lambda hit: -hit.score)}


def find_corpus_factor(points: int) -> float:
    """Return the factor that scales BM25 of so many points to `LARGE_CORPUS_POINTS` points.

    A word in one of ten texts has a third of the weight that it would have among hundreds.
    """
    return (
        1.0
        if points >= LARGE_CORPUS_POINTS
        else _compute_rarest_weight(LARGE_CORPUS_POINTS) / _compute_rarest_weight(points)
    )


def _compute_rarest_weight(points: int) -> float:
    return math.log1p(max(points - 0.5, 0.5) / 1.5)


def _read_words(
    text: str, tokenizer: Tokenizer, blinder: Blinder
) -> list[tuple[frozenset[int], float]]:
    """Return the words of a text that have a term in its own language, with their weights."""
    found = ((word, terms) for word, terms in query_words(text).items() if max(terms.values()) == 1)
    return [
        (
            frozenset(map(blinder.term_id, terms)),
            min(_estimate_rareness(form, tokenizer) for form in list_forms(word)),
        )
        for word, terms in islice(found, MAX_WORDS)
    ]


def _estimate_rareness(word: str, tokenizer: Tokenizer) -> float:
    """Return the weight of a word by its place in the vocabulary: 1 for a rare one."""
    forms = [f" {word}"] if word.isascii() else [f" {word}", word]
    places = [place for form in forms if (place := tokenizer.find_rank(form)) is not None]
    if not places:
        return 1.0
    depth = math.log((min(places) + 1) / COMMON) / math.log(RARE / COMMON)
    return min(1.0, max(_MIN_WORD_WEIGHT, depth))


def _compute_idf(count: int) -> float:
    """Return the index's IDF of a term in `count` of `LARGE_CORPUS_POINTS` texts."""
    return math.log1p((LARGE_CORPUS_POINTS - count + 0.5) / (count + 0.5))
