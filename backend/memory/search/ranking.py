"""Questions that ask for several things: what is found comes from several places.

A question for a list ("Which spells has she cast?") is short, and its hits lie in many scenes; a
question for one fact has more words, and its hits lie in one. Neither says anything of a language.
For the first kind a line that stands next to a better one adds little, for the two were found by
nearly the same window; and that its scene is about what is asked says less. What it brings:
docs/explanation/quality.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from uuid import UUID

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from backend.memory.embedding.protocol import MINILM, ModelCosines
from backend.memory.index.protocol import Floats
from backend.memory.search.features import FEATURES, Candidate, FeatureTable, Found, brought_to_one
from backend.memory.search.terms import query_terms
from backend.memory.search.words import Span

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
    """Weights as a vector, shape (11,), in the order of `FEATURES`."""
    return np.array([getattr(weights, name) for name in FEATURES], dtype=np.float64)


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


LONGEST = 200
"""Characters of a question that asks for a list, at most; what is longer is not looked at."""

FIRST = 20
"""Hits whose scenes tell how many places a question asks about."""

SHARPNESS = 8.0
"""How much more a better hit says of that: a score 0.1 higher counts 2.2 times."""

STEEPNESS, PER_SHARE, PER_TERM = 4.9, 3.7, 2.7
"""Logistic regression of LoCoMo's multi-hop questions against those for one fact (AUC 0.83)."""

DISCOUNT = 0.5
"""What the best window loses next to a better line, of a question that is all for a list. Fused
scores are at most about 1.3."""

SCENE = 0.3
"""What a line of the nearest scene loses, of a question that is all for a list: chosen by
`scripts/fit_breadth.py`."""


def breadth(text: str, ranked: Sequence[Candidate]) -> float:
    """How much a question asks for several things, from 0 to 1.

    Args:
        text: What terms are looked for, without names of those who take part.
        ranked: Candidates, best first, with their fused scores. The first `FIRST` count.
    """
    lines = [each for each in ranked[:FIRST] if each.payload.scene_id is not None]
    terms = sum(query_terms(text).values()) if len(text) <= LONGEST else 0
    if not lines or not terms:
        return 0.0
    scenes: dict[UUID | None, float] = {}
    for each in lines:
        weight = math.exp(SHARPNESS * (each.score - lines[0].score))
        scene = each.payload.scene_id
        scenes[scene] = scenes.get(scene, 0.0) + weight
    share = max(scenes.values()) / sum(scenes.values())
    return 1 / (1 + math.exp(PER_SHARE * share + PER_TERM * math.log1p(terms) - STEEPNESS))


def over_scenes(
    ranked: Sequence[Candidate], breadth: float, *, share: float = SCENE
) -> list[Candidate]:
    """Candidates with less of what their scenes have for them, the more the broader a question is.

    Args:
        ranked: n of them, best first.
        breadth: From 0 (nothing moves) to 1.
        share: What a line of the nearest scene loses at a breadth of 1.

    O(n log n) time, O(n) memory.
    """
    scored = [
        structs.replace(each, score=each.score - share * breadth * each.scene)
        if each.scene
        else each
        for each in ranked
    ]
    return sorted(scored, key=attrgetter("score"), reverse=True)


def diversified(candidates: Sequence[Candidate], breadth: float) -> list[Candidate]:
    """Lines next to better ones of the same chat lower, the more the broader the question is.

    Only what counts should be in it: a reply that was regenerated stands where its successor does.

    Args:
        candidates: n of them, best first.
        breadth: From 0 (nothing moves) to 1.

    O(n log n) time, O(n) memory.
    """
    windows = [each.signals.sparse_window or 0.0 for each in candidates]
    best = max(windows, default=0.0)
    if breadth <= 0 or best <= 0:
        return list(candidates)
    taken: set[tuple[UUID, int]] = set()
    scored: list[Candidate] = []
    for each, window in zip(candidates, windows, strict=True):
        line = each.payload
        score = each.score
        if line.kind == "message":
            beside = {(line.container_id, line.position + step) for step in (-1, 1)}
            if beside & taken:
                score -= DISCOUNT * breadth * window / best
            taken.add((line.container_id, line.position))
        scored.append(structs.replace(each, score=score) if score != each.score else each)
    return sorted(scored, key=attrgetter("score"), reverse=True)
