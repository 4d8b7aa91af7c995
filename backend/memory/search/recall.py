"""The best few memories of each kind, while a prompt is almost empty.

A threshold keeps noise away from memories that it would take room from. If there are hardly any,
a fact or a line that almost reaches it costs little and may be the answer.
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
from backend.memory.indexing.sources import Origin, Recalled
from backend.memory.search.features import (
    DENSE_SIGNALS,
    Candidate,
    FeatureTable,
    Found,
    Signal,
    gather,
)
from backend.memory.search.ranking import HALF, RankingThresholds, meanings, sum_shares
from backend.memory.search.words import Span

LIFT = 0.3
"""What the best event adds to the scores of its lines. Fused scores are at most about 1.3. The
largest of four that were tried, on the dialogues that `scripts/bench_events.py` reports."""

MOST = 12
"""Lines of an event that count: what many lines made says little about any of them."""


def joined(
    candidates: Sequence[Candidate],
    recalled: Mapping[UUID, Recalled],
    *,
    parts: Sequence[ScopePart],
    kinds: Sequence[Kind],
) -> list[Candidate]:
    """What was found, and the lines of its events and facts.

    Args:
        candidates: n of them, best first.
        recalled: Those of them that count, by their rows.
        parts: Where lines may come from.
        kinds: What is looked for; none is everything. Nothing moves where lines are not.

    Returns:
        Best first, each row once. Of a line that was not found nothing is known yet but its place.

    O(n log n) time and memory.
    """
    # Rows by the numbers of their ids: a UUID computes its hash in Python.
    origins = {
        row_id.int: [origin for origin in row.origins if _is_in(origin, parts)]
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
        if len(own) > MOST:
            continue
        share = max(0.0, each.score / best)
        for origin in own:
            number = origin.message_id.int
            if number in rows:
                shares.setdefault(number, share)
            else:
                lines.setdefault(number, _line(origin, each, lowest, share))
    lifted = [
        structs.replace(each, score=each.score + LIFT * share, joined=share)
        if (share := shares.get(each.payload.source_id.int, 0.0))
        else each
        for each in candidates
    ]
    return sorted([*lifted, *lines.values()], key=attrgetter("score"), reverse=True)


def _is_in(origin: Origin, parts: Sequence[ScopePart]) -> bool:
    return any(
        origin.chat_id in part.containers
        and (not part.kinds or "message" in part.kinds)
        and (part.before_position is None or origin.position < part.before_position)
        for part in parts
    )


def _line(origin: Origin, event: Candidate, lowest: float, share: float) -> Candidate:
    """A line that was not found: behind its event, and lifted from behind what was found."""
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
        score=min(lowest + LIFT * share, event.score),
        joined=share,
    )


Plan = Sequence[tuple[Signal, Query]]
"""The queries of a search, and which signal each is for."""

DEPTH = 200
"""Hits among lines, by their vectors. Of an answer in other words one vector is often not among the
first hundred, and with that the line has nothing to say for it."""

HALF_NEAR = 0.5
"""Of the cosine that is enough by itself, what a line has that is brought up where room is left."""

FIRST = 5
"""So many memories stand as they are ranked before places are kept for the nearest by meaning."""

TOKENS_A_WORD, TOKENS_A_LINE = 1.25, 14
"""What a line takes in a prompt, about: its words, and its date, name and frame. Of Chinese and
Japanese lines it says too little: `most` is what limits those."""


def deeper(plan: Plan) -> list[Query]:
    """The queries of a plan, those for lines by their vectors with `DEPTH` hits at least."""
    return [
        replace(query, limit=max(query.limit, DEPTH)) if _by_vectors(signal, query) else query
        for signal, query in plan
    ]


def split(plan: Plan, hits: Sequence[Sequence[Hit]]) -> tuple[Found, Found]:
    """The hits that a plan asks for, and all those of lines by their vectors, for `nearest`."""
    first = [some[: query.limit] for (_, query), some in zip(plan, hits, strict=True)]
    deep: list[tuple[Signal, Sequence[Hit]]] = [
        (signal, some)
        for (signal, query), some in zip(plan, hits, strict=True)
        if _by_vectors(signal, query)
    ]
    return (
        gather([signal for signal, _ in plan], first),
        gather([signal for signal, _ in deep], [some for _, some in deep]),
    )


def _by_vectors(signal: Signal, query: Query) -> bool:
    return signal in DENSE_SIGNALS and "message" in query.scope.kinds


def nearest(
    deep: Found,
    least: RankingThresholds,
    *,
    ranked: Sequence[Candidate] = (),
    speakers: Collection[int] = (),
    spans: Sequence[Span] = (),
    most: int | None = None,
) -> list[Candidate]:
    """Lines that are near by their meaning, whatever their words.

    Args:
        deep: Hits of lines by their vectors.
        least: What is near enough by itself.
        ranked: Candidates of the whole search: those among them come back as they are there.
        speakers: As for `FeatureTable`.
        spans: As for `FeatureTable`.
        most: How many come back at most; None for all.

    Returns:
        Those of `HALF_NEAR` or more, the nearest first. None where no line is near enough by its
        meaning alone: then what is asked for was never said.
    """
    if least.dense <= least.unrelated:
        return []
    table = FeatureTable(deep, speakers=speakers, spans=spans)
    shares = least.meaning_shares(table.cosines)
    shares[[line.kind != "message" for line in table.lines]] = 0.0
    if shares.max(initial=0.0) < 1:
        return []
    meant = meanings(table)
    order = np.argsort(-meant, kind="stable")
    order = order[shares[order] >= HALF_NEAR]
    near = table.candidates(order.tolist(), meant.tolist(), meant.tolist(), most=most)
    known = {each.payload.source_id.int: each for each in ranked}
    return [known.get(each.payload.source_id.int, each) for each in near]


def estimate_tokens(candidate: Candidate) -> float:
    """Return about how many tokens a memory takes in a prompt."""
    return candidate.payload.words * TOKENS_A_WORD + TOKENS_A_LINE


def with_nearest(
    chosen: Sequence[Candidate], near: Sequence[Candidate], *, room: int, most: int
) -> list[Candidate]:
    """What was chosen, with what is nearest by meaning where there is room for it.

    Args:
        chosen: Memories, best first.
        near: Lines, the nearest first; some may be among the chosen ones.
        room: Tokens that memories may take for lines to come in that were not chosen.
        most: How many memories come back at most.

    Returns:
        The first `FIRST` of the chosen ones, then by turns a line and the next of the chosen ones.
    """
    is_chosen = {each.id.int for each in chosen}
    merged = list(chosen[:FIRST])
    for line, other in zip_longest(near, chosen[FIRST:]):
        merged += [each for each in (line, other) if each is not None]
    taken: dict[int, Candidate] = {}
    tokens = 0.0
    for each in merged:
        size, number = estimate_tokens(each), each.id.int
        if number not in taken and (number in is_chosen or tokens + size <= room):
            taken[number] = each
            tokens += size
    return list(taken.values())[:most]


FEW = 3
"""Memories of a kind up to which others of it come in."""

NEARLY_EMPTY = 0.25
"""The part of the room below which memories leave it almost empty."""


def add_few(
    kept: Sequence[Candidate],
    ranked: Sequence[Candidate],
    least: RankingThresholds,
    *,
    room: int,
) -> list[Candidate]:
    """Return the kept memories and the best others, up to `FEW` of each kind.

    The others have `HALF` of the share that is enough. Lore is left out: room is no reason to bring
    in an entry that the line is not about.

    Args:
        kept: Memories that reach the thresholds.
        ranked: All memories that were found, best first.
        least: The thresholds.
        room: Tokens that memories may take; 0 for none.
    """
    is_free = least.dense <= least.unrelated or least.sparse <= 0
    if is_free or sum(map(estimate_tokens, kept)) >= NEARLY_EMPTY * room:
        return list(kept)
    chosen = {each.id.int for each in kept}
    counts = Counter(each.payload.kind for each in kept)
    others = [each for each in ranked if each.payload.kind != "lore"]
    for each, share in zip(others, sum_shares(others, least).tolist(), strict=True):
        if share >= HALF and each.id.int not in chosen and counts[each.payload.kind] < FEW:
            chosen.add(each.id.int)
            counts[each.payload.kind] += 1
    return [each for each in ranked if each.id.int in chosen]
