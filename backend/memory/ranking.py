"""From what each signal found to one ranked list.

Scores are fused, not ranks: rank fusion gives the tenth hit of a signal that found nothing much
the same say as the tenth of one that found a lot. The effect of each signal:
docs/explanation/quality.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from backend.memory.features import FEATURES, FeatureTable, brought_to_one
from backend.memory.signals import Candidate, Found
from backend.memory.spans import Span

CURVE = 0.7
"""Power of `dense`, which is from 0 to 1, before it is weighed: between the best hit and a good one
there is less than between a good one and a poor one."""


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


def rank(
    found: Found,
    *,
    weights: Weights | None = None,
    speakers: Collection[int] = (),
    spans: Sequence[Span] = (),
    wants_recent: bool = False,
    aboutness: Mapping[int, float] = MappingProxyType({}),
) -> list[Candidate]:
    """Fuse what the signals found.

    Args:
        found: As for `FeatureTable`.
        weights: The shipped ones where None.
        speakers: As for `FeatureTable`.
        spans: As for `FeatureTable`.
        wants_recent: The query asks for what is new. Else age only breaks ties.
        aboutness: As for `FeatureTable`.

    Returns:
        Candidates, best first; each row of the database once, by its best chunk.

    O(n) time and memory for n hits, and the sorting.
    """
    weights = weights or Weights()
    table = FeatureTable(found, speakers=speakers, spans=spans, aboutness=aboutness)
    if not table.hits:
        return []
    total = curved(table.values) @ _vector(weights)
    said_at = np.array([line.said_at for line in table.lines], dtype=np.float64)
    if wants_recent:
        total += weights.recent * brought_to_one(said_at)
    order = np.lexsort((-said_at, -total)).tolist()
    return table.candidates(order, total.tolist(), meanings(table).tolist())


def meanings(table: FeatureTable) -> NDArray[np.float64]:
    """How near each of n points is whatever its words, shape (n,)."""
    return table.values @ _vector(MEANING)


def curved(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Features as they are weighed: a copy, its column `dense` to the power of `CURVE`."""
    table = table.copy()
    table[:, 0] **= CURVE
    return table


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
