"""What is weighed of each point that a search found."""

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
from backend.memory.index.protocol import Hit, Payload, Sparse, point_id
from backend.memory.search.query import ParsedQuery, Signal, Span
from backend.memory.search.terms import list_forms, query_terms, query_words
from backend.vault.blinding import Blinder

SIGNALS: tuple[Signal, ...] = ("dense", "sparse", "dense_window", "sparse_window", "scene")
ASKED: tuple[Signal, ...] = ("dense_question", "sparse_question")
"""Signals of questions that a line answers: they lift their line, or bring it in."""

DENSE_SIGNALS: tuple[Signal, ...] = ("dense", "dense_window", "dense_question")
SPARSE_SIGNALS: tuple[Signal, ...] = ("sparse", "sparse_window", "sparse_question")

SignalHits = Mapping[Signal, Sequence[Hit]]


class Scores(msgspec.Struct, frozen=True, gc=False):
    """What each signal said of a point: scores as they came from the index.

    Null where a signal did not find it. There are hundreds of them a search: the garbage collector
    has nothing to look at in a struct of numbers, and a dict each costs it a millisecond.
    """

    dense: float | None = None
    sparse: float | None = None
    dense_window: float | None = None
    sparse_window: float | None = None
    dense_question: float | None = None
    sparse_question: float | None = None

    def by_name(self) -> dict[str, float]:
        """The scores that there are."""
        return {name: score for name, score in structs.asdict(self).items() if score is not None}


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A point that some signal found, with what each said.

    Attributes:
        score: The fused score, for the order alone.
        meaning: The same without any words (`MEANING`).
        scene: How near its scene is, from 0 to 1.
        cosine: The best of its cosines; -1 where no vector found it.
        bm25: The best of its sums of weighted terms; 0 where no term found it.
        joined: How near the event is that was made from it, against the best hit.
        aboutness: How much the line is about it by its words; 1 is enough. Messages have none.
    """

    id: UUID
    payload: Payload
    score: float
    signals: Scores = Scores()
    cosine: float = -1.0
    bm25: float = 0.0
    meaning: float = 0.0
    scene: float = 0.0
    joined: float = 0.0
    aboutness: float = 0.0


def gather(signals: Sequence[Signal], hits: Sequence[Sequence[Hit]]) -> SignalHits:
    """The answers of a batch by signal; those of one signal (of several kinds) come together."""
    found: dict[Signal, list[Hit]] = {}
    for signal, some in zip(signals, hits, strict=True):
        found.setdefault(signal, []).extend(some)
    return found


FEATURES = (*SIGNALS, "speaker", "length", "question", "span", *ASKED, "subject", "answer")

SCORE_FIELDS: Sequence[Signal] = Scores.__struct_fields__  # type: ignore[assignment]  # they are signals

MIN_SAMPLE_HITS = 10
"""Fewer hits than this are no sample of what a poor score is: the poorest is then 0."""

_LONG_TEXT = 4.0
"""Natural logarithm of the length in words, less one, that counts as long: 54 words."""


class _Column(NamedTuple):
    """What a signal said: of which points, its scores, and these brought to 0 to 1."""

    rows: Sequence[int]
    scores: Sequence[float]
    scaled: NDArray[np.float64]


class FeatureTable:
    """The points that the signals of a search found: n of them, each once.

    O(n) time and memory for n hits.

    Args:
        found: Hits by signal, best first. Hits of `scene` are scenes: they lift the lines of theirs
            and are no candidates. Hits of `ASKED` are questions, and lift the line of theirs.
        speakers: Keyed ids of those whom the query names, in its order.
        spans: Times that the query names.
        aboutness: How much the line is about a row by its words, by the number of its id.

    Attributes:
        hits: One of each point.
        lines: Their payloads.
        cosines: The best cosine of each, shape (n,); -1 where no vector found it.
        values: What is weighed, shape (n, 13), columns as `FEATURES`. A signal's column is its
            scores brought to 0 to 1 (`scale_to_one`), and 0 where it found nothing.
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
            signal: self._answered(hits) if signal in ASKED else _build_column(hits, rows)
            for signal, hits in found.items()
            if signal != "scene"
        }
        self.cosines = self._best(DENSE_SIGNALS, -1.0)
        self.values = self._values(found.get("scene", ()), speakers, spans)

    def candidates(
        self,
        order: Iterable[int],
        scores: Sequence[float],
        meanings: Sequence[float],
        *,
        most: int | None = None,
    ) -> list[Candidate]:
        """Candidates of points in an order; each row of the database once, by its first.

        Args:
            order: Which points.
            scores: Of each point, whether it is in the order or not.
            meanings: The same.
            most: How many come back at most; None for all.
        """
        hits, lines = self.hits, self.lines
        first: dict[int, int] = {}
        for row in order:
            if most is not None and len(first) >= most:
                break
            first.setdefault(lines[row].source_id.int, row)
        signals = self._signals()
        cosines, bm25 = self.cosines.tolist(), self._best(SPARSE_SIGNALS, 0.0).tolist()
        scenes: list[float] = self.values[:, SIGNALS.index("scene")].tolist()
        return [
            Candidate(
                id=hits[row].id,
                payload=lines[row],
                score=scores[row],
                signals=Scores(*signals[row]),
                cosine=cosines[row],
                bm25=bm25[row],
                meaning=meanings[row],
                scene=scenes[row],
                aboutness=self._aboutness.get(lines[row].source_id.int, 0.0),
            )
            for row in first.values()
        ]

    def _answered(self, questions: Sequence[Hit]) -> _Column:
        """What a signal of questions said of the lines that answer them."""
        scaled = scale_to_one(np.array([hit.score for hit in questions], dtype=np.float64))
        best: dict[int, int] = {}
        for place, hit in enumerate(questions):
            best.setdefault(hit.payload.source_id.int, place)
        rows = [row for row, line in enumerate(self.lines) if line.source_id.int in best]
        places = [best[self.lines[row].source_id.int] for row in rows]
        return _Column(rows, [questions[place].score for place in places], scaled[places])

    def _signals(self) -> list[tuple[float | None, ...]]:
        """What each signal said of each point, in the order of the fields of `Scores`."""
        columns: list[list[float | None]] = [[None] * len(self.hits) for _ in SCORE_FIELDS]
        for signal, scores in zip(SCORE_FIELDS, columns, strict=True):
            if column := self._columns.get(signal):
                for row, score in zip(column.rows, column.scores, strict=True):
                    scores[row] = score
        return list(zip(*columns, strict=True))

    def _best(self, signals: Sequence[Signal], least: float) -> NDArray[np.float64]:
        """The best score of each point by some signals, shape (n,); `least` where there is none."""
        best = np.full(len(self.hits), least)
        for column in (self._columns[each] for each in signals if each in self._columns):
            best[column.rows] = np.maximum(best[column.rows], column.scores)
        return best

    def _values(
        self, scenes: Sequence[Hit], speakers: Collection[int], spans: Sequence[Span]
    ) -> NDArray[np.float64]:
        """`values`; `scenes` are the hits of theirs."""
        lines = self.lines
        table = np.zeros((len(lines), len(FEATURES)))
        for place, signal in enumerate(SIGNALS):
            if column := self._columns.get(signal):
                table[column.rows, place] = column.scaled
        near = scale_to_one(np.array([hit.score for hit in scenes], dtype=np.float64)).tolist()
        by_scene = {
            hit.payload.scene_id.int: score
            for hit, score in zip(scenes, near, strict=True)
            if hit.payload.scene_id
        }
        if by_scene:
            table[:, SIGNALS.index("scene")] = [
                by_scene.get(line.scene_id.int, 0.0) if line.scene_id else 0.0 for line in lines
            ]
        # Only messages have lines around them. For all else its own signals count in their place,
        # or every message would have two signals more.
        is_line = np.array([line.kind == "message" for line in lines], dtype=bool)
        table[~is_line, 2:4] = table[~is_line, 0:2]
        words = np.array([line.words for line in lines], dtype=np.float64)
        said_at = np.array([line.said_at for line in lines], dtype=np.int64)
        if speakers:
            table[:, 5] = [line.speaker in speakers for line in lines]
        table[:, 6] = np.minimum(1.0, np.log1p(words) / _LONG_TEXT)
        table[:, 7] = [line.is_question for line in lines]
        for start, end in spans:
            table[(start <= said_at) & (said_at < end), 8] = 1.0
        if len(speakers) > 1:
            subject = next(iter(speakers))
            table[:, 11] = [line.speaker == subject for line in lines]
        table[:, 12] = _score_answers(lines, table[:, 0])
        table[~is_line, 5:] = 0.0
        for place, signal in enumerate(ASKED, start=9):
            if column := self._columns.get(signal):
                table[column.rows, place] = column.scaled
        return table


def points(found: SignalHits) -> list[Hit]:
    """A hit of each point that may be a candidate."""
    # A UUID computes its hash in Python: its number is ten times as fast.
    lines = (some for signal, some in found.items() if signal not in {"scene", *ASKED})
    hits = {hit.id.int: hit for some in lines for hit in some}
    asked = [hit for signal in ASKED for hit in found.get(signal, ())]
    there = {hit.payload.source_id.int for hit in hits.values()} if asked else set[int]()
    for hit in asked:
        if hit.payload.source_id.int not in there:
            there.add(hit.payload.source_id.int)
            line = _answering(hit)
            hits[line.id.int] = line
    return list(hits.values())


def _answering(question: Hit) -> Hit:
    """The first point of the line that answers a question, as if that had been found."""
    payload = structs.replace(question.payload, kind="message", chunk=0)
    return Hit(point_id("message", payload.source_id), question.score, payload)


def _build_column(hits: Sequence[Hit], rows: Mapping[int, int]) -> _Column:
    """What a signal said of points, which stand in these rows by the numbers of their ids."""
    scores = [hit.score for hit in hits]
    scaled = scale_to_one(np.array(scores, dtype=np.float64))
    return _Column([rows[hit.id.int] for hit in hits], scores, scaled)


def _score_answers(lines: Sequence[Payload], near: NDArray[np.float64]) -> NDArray[np.float64]:
    """How near the bare question is that each line follows, shape (n,); 0 where it follows none.

    Args:
        lines: n of them. Only a question that is among them counts, of the same scene.
        near: Shape (n,), how near each is by its meaning.

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
    """Scores, shape (n,), brought to 0 to 1: the lowest hit is 0, the best 1 (min-max)."""
    if not len(scores):
        return scores
    low = scores.min() if len(scores) >= MIN_SAMPLE_HITS else min(0.0, scores.min())
    span = scores.max() - low
    return (scores - low) / span if span > 0 else np.ones_like(scores)


QUESTION_SHARE = 0.48
"""The share of a question's words that a text must have."""

STATEMENT_SHARE = 0.75
"""The same for other lines: they may mention many things, and be about none."""

LARGE_CORPUS_POINTS = 400
"""Points of a user from which on rare words weigh as they did where thresholds were chosen."""

MAX_WORDS = 64
"""Words of a line or a question that are compared, the first ones."""

VOCABULARY = "o200k_base"
COMMON, RARE = 1_000, 100_000
"""Places in the vocabulary: words up to `COMMON` count least, words from `RARE` on count fully."""

_MIN_WORD_WEIGHT = 0.05
"""The weight of the most common words; rare ones have 1."""


class Reading(NamedTuple):
    """One way to read a line: all of it, or one question in it.

    Attributes:
        words: The ids of each word's terms, and its weight: how rare it is in general, up to 1.
        enough: The share of them that a text must have.
    """

    words: Sequence[tuple[frozenset[int], float]]
    enough: float

    def measure(self, text_terms: frozenset[int]) -> float:
        """Return how much the reading is about a text with these terms; from 1 on it is.

        It is the weighted share of the words that the text has, times the length of the vector of
        their weights (at most 1): two common words are not one rare word.
        """
        shared = [weight for terms, weight in self.words if not terms.isdisjoint(text_terms)]
        if not shared:
            return 0.0
        share = sum(shared) / sum(weight for _, weight in self.words)
        return share * min(1.0, math.hypot(*shared)) / self.enough


@dataclass(frozen=True, slots=True)
class LineWords:
    """The words of a line, blinded as the index has them.

    Attributes:
        terms: The ids of its terms with their weights. Those of the last exchange are not in it.
        readings: The ways to read it.
    """

    terms: Mapping[int, float]
    readings: Sequence[Reading]

    def match(self, texts: Mapping[UUID, Sparse]) -> dict[UUID, WordMatch]:
        """Compare the line with texts, by their sparse vectors.

        A term is taken to be in no other text of the corpus. O(terms of all texts).
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
    """The two figures of a text: see the head of this module."""

    bm25: float
    aboutness: float


def read_words(parsed: ParsedQuery, blinder: Blinder) -> LineWords:
    """Read a line in several ways: as a whole, without names, and each question in it.

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
    """Bring BM25 scores of a user with so many points to the scale of one with `LARGE_CORPUS_POINTS`."""
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
    """Return how much the line is about each row, by its best chunk and the number of its id."""
    best: dict[int, float] = {}
    for hit in found.get("sparse", ()):
        if hit.id in matches:
            row = hit.payload.source_id.int
            best[row] = max(matches[hit.id].aboutness, best.get(row, 0.0))
    return best


def apply_matches(found: SignalHits, matches: Mapping[UUID, WordMatch]) -> SignalHits:
    """Raise BM25 scores of hits to those of their matches; the best hits come first."""
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
    """Return the factor that brings BM25 of so many points to the scale of `LARGE_CORPUS_POINTS` points.

    The index weighs a word that one text of ten has a third of what it would among hundreds.
    """
    return (
        1.0
        if points >= LARGE_CORPUS_POINTS
        else _compute_rarest_weight(LARGE_CORPUS_POINTS) / _compute_rarest_weight(points)
    )


def _compute_rarest_weight(points: int) -> float:
    """The weight of a word that one point has (the index's IDF)."""
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
    places = [place for form in forms if (place := tokenizer.rank(form)) is not None]
    if not places:
        return 1.0
    depth = math.log((min(places) + 1) / COMMON) / math.log(RARE / COMMON)
    return min(1.0, max(_MIN_WORD_WEIGHT, depth))


def _compute_idf(count: int) -> float:
    """Return the IDF of a term in so many of `LARGE_CORPUS_POINTS` texts, by the index's formula."""
    return math.log1p((LARGE_CORPUS_POINTS - count + 0.5) / (count + 0.5))
