"""Ranking of the hits of a search: thresholds, weights, lists, and additions to the best.

A question for a list ("Which spells has she cast?") is short, and its hits are in many scenes. A
question for one fact has more words, and its hits are in one scene. This is the same in all
languages. In answers to a list, a message next to a better one adds little, because nearly the same
window found both.

The messages of events, messages by meaning alone and the best few memories are added. A threshold
prevents noise that would take room from relevant memories. If there are hardly any, a fact or a
message that almost reaches the threshold costs little and may be the answer.

docs/explanation/quality.md has the effect of each step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from operator import attrgetter
from types import MappingProxyType
from uuid import UUID

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from backend.memory.embedding.protocol import MINILM, ModelCosines
from backend.memory.index.protocol import Floats, Hit, Kind, Payload, Query, ScopePart, point_id
from backend.memory.indexing.sources import MemoryItem, OriginMessage
from backend.memory.search.features import (
    DENSE_SIGNALS,
    FEATURES,
    Candidate,
    FeatureTable,
    SignalHits,
    gather,
    scale_to_one,
)
from backend.memory.search.query import Signal, Span
from backend.memory.search.terms import query_terms

FULL_MATCH_BM25 = 30.0
"""BM25 of a text that contains all words of the query and few others."""

HALF_SHARE = 0.5
"""The share of a threshold that is enough together with another reason."""

MAX_LORE_BY_WORDS = 5
"""Maximum number of lorebook entries that are included because of their words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingThresholds:
    """The thresholds of relevance, by meaning and by words.

    A memory has a share of each threshold, and the two shares are added. So half of each is enough.

    Attributes:
        dense: The cosine that is enough alone; 0 includes everything.
        sparse: The BM25 that is enough alone; 0 includes everything.
        best: The sum of shares that at least one memory must reach. Otherwise nothing is relevant.
        lore: The cosine from which lore is relevant, regardless of other memories. Lore is also
            relevant by its words (`Candidate.aboutness`). With None, it is ranked with the others.
        unrelated: The cosine with a share of 0.
    """

    dense: float = MINILM.dense
    sparse: float = 8.7
    best: float = 1.33
    lore: float | None = None
    unrelated: float = MINILM.unrelated

    @property
    def duplicate(self) -> float:
        """The cosine from which two texts are duplicates."""
        return self.unrelated + DUPLICATE_SIMILARITY * (1 - self.unrelated)

    def shares(self, candidate: Candidate) -> tuple[float, float]:
        """Return the shares of the thresholds that a memory has, by meaning and by words."""
        near = float(self.meaning_shares(np.array(candidate.cosine)))
        return near, candidate.bm25 / self.sparse

    def lore_share(self, candidate: Candidate) -> float:
        """Return the relevance of an entry by its meaning or its words; 1 is enough.

        If its cosine is known, relevance by words needs half of the threshold, too. It is only used
        if `lore` is set.
        """
        enough, cosine = self.lore or 1.0, candidate.signals.dense
        words = min(candidate.aboutness, candidate.bm25 / (HALF_SHARE * self.sparse or 1.0))
        if cosine is None:
            return words
        half = self.unrelated + HALF_SHARE * (enough - self.unrelated)
        return max(cosine / enough, min(words, cosine / half))

    def meaning_shares(self, cosines: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the shares by meaning for the best cosines of memories, any shape."""
        return np.maximum(0.0, cosines - self.unrelated) / (self.dense - self.unrelated)


def compute_thresholds(
    min_relevance: float | None, *, activates_lore: bool, cosines: ModelCosines = MINILM
) -> RankingThresholds:
    """Return the thresholds for a relevance from 0 (everything) to 1 (the text of the query)."""
    relevance = min_relevance or 0.0
    cosine = cosines.unrelated + relevance * (1 - cosines.unrelated)
    least = RankingThresholds(
        dense=cosines.dense,
        lore=max(cosines.lore, cosine) if activates_lore else None,
        unrelated=cosines.unrelated,
    )
    if min_relevance is None:
        return least
    return replace(least, dense=cosine, sparse=relevance * FULL_MATCH_BM25)


def select_relevant(ranked: Sequence[Candidate], least: RankingThresholds) -> list[Candidate]:
    """Return the memories that reach the thresholds. If none reaches `best`, it is only lore."""
    if least.lore is None:
        return _select_near(ranked, least)
    others = [each for each in ranked if each.payload.kind != "lore"]
    kept = {each.id.int for each in _select_near(others, least)} | _choose_lore(ranked, least)
    return [each for each in ranked if each.id.int in kept]


def _choose_lore(ranked: Sequence[Candidate], least: RankingThresholds) -> set[int]:
    """Return the integer ids of relevant entries: all by meaning, and the best by words."""
    enough = least.lore or 0.0
    lore = [each for each in ranked if each.payload.kind == "lore" and least.lore_share(each) >= 1]
    near = {each.id.int for each in lore if (each.signals.dense or 0.0) >= enough}
    by_words = [each for each in lore if each.id.int not in near]
    by_words.sort(key=lambda each: -each.bm25)
    return near | {each.id.int for each in by_words[:MAX_LORE_BY_WORDS]}


def _select_near(ranked: Sequence[Candidate], least: RankingThresholds) -> list[Candidate]:
    if least.dense <= least.unrelated or least.sparse <= 0:
        return list(ranked)
    shares = sum_shares(ranked, least)
    if shares.max(initial=0.0) < least.best:
        return []
    return [each for each, is_near in zip(ranked, (shares >= 1).tolist(), strict=True) if is_near]


def sum_shares(ranked: Sequence[Candidate], least: RankingThresholds) -> NDArray[np.float64]:
    """Return the sums of both shares of n memories, shape (n,); 1 is enough."""
    shares = least.meaning_shares(np.array([candidate.cosine for candidate in ranked]))
    shares += np.array([candidate.bm25 for candidate in ranked]) / least.sparse
    # Without an embedder there is no share by meaning, so words count twice.
    return shares if is_by_meaning(ranked) else 2 * shares


def is_by_meaning(ranked: Sequence[Candidate]) -> bool:
    return any(candidate.signals.dense is not None for candidate in ranked)


DENSE_EXPONENT = 0.7
"""Exponent of the scaled `dense` score before it is weighed. The difference between the best hit
and a good one matters less than that between a good one and a poor one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weights of features; the first five sum to 1. Chosen by `bench.py retrieval fit`.

    Attributes:
        dense: Cosine of the text itself, with `DENSE_EXPONENT`.
        sparse: BM25 of the text itself.
        dense_window: Cosine of the text and the messages next to it.
        sparse_window: BM25 of the text and the messages around it.
        speaker: 1 if the query names the speaker.
        length: The length of the text. Long messages contain more information.
        question: 1 for a bare question. It answers nothing, so the weight is negative.
        span: 1 if the message is from a time that the query names.
        recent: The age, if the query asks for recent things.
        answer: The dense score of a bare question in the message before it.
    """

    dense: float = 0.24
    sparse: float = 0.14
    dense_window: float = 0.10
    sparse_window: float = 0.37
    speaker: float = 0.15
    length: float = 0.18
    question: float = -0.10
    span: float = 0.32
    recent: float = 0.3
    answer: float = 0.19


MEANING_WEIGHTS = Weights(
    dense=0.24,
    sparse=0,
    dense_window=0.10,
    sparse_window=0,
    speaker=0.11,
    length=0.09,
    question=-0.14,
    span=0.29,
    answer=0,
)
"""Weights for ranking without words. `scripts/bench.py retrieval paraphrase` chose the values."""


def rank(
    found: SignalHits,
    *,
    weights: Weights | None = None,
    speakers: Collection[int] = (),
    spans: Sequence[Span] = (),
    wants_recent: bool = False,
    aboutness: Mapping[int, float] = MappingProxyType({}),
) -> list[Candidate]:
    """Return the hits of all signals as candidates, best first. Each row appears once.

    See `FeatureTable` for the arguments. Unless the query `wants_recent` things, age only breaks
    ties. O(n log n) time and O(n) memory for n hits.
    """
    weights = weights or Weights()
    table = FeatureTable(found, speakers=speakers, spans=spans, aboutness=aboutness)
    if not table.hits:
        return []
    total = apply_curve(table.values) @ _vectorize(weights)
    said_at = np.array([line.said_at for line in table.lines], dtype=np.float64)
    if wants_recent:
        total += weights.recent * scale_to_one(said_at)
    order = np.lexsort((-said_at, -total)).tolist()
    return table.candidates(order, total.tolist())


def apply_curve(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a copy of features with `DENSE_EXPONENT` applied to the column `dense`."""
    table = table.copy()
    table[:, 0] **= DENSE_EXPONENT
    return table


def weigh_by_kind(candidates: Sequence[Candidate], weights: Mapping[str, float]) -> list[Candidate]:
    """Multiply scores by the weights of kinds, and sort again. A weight of 0 drops the kind."""
    if all(weight == 1 for weight in weights.values()):
        return list(candidates)
    kept = [
        structs.replace(each, score=each.score * weights.get(each.payload.kind, 1.0))
        for each in candidates
        if weights.get(each.payload.kind, 1.0) > 0
    ]
    return sorted(kept, key=lambda each: -each.score)


def _vectorize(weights: Weights) -> NDArray[np.float64]:
    """Return the weights as a vector, shape (9,), in the order of `FEATURES`."""
    return np.array([getattr(weights, name) for name in FEATURES], dtype=np.float64)


DUPLICATE_SIMILARITY = 0.95
"""Similarity from which two texts are duplicates: 0 for unrelated texts, and 1 for the same."""


def drop_duplicates(
    candidates: Sequence[Candidate],
    vectors: Mapping[UUID, Floats],
    *,
    count: int,
    cosine: float = DUPLICATE_SIMILARITY,
) -> list[Candidate]:
    """Return the first `count` candidates that do not repeat a better one, by their `cosine`.

    `vectors` have unit length, shape (d,). A candidate without one repeats nothing. The n
    candidates are sorted, best first. O(count * n * d) time, O(n * d) memory.
    """
    table = _stack_vectors(candidates, vectors)
    is_left = np.ones(len(candidates), dtype=bool)
    picked: list[Candidate] = []
    for row, each in enumerate(candidates):
        if len(picked) == count:
            break
        if is_left[row]:
            picked.append(each)
            is_left &= table @ table[row] < cosine
    return picked


def _stack_vectors(candidates: Sequence[Candidate], vectors: Mapping[UUID, Floats]) -> Floats:
    """Return the vectors as rows, shape (n, d). A row without a vector is zero."""
    dimension = max((len(vector) for vector in vectors.values()), default=1)
    table = np.zeros((len(candidates), dimension), dtype=np.float32)
    for row, candidate in enumerate(candidates):
        vector = vectors.get(candidate.id)
        if vector is not None:
            table[row] = vector
    return table


MAX_LIST_QUESTION_CHARACTERS = 200
"""Longer texts are not treated as questions for a list."""

BREADTH_SAMPLE_HITS = 20
"""Hits whose scenes are counted to estimate the breadth of a question."""

SHARPNESS = 8.0
"""Exponential weight of scores in this estimate: a hit with 0.1 more weighs 2.2 times as much."""

STEEPNESS, PER_SHARE, PER_TERM = 4.9, 3.7, 2.7
"""Logistic regression between LoCoMo's multi-hop questions and those for one fact (AUC 0.83)."""

NEIGHBOUR_DISCOUNT = 0.5
"""Amount that the message with the best window loses next to a better one, at a breadth of 1. Fused
scores are at most about 1.3."""


def breadth(text: str, ranked: Sequence[Candidate]) -> float:
    """Return the probability from 0 to 1 that a question asks for several things.

    `text` is the query without names of the cast. The first `BREADTH_SAMPLE_HITS` are used.
    """
    lines = [each for each in ranked[:BREADTH_SAMPLE_HITS] if each.payload.scene_id is not None]
    terms = sum(query_terms(text).values()) if len(text) <= MAX_LIST_QUESTION_CHARACTERS else 0
    if not lines or not terms:
        return 0.0
    scenes: dict[UUID | None, float] = {}
    for each in lines:
        weight = math.exp(SHARPNESS * (each.score - lines[0].score))
        scene = each.payload.scene_id
        scenes[scene] = scenes.get(scene, 0.0) + weight
    share = max(scenes.values()) / sum(scenes.values())
    return 1 / (1 + math.exp(PER_SHARE * share + PER_TERM * math.log1p(terms) - STEEPNESS))


def lower_neighbours(candidates: Sequence[Candidate], breadth: float) -> list[Candidate]:
    """Reduce scores of messages next to better ones for a broad question, and sort again.

    The candidates must be active, because a swipe has the same position as its siblings. The
    breadth is from 0 (no change) to 1. O(n log n) time, O(n) memory.
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
                score -= NEIGHBOUR_DISCOUNT * breadth * window / best
            taken.add((line.container_id, line.position))
        scored.append(structs.replace(each, score=score) if score != each.score else each)
    return sorted(scored, key=attrgetter("score"), reverse=True)


EVENT_BOOST = 0.3
"""Amount that the best event adds to the scores of its messages. Fused scores are at most about
1.3. It is the largest of four values that were tried on the dialogues of `bench_events.py`."""

MAX_EVENT_LINES = 12
"""An event of more messages boosts none, because it says little about each of them."""


def add_origin_lines(
    candidates: Sequence[Candidate],
    recalled: Mapping[UUID, MemoryItem],
    *,
    parts: Sequence[ScopePart],
    kinds: Sequence[Kind],
) -> list[Candidate]:
    """Add the messages of events and facts to n candidates, or boost them. Return the best first.

    `recalled` are the active ones among them, by row. `parts` are the chats of messages that may be
    added. Nothing changes if `kinds` has no messages. An added message has only its position so
    far. O(n log n) time and memory.
    """
    # Integers as keys, because hashing a UUID takes ten times as long.
    origins = {
        row_id.int: [origin for origin in row.origins if _is_allowed(origin, parts)]
        for row_id, row in recalled.items()
        if row.origins
    }
    best = max((each.score for each in candidates), default=0.0)
    if not origins or best <= 0 or (kinds and "message" not in kinds):
        return list(candidates)
    lowest = min(each.score for each in candidates)
    rows = {each.payload.source_id.int for each in candidates}
    shares: dict[int, float] = {}
    lines: dict[int, Candidate] = {}
    for each in candidates:
        own = origins.get(each.payload.source_id.int, ())
        if len(own) > MAX_EVENT_LINES:
            continue
        share = max(0.0, each.score / best)
        for origin in own:
            number = origin.message_id.int
            if number in rows:
                shares.setdefault(number, share)
            else:
                lines.setdefault(number, _build_line(origin, each, lowest, share))
    lifted = [
        structs.replace(each, score=each.score + EVENT_BOOST * share, joined=share)
        if (share := shares.get(each.payload.source_id.int, 0.0))
        else each
        for each in candidates
    ]
    return sorted([*lifted, *lines.values()], key=attrgetter("score"), reverse=True)


def _is_allowed(origin: OriginMessage, parts: Sequence[ScopePart]) -> bool:
    return any(
        origin.chat_id in part.containers
        and (not part.kinds or "message" in part.kinds)
        and part.contains(origin.position)
        for part in parts
    )


def _build_line(origin: OriginMessage, event: Candidate, lowest: float, share: float) -> Candidate:
    """Return a message that was not found. It is boosted from the lowest score up to its event."""
    payload = Payload(
        owner_id=event.payload.owner_id,
        kind="message",
        container_id=origin.chat_id,
        source_id=origin.message_id,
        position=origin.position,
    )
    return Candidate(
        id=point_id("message", origin.message_id),
        payload=payload,
        score=min(lowest + EVENT_BOOST * share, event.score),
        joined=share,
    )


Plan = Sequence[tuple[Signal, Query]]

DENSE_HITS = 200
"""Hits of dense queries among messages. If an answer uses other words, one of its vectors is often
below rank 100, and then nothing speaks for the message."""

MIN_MEANING_SHARE = 0.5
"""Share of the threshold by meaning that a message needs to be added if there is room."""

FIXED_RANKS = 3
"""First ranks that messages by meaning do not displace."""

TOKENS_PER_WORD, TOKENS_PER_LINE = 1.25, 14
"""Estimate of a message's tokens in a prompt: its words, and its date, name and frame. It is too
low for Chinese and Japanese, where `most` is the limit."""


def deepen_queries(plan: Plan) -> list[Query]:
    """Return the queries of a plan. Dense queries for messages get at least `DENSE_HITS` hits."""
    return [
        replace(query, limit=max(query.limit, DENSE_HITS))
        if _is_dense_line_query(signal, query)
        else query
        for signal, query in plan
    ]


def split_hits(plan: Plan, hits: Sequence[Sequence[Hit]]) -> tuple[SignalHits, SignalHits]:
    """Return the hits up to the limits of the plan, and all hits of dense queries for messages.

    `find_nearest` uses the second ones.
    """
    first = [some[: query.limit] for (_, query), some in zip(plan, hits, strict=True)]
    deep: list[tuple[Signal, Sequence[Hit]]] = [
        (signal, some)
        for (signal, query), some in zip(plan, hits, strict=True)
        if _is_dense_line_query(signal, query)
    ]
    return (
        gather([signal for signal, _ in plan], first),
        gather([signal for signal, _ in deep], [some for _, some in deep]),
    )


def _is_dense_line_query(signal: Signal, query: Query) -> bool:
    return signal in DENSE_SIGNALS and "message" in query.scope.kinds


def find_nearest(
    deep: SignalHits,
    least: RankingThresholds,
    *,
    ranked: Sequence[Candidate] = (),
    speakers: Collection[int] = (),
    spans: Sequence[Span] = (),
    most: int | None = None,
) -> list[Candidate]:
    """Return messages that are relevant by their meaning, regardless of words, best first.

    `deep` are hits of dense queries for messages. Candidates in `ranked` are returned unchanged.
    Messages need `MIN_MEANING_SHARE` of the threshold. There are none if none reaches it by meaning
    alone, because then no message contains the answer.
    """
    if least.dense <= least.unrelated:
        return []
    table = FeatureTable(deep, speakers=speakers, spans=spans)
    shares = least.meaning_shares(table.cosines)
    shares[[line.kind != "message" for line in table.lines]] = 0.0
    if shares.max(initial=0.0) < 1:
        return []
    meant = table.values @ _vectorize(MEANING_WEIGHTS)
    order = np.argsort(-meant, kind="stable")
    order = order[shares[order] >= MIN_MEANING_SHARE]
    near = table.candidates(order.tolist(), meant.tolist(), most=most)
    known = {each.payload.source_id.int: each for each in ranked}
    return [known.get(each.payload.source_id.int, each) for each in near]


def estimate_tokens(candidate: Candidate) -> float:
    return candidate.payload.words * TOKENS_PER_WORD + TOKENS_PER_LINE


def merge_nearest(
    chosen: Sequence[Candidate], near: Sequence[Candidate], *, room: int, most: int
) -> list[Candidate]:
    """Merge the chosen memories with messages by meaning while they take less than `room` tokens.

    Returns at most `most`: the first `FIXED_RANKS` chosen memories, then alternately a message and
    a chosen memory.
    """
    is_chosen = {each.id.int for each in chosen}
    merged = list(chosen[:FIXED_RANKS])
    for line, other in zip_longest(near, chosen[FIXED_RANKS:]):
        merged += [each for each in (line, other) if each is not None]
    taken: dict[int, Candidate] = {}
    tokens = 0.0
    for each in merged:
        size, number = estimate_tokens(each), each.id.int
        if number not in taken and (number in is_chosen or tokens + size <= room):
            taken[number] = each
            tokens += size
    return list(taken.values())[:most]


FEW_PER_KIND = 3
"""Memories of each kind up to which others are added."""

ALMOST_EMPTY_SHARE = 0.25
"""Share of the room below which it counts as almost empty."""


def add_few(
    kept: Sequence[Candidate],
    ranked: Sequence[Candidate],
    least: RankingThresholds,
    *,
    room: int,
) -> list[Candidate]:
    """Return the kept memories and the best others, up to `FEW_PER_KIND` of each kind.

    The others need `HALF_SHARE` of the thresholds. Lore is not added, because free room does not
    make an entry relevant. `room` is in tokens, 0 for none.
    """
    is_free = least.dense <= least.unrelated or least.sparse <= 0
    if is_free or sum(map(estimate_tokens, kept)) >= ALMOST_EMPTY_SHARE * room:
        return list(kept)
    chosen = {each.id.int for each in kept}
    counts = Counter(each.payload.kind for each in kept)
    others = [each for each in ranked if each.payload.kind != "lore"]
    for each, share in zip(others, sum_shares(others, least).tolist(), strict=True):
        if (
            share >= HALF_SHARE
            and each.id.int not in chosen
            and counts[each.payload.kind] < FEW_PER_KIND
        ):
            chosen.add(each.id.int)
            counts[each.payload.kind] += 1
    return [each for each in ranked if each.id.int in chosen]
