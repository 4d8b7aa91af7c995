"""From what each signal found to one ranked list.

Scores are fused, not ranks: rank fusion gives the tenth hit of a signal that found nothing much
the same say as the tenth of one that found a lot. What each signal brings: docs/retrieval.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from backend.memory.index.protocol import Hit, Payload, point_id
from backend.memory.spans import Span

Signal = Literal[
    "dense",
    "sparse",
    "dense_window",
    "sparse_window",
    "scene",
    "dense_question",
    "sparse_question",
]
SIGNALS: tuple[Signal, ...] = ("dense", "sparse", "dense_window", "sparse_window", "scene")
ASKED: tuple[Signal, ...] = ("dense_question", "sparse_question")
"""Signals of questions that a line answers: they lift their line, or bring it in."""

DENSE_SIGNALS: tuple[Signal, ...] = ("dense", "dense_window", "dense_question")
SPARSE_SIGNALS: tuple[Signal, ...] = ("sparse", "sparse_window", "sparse_question")
FEATURES = (*SIGNALS, "speaker", "length", "question", "span", *ASKED, "subject", "answer")
Found = Mapping[Signal, Sequence[Hit]]

FEW = 10
"""Fewer hits than this are no sample of what a poor score is: the poorest is then 0."""

CURVE = 0.7
"""Power of `dense`, which is from 0 to 1, before it is weighed: between the best hit and a good one
there is less than between a good one and a poor one."""

_LONG = 4.0
"""Natural logarithm of the length in words, less one, that counts as long: 54 words."""
_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How much each signal counts. The first six sum to 1; chosen by `scripts/bench_locomo.py`.

    Attributes:
        dense: Cosine with the text itself, curved.
        sparse: BM25 of the text itself.
        dense_window: Cosine with the text and the lines next to it.
        sparse_window: BM25 of the text and the lines around it.
        scene: BM25 of the whole scene that a line belongs to.
        speaker: The query names who speaks.
        length: A long line says more than a short one.
        question: A bare question answers nothing; negative.
        span: It was said in the time that the query names.
        recent: How new it is, where the query asks for what is new.
        dense_question: Cosine with a question that a task model says the line answers.
        sparse_question: BM25 of such a question.
        subject: Of several who are named, the first one speaks.
        answer: The line before it is a bare question that is near by its meaning.
    """

    dense: float = 0.22
    sparse: float = 0.15
    dense_window: float = 0.10
    sparse_window: float = 0.27
    scene: float = 0.12
    speaker: float = 0.14
    length: float = 0.16
    question: float = -0.09
    span: float = 0.29
    recent: float = 0.3
    dense_question: float = 0.25
    sparse_question: float = 0.10
    subject: float = 0.13
    answer: float = 0.18


MEANING = Weights(
    dense=0.24,
    sparse=0,
    dense_window=0.10,
    sparse_window=0,
    scene=0,
    speaker=0.11,
    length=0.09,
    question=-0.14,
    dense_question=0.24,
    sparse_question=0,
    subject=0,
    answer=0,
)
"""How near a line is whatever its words: chosen by `scripts/bench_paraphrase.py`."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A point that some signal found, with what each said.

    Attributes:
        score: The fused score, for the order alone.
        meaning: The same without any words (`MEANING`).
        scene: How near its scene is, from 0 to 1.
        signals: By signal, the score as it came from the index; who did not find it is missing.
        joined: How near the event is that was made from it, against the best hit.
    """

    id: UUID
    payload: Payload
    score: float
    signals: Mapping[Signal, float]
    meaning: float = 0.0
    scene: float = 0.0
    joined: float = 0.0


def gather(signals: Sequence[Signal], hits: Sequence[Sequence[Hit]]) -> Found:
    """The answers of a batch by signal; those of one signal (of several kinds) come together."""
    found: dict[Signal, list[Hit]] = {}
    for signal, some in zip(signals, hits, strict=True):
        found.setdefault(signal, []).extend(some)
    return found


def rank(
    found: Found,
    *,
    weights: Weights | None = None,
    speakers: Collection[int] = (),
    spans: Sequence[Span] = (),
    wants_recent: bool = False,
) -> list[Candidate]:
    """Fuse what the signals found.

    Args:
        found: Hits by signal, best first. Hits of `scene` are scenes: they lift the lines of theirs
            and are no candidates. Hits of `ASKED` are questions, and lift the line of theirs.
        weights: The shipped ones where None.
        speakers: Keyed ids of those whom the query names, in its order.
        spans: Times that the query names.
        wants_recent: The query asks for what is new. Else age only breaks ties.

    Returns:
        Candidates, best first; each row of the database once, by its best chunk.

    O(n) time and memory for n hits, and the sorting.
    """
    weights = weights or Weights()
    hits = points(found)
    if not hits:
        return []
    lines = [hit.payload for hit in hits]
    rows = {hit.id.int: row for row, hit in enumerate(hits)}
    table = features(found, lines, rows, speakers=speakers, spans=spans)
    total = curved(table) @ _vector(weights)
    said_at = np.array([line.said_at for line in lines], dtype=np.float64)
    if wants_recent:
        total += weights.recent * _scaled(said_at)
    signals: list[dict[Signal, float]] = [{} for _ in hits]
    for signal, some in found.items():
        if signal in ASKED:
            asked = _by_row(some, [hit.score for hit in some])
            for line, said in zip(lines, signals, strict=True):
                if line.source_id.int in asked:
                    said[signal] = asked[line.source_id.int]
        elif signal != "scene":
            for hit in some:
                signals[rows[hit.id.int]][signal] = hit.score
    scores: list[float] = total.tolist()
    meanings: list[float] = (table @ _vector(MEANING)).tolist()
    scenes: list[float] = table[:, SIGNALS.index("scene")].tolist()
    order: list[int] = np.lexsort((-said_at, -total)).tolist()
    best: dict[int, int] = {}
    for row in order:
        best.setdefault(lines[row].source_id.int, row)
    return [
        Candidate(
            id=hits[row].id,
            payload=lines[row],
            score=scores[row],
            signals=signals[row],
            meaning=meanings[row],
            scene=scenes[row],
        )
        for row in best.values()
    ]


def points(found: Found) -> list[Hit]:
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


def _by_row(hits: Sequence[Hit], scores: Sequence[float]) -> dict[int, float]:
    """The best score of each row's hits, which come best first, by the number of its id."""
    best: dict[int, float] = {}
    for hit, score in zip(hits, scores, strict=True):
        best.setdefault(hit.payload.source_id.int, score)
    return best


def features(
    found: Found,
    lines: Sequence[Payload],
    rows: Mapping[int, int],
    *,
    speakers: Collection[int],
    spans: Sequence[Span],
) -> NDArray[np.float64]:
    """What is weighed of each candidate.

    Args:
        found: As for `rank`.
        lines: The candidates, n of them.
        rows: Where each stands in `lines`, by the number of its point's id.
        speakers: As for `rank`.
        spans: As for `rank`.

    Returns:
        Shape (n, 13), columns as `FEATURES`. A signal's column is its scores brought to 0 to 1
        (`_scaled`), and 0 where it found nothing.
    """
    table = np.zeros((len(lines), len(FEATURES)))
    for column, signal in enumerate(SIGNALS):
        hits = found.get(signal, ())
        scaled = _scaled(np.array([hit.score for hit in hits], dtype=np.float64))
        if signal == "scene":
            scenes = {
                hit.payload.scene_id.int: score
                for hit, score in zip(hits, scaled, strict=True)
                if hit.payload.scene_id
            }
            table[:, column] = [
                scenes.get(line.scene_id.int, 0.0) if line.scene_id else 0.0 for line in lines
            ]
        elif hits:
            table[[rows[hit.id.int] for hit in hits], column] = scaled
    # What has no lines around it stands for itself there: else every message would have two
    # signals more than it.
    is_line = np.array([line.kind == "message" for line in lines], dtype=bool)
    table[~is_line, 2:4] = table[~is_line, 0:2]
    words = np.array([line.words for line in lines], dtype=np.float64)
    said_at = np.array([line.said_at for line in lines], dtype=np.int64)
    table[:, 5] = [line.speaker in speakers for line in lines]
    table[:, 6] = np.minimum(1.0, np.log1p(words) / _LONG)
    table[:, 7] = [line.is_question for line in lines]
    for start, end in spans:
        table[(start <= said_at) & (said_at < end), 8] = 1.0
    if len(speakers) > 1:
        subject = next(iter(speakers))
        table[:, 11] = [line.speaker == subject for line in lines]
    table[:, 12] = _after_questions(lines, table[:, 0])
    table[~is_line, 5:] = 0.0
    for column, signal in enumerate(ASKED, start=9):
        hits = found.get(signal, ())
        scaled = _scaled(np.array([hit.score for hit in hits], dtype=np.float64))
        asked = _by_row(hits, scaled.tolist())
        if asked:
            table[:, column] = [asked.get(line.source_id.int, 0.0) for line in lines]
    return table


def curved(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """`features` as they are weighed: a copy, its column `dense` to the power of `CURVE`."""
    table = table.copy()
    table[:, 0] **= CURVE
    return table


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


def weighed(candidates: Sequence[Candidate], weights: Mapping[str, float]) -> list[Candidate]:
    """In the order of their scores times the weight of their kind; a weight of 0 leaves out."""
    if all(weight == 1 for weight in weights.values()):
        return list(candidates)
    kept = [
        structs.replace(each, score=each.score * weights.get(each.payload.kind, 1.0))
        for each in candidates
        if weights.get(each.payload.kind, 1.0) > 0
    ]
    return sorted(kept, key=lambda each: -each.score)


def _vector(weights: Weights) -> NDArray[np.float64]:
    """Weights as a vector, shape (13,), in the order of `FEATURES`."""
    return np.array([getattr(weights, name) for name in FEATURES], dtype=np.float64)


def _scaled(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores, shape (n,), brought to 0 to 1: the lowest hit is 0, the best 1 (min-max)."""
    if not len(scores):
        return scores
    low = scores.min() if len(scores) >= FEW else min(0.0, scores.min())
    span = scores.max() - low
    return (scores - low) / span if span > 0 else np.ones_like(scores)
