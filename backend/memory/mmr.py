"""Memories that do not repeat each other: maximal marginal relevance.

Source: Carbonell & Goldstein, SIGIR 1998.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import numpy as np

from backend.memory.index.protocol import Floats
from backend.memory.signals import Candidate

SAME = 0.95
"""Cosine from which two texts say the same: the lower one is left out."""

RELEVANCE_WEIGHT = 0.9
"""A little against repetition. On LoCoMo 0.7 to 1 differ by 0.3 points of recall, 0.9 is best."""


def select(
    candidates: Sequence[Candidate],
    vectors: Mapping[UUID, Floats],
    *,
    count: int,
    relevance_weight: float = RELEVANCE_WEIGHT,
    same: float = SAME,
) -> list[Candidate]:
    """Pick memories that do not say the same.

    Args:
        candidates: n of them, best first. Their scores are the relevance, brought to 0 to 1.
        vectors: By id of the point, shape (d,), unit length. What has none repeats nothing.
        count: How many to pick, at most.
        relevance_weight: w in [0, 1]. 1 keeps the given order.
        same: Cosine, from which what stands lower is dropped.

    Returns:
        Candidates in the order picked; fewer than `count` when there are no more.

    Raises:
        ValueError: If w is outside [0, 1].

    O(count * n * d) time, O(n * d) memory.
    """
    if not 0 <= relevance_weight <= 1:
        raise ValueError("The weight of relevance must be between 0 and 1.")
    if not candidates or count < 1:
        return []
    table = _table(candidates, vectors)
    relevance = np.array([candidate.score for candidate in candidates])
    relevance = (relevance - relevance.min()) / (np.ptp(relevance) or 1.0)
    nearest = np.zeros(len(candidates))
    is_left = np.ones(len(candidates), dtype=bool)
    picked: list[Candidate] = []
    while len(picked) < count and is_left.any():
        worth = relevance_weight * relevance - (1 - relevance_weight) * nearest
        # The first of equals: they come best first.
        best = int(np.argmax(np.where(is_left, worth, -np.inf)))
        picked.append(candidates[best])
        cosines = table @ table[best]
        nearest = np.maximum(nearest, cosines)
        is_left &= cosines < same
        is_left[best] = False
    return picked


def _table(candidates: Sequence[Candidate], vectors: Mapping[UUID, Floats]) -> Floats:
    """The vectors as rows, shape (n, d); rows of zeros, near to nothing, where there is none."""
    dimension = max((len(vector) for vector in vectors.values()), default=1)
    table = np.zeros((len(candidates), dimension), dtype=np.float32)
    for row, candidate in enumerate(candidates):
        vector = vectors.get(candidate.id)
        if vector is not None:
            table[row] = vector
    return table
