"""What is weighed of each point that a search found."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from backend.memory.index.protocol import Hit, Payload
from backend.memory.search.words import Span

Signal = Literal[
    "dense",
    "sparse",
    "dense_window",
    "sparse_window",
    "scene",
]
SIGNALS: tuple[Signal, ...] = ("dense", "sparse", "dense_window", "sparse_window", "scene")
DENSE_SIGNALS: tuple[Signal, ...] = ("dense", "dense_window")
SPARSE_SIGNALS: tuple[Signal, ...] = ("sparse", "sparse_window")

Found = Mapping[Signal, Sequence[Hit]]


class Scores(msgspec.Struct, frozen=True, gc=False):
    """What each signal said of a point: scores as they came from the index.

    Null where a signal did not find it. There are hundreds of them a search: the garbage collector
    has nothing to look at in a struct of numbers, and a dict each costs it a millisecond.
    """

    dense: float | None = None
    sparse: float | None = None
    dense_window: float | None = None
    sparse_window: float | None = None

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


def gather(signals: Sequence[Signal], hits: Sequence[Sequence[Hit]]) -> Found:
    """The answers of a batch by signal; those of one signal (of several kinds) come together."""
    found: dict[Signal, list[Hit]] = {}
    for signal, some in zip(signals, hits, strict=True):
        found.setdefault(signal, []).extend(some)
    return found


FEATURES = (*SIGNALS, "speaker", "length", "question", "span", "subject", "answer")

SCORED: Sequence[Signal] = Scores.__struct_fields__  # type: ignore[assignment]  # they are signals

FEW = 10
"""Fewer hits than this are no sample of what a poor score is: the poorest is then 0."""

_LONG = 4.0
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
            and are no candidates.
        speakers: Keyed ids of those whom the query names, in its order.
        spans: Times that the query names.
        aboutness: How much the line is about a row by its words, by the number of its id.

    Attributes:
        hits: One of each point.
        lines: Their payloads.
        cosines: The best cosine of each, shape (n,); -1 where no vector found it.
        values: What is weighed, shape (n, 11), columns as `FEATURES`. A signal's column is its
            scores brought to 0 to 1 (`brought_to_one`), and 0 where it found nothing.
    """

    def __init__(
        self,
        found: Found,
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
            signal: _column(hits, rows) for signal, hits in found.items() if signal != "scene"
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

    def _signals(self) -> list[tuple[float | None, ...]]:
        """What each signal said of each point, in the order of the fields of `Scores`."""
        columns: list[list[float | None]] = [[None] * len(self.hits) for _ in SCORED]
        for signal, scores in zip(SCORED, columns, strict=True):
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
        near = brought_to_one(np.array([hit.score for hit in scenes], dtype=np.float64)).tolist()
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
        table[:, 6] = np.minimum(1.0, np.log1p(words) / _LONG)
        table[:, 7] = [line.is_question for line in lines]
        for start, end in spans:
            table[(start <= said_at) & (said_at < end), 8] = 1.0
        if len(speakers) > 1:
            subject = next(iter(speakers))
            table[:, 9] = [line.speaker == subject for line in lines]
        table[:, 10] = _after_questions(lines, table[:, 0])
        table[~is_line, 5:] = 0.0
        return table


def points(found: Found) -> list[Hit]:
    """A hit of each point that may be a candidate."""
    # A UUID computes its hash in Python: its number is ten times as fast.
    lines = (some for signal, some in found.items() if signal != "scene")
    return list({hit.id.int: hit for some in lines for hit in some}.values())


def _column(hits: Sequence[Hit], rows: Mapping[int, int]) -> _Column:
    """What a signal said of points, which stand in these rows by the numbers of their ids."""
    scores = [hit.score for hit in hits]
    scaled = brought_to_one(np.array(scores, dtype=np.float64))
    return _Column([rows[hit.id.int] for hit in hits], scores, scaled)


def _after_questions(lines: Sequence[Payload], near: NDArray[np.float64]) -> NDArray[np.float64]:
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


def brought_to_one(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores, shape (n,), brought to 0 to 1: the lowest hit is 0, the best 1 (min-max)."""
    if not len(scores):
        return scores
    low = scores.min() if len(scores) >= FEW else min(0.0, scores.min())
    span = scores.max() - low
    return (scores - low) / span if span > 0 else np.ones_like(scores)
