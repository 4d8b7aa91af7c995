"""What a memory must reach to be brought up at all: nothing rather than noise.

On cosine and BM25 as they come from the index, never on the fused score: its best is near 1
whatever was asked. Chosen on data: docs/explanation/quality.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from backend.memory.embedding.cosines import MINILM, ModelCosines
from backend.memory.signals import Candidate

MOST_TERMS = 30.0
"""BM25 of a text that says everything which is asked for, and little else."""

MANY = 400
"""Points of a user from which on rare words weigh as they did where thresholds were chosen."""

HALF = 0.5
"""The share of a threshold that is enough if there is another reason."""

MAX_LORE_BY_WORDS = 5
"""Entries that the words of a line bring in at most."""


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
        lore: The cosine from which on lore counts, whatever else is near; lore also counts if the
            line is about it by its words (`Candidate.aboutness`). Null holds it against the others.
        unrelated: The cosine that is no share of `dense` yet.
    """

    dense: float = MINILM.dense
    sparse: float = 8.7
    best: float = 1.33
    lore: float | None = None
    unrelated: float = MINILM.unrelated

    def shares(self, candidate: Candidate) -> tuple[float, float]:
        """How much of what is enough a memory has, by meaning and by words."""
        near = float(self.meaning_shares(np.array(candidate.cosine)))
        return near, candidate.bm25 / self.sparse

    def lore_share(self, candidate: Candidate) -> float:
        """Return how near an entry is by its meaning or by its words; from 1 on it comes in.

        If its cosine is known, the words need half of it, too. Only if `lore` is set.
        """
        enough, cosine = self.lore or 1.0, candidate.signals.dense
        words = min(candidate.aboutness, candidate.bm25 / (HALF * self.sparse or 1.0))
        if cosine is None:
            return words
        half = self.unrelated + HALF * (enough - self.unrelated)
        return max(cosine / enough, min(words, cosine / half))

    def meaning_shares(self, cosines: NDArray[np.float64]) -> NDArray[np.float64]:
        """How much of what is enough by meaning memories have, by their best cosines, any shape."""
        return np.maximum(0.0, cosines - self.unrelated) / (self.dense - self.unrelated)


def thresholds(
    min_relevance: float | None, *, activates_lore: bool, cosines: ModelCosines = MINILM
) -> RankingThresholds:
    """The thresholds for a relevance: 0 is nothing, 1 what no text but the query's own reaches.

    `cosines` are those of the model that is searched with.
    """
    relevance = min_relevance or 0.0
    cosine = cosines.unrelated + relevance * (1 - cosines.unrelated)
    least = RankingThresholds(
        dense=cosines.dense,
        lore=max(cosines.lore, cosine) if activates_lore else None,
        unrelated=cosines.unrelated,
    )
    if min_relevance is None:
        return least
    return replace(least, dense=cosine, sparse=relevance * MOST_TERMS)


def relevant(ranked: Sequence[Candidate], least: RankingThresholds) -> list[Candidate]:
    """Those that reach the thresholds, in their order.

    None where no one reaches `best`, but for lore that `lore` is set for.
    """
    if least.lore is None:
        return _near(ranked, least)
    others = [each for each in ranked if each.payload.kind != "lore"]
    kept = {each.id.int for each in _near(others, least)} | _choose_lore(ranked, least)
    return [each for each in ranked if each.id.int in kept]


def _choose_lore(ranked: Sequence[Candidate], least: RankingThresholds) -> set[int]:
    """Return the numbers of the entries that come in: by meaning, and the best by words."""
    enough = least.lore or 0.0
    lore = [each for each in ranked if each.payload.kind == "lore" and least.lore_share(each) >= 1]
    near = {each.id.int for each in lore if (each.signals.dense or 0.0) >= enough}
    by_words = [each for each in lore if each.id.int not in near]
    by_words.sort(key=lambda each: -each.bm25)
    return near | {each.id.int for each in by_words[:MAX_LORE_BY_WORDS]}


def _near(ranked: Sequence[Candidate], least: RankingThresholds) -> list[Candidate]:
    if least.dense <= least.unrelated or least.sparse <= 0:
        return list(ranked)
    shares = sum_shares(ranked, least)
    if shares.max(initial=0.0) < least.best:
        return []
    return [each for each, is_near in zip(ranked, (shares >= 1).tolist(), strict=True) if is_near]


def sum_shares(ranked: Sequence[Candidate], least: RankingThresholds) -> NDArray[np.float64]:
    """Return the shares of n memories by meaning and words together, shape (n,); 1 is enough."""
    shares = least.meaning_shares(np.array([candidate.cosine for candidate in ranked]))
    shares += np.array([candidate.bm25 for candidate in ranked]) / least.sparse
    # Without an embedder there is no share by meaning, so the words count twice.
    return shares if is_by_meaning(ranked) else 2 * shares


def is_by_meaning(ranked: Sequence[Candidate]) -> bool:
    """True if an embedder took part in the search that found these."""
    return any(candidate.signals.dense is not None for candidate in ranked)


def find_corpus_factor(points: int) -> float:
    """Return the factor that brings BM25 of so many points to the scale of `MANY` points.

    The index weighs a word that one text of ten has a third of what it would among hundreds.
    """
    return 1.0 if points >= MANY else _rarest(MANY) / _rarest(points)


def _rarest(points: int) -> float:
    """The weight of a word that one point has (the index's IDF)."""
    return math.log1p(max(points - 0.5, 0.5) / 1.5)
