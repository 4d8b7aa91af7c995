"""Additions to the ranked hits: messages of events, messages by meaning, and the best few memories.

A threshold prevents noise that would take room from relevant memories. If there are hardly any, a
fact or a message that almost reaches the threshold costs little and may be the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from operator import attrgetter
from uuid import UUID

import numpy as np
from msgspec import structs

from backend.memory.index.protocol import Hit, Kind, Payload, Query, ScopePart, point_id
from backend.memory.indexing.sources import MemoryItem, OriginMessage
from backend.memory.search.features import (
    DENSE_SIGNALS,
    Candidate,
    FeatureTable,
    SignalHits,
    gather,
)
from backend.memory.search.query import Signal, Span
from backend.memory.search.ranking import HALF_SHARE, RankingThresholds, score_meanings, sum_shares

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
        and (part.before_position is None or origin.position < part.before_position)
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

FIXED_RANKS = 5
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
    meant = score_meanings(table)
    order = np.argsort(-meant, kind="stable")
    order = order[shares[order] >= MIN_MEANING_SHARE]
    near = table.candidates(order.tolist(), meant.tolist(), meant.tolist(), most=most)
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
