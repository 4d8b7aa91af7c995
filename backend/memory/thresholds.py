"""What a memory must reach to be brought up at all: nothing rather than noise.

On cosine and BM25 as they come from the index, never on the fused score: its best is near 1
whatever was asked. Chosen on data: docs/retrieval.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from backend.memory.ranking import Candidate, Signal

LORE_COSINE = 0.30
"""The cosine from which on an entry of a lorebook is what a line is about. Words alone never are.

MiniLM's; chosen by `scripts/bench_lore.py`.
"""

MOST_TERMS = 30.0
"""BM25 of a text that says everything which is asked for, and little else."""

MANY = 400
"""Points of a user from which on rare words weigh as they did where thresholds were chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingThresholds:
    """What is enough, by meaning and by words.

    Each says how much of what is enough by itself a memory has, and the two shares are added: half
    of each is enough as well.

    Attributes:
        dense: The cosine that is enough by itself; 0 lets everything through.
        sparse: The BM25 that is enough by itself; 0 lets everything through.
        best: The sum that at least one memory must reach: where nothing is near, what is less far
            away is no answer either.
        lore: The cosine from which on lore counts, whatever else is near. Null holds it against
            the others.
    """

    dense: float = 0.29
    sparse: float = 8.7
    best: float = 1.33
    lore: float | None = None

    def shares(self, signals: Mapping[Signal, float]) -> tuple[float, float]:
        """How much of what is enough a memory has, by meaning and by words."""
        dense = max(0.0, signals.get("dense", 0.0), signals.get("dense_window", 0.0))
        sparse = max(0.0, signals.get("sparse", 0.0), signals.get("sparse_window", 0.0))
        return dense / self.dense, sparse / self.sparse


def thresholds(min_relevance: float | None, *, activates_lore: bool) -> RankingThresholds:
    """The thresholds for a relevance: 0 is nothing, 1 what no text but the query's own reaches."""
    lore = max(LORE_COSINE, min_relevance or 0) if activates_lore else None
    if min_relevance is None:
        return RankingThresholds(lore=lore)
    return RankingThresholds(dense=min_relevance, sparse=min_relevance * MOST_TERMS, lore=lore)


def for_corpus(least: RankingThresholds, points: int) -> RankingThresholds:
    """Thresholds for a user with so many points.

    A word that only one text of ten has is no rarer than that: BM25 weighs it a third of what it
    would among hundreds, and the same match would count as none.
    """
    if points >= MANY:
        return least
    return replace(least, sparse=least.sparse * _rarest(points) / _rarest(MANY))


def relevant(ranked: Sequence[Candidate], least: RankingThresholds) -> list[Candidate]:
    """Those that reach the thresholds, in their order.

    None where no one reaches `best`, but for lore that `lore` is set for.
    """
    if least.lore is None:
        return _near(ranked, least)
    others = _near([each for each in ranked if each.payload.kind != "lore"], least)
    kept = {each.id for each in others}
    return [
        each
        for each in ranked
        if each.id in kept
        or (each.payload.kind == "lore" and each.signals.get("dense", 0.0) >= least.lore)
    ]


def is_meant(signals: Mapping[Signal, float]) -> bool:
    """Whether a memory was found by its meaning more than by its words."""
    dense, sparse = RankingThresholds().shares(signals)
    return dense > 0 and dense >= sparse


def _near(ranked: Sequence[Candidate], least: RankingThresholds) -> list[Candidate]:
    if least.dense <= 0 or least.sparse <= 0:
        return list(ranked)
    shares = [sum(least.shares(candidate.signals)) for candidate in ranked]
    if not any("dense" in candidate.signals for candidate in ranked):
        # Without an embedder words have to do alone what they do half of otherwise.
        shares = [2 * share for share in shares]
    if max(shares, default=0.0) < least.best:
        return []
    return [each for each, share in zip(ranked, shares, strict=True) if share >= 1]


def _rarest(points: int) -> float:
    """The weight of a word that one point has (the index's IDF)."""
    return math.log1p(max(points - 0.5, 0.5) / 1.5)
