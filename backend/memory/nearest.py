"""Lines that are near by their meaning alone, for the room that a prompt has left.

A question in other words than its answer has chance words in common with many other lines. These
stand above the answer, and the answer does not reach the thresholds. What that costs and brings:
docs/explanation/quality.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from backend.memory.features import FeatureTable
from backend.memory.index.protocol import Hit, Query
from backend.memory.ranking import meanings
from backend.memory.signals import DENSE_SIGNALS, Candidate, Found, Signal, gather
from backend.memory.spans import Span
from backend.memory.thresholds import RankingThresholds

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
    return signal in DENSE_SIGNALS and not {"message", "question"}.isdisjoint(query.scope.kinds)


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
