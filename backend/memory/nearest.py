"""Lines that are near by their meaning alone, for the room that a prompt has left.

A question in other words than its answer has chance words in common with many other lines. These
stand above the answer, and the answer does not reach the thresholds. What that costs and brings:
docs/retrieval.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from backend.memory.ranking import Candidate
from backend.memory.thresholds import RankingThresholds

HALF_NEAR = 0.5
"""Of the cosine that is enough by itself, what a line has that is brought up where room is left."""

FIRST = 5
"""So many memories stand as they are ranked before places are kept for the nearest by meaning."""

TOKENS_A_WORD, TOKENS_A_LINE = 1.4, 16
"""What a line takes in a prompt, about: its words, and its date, name and frame. Of Chinese and
Japanese lines it says too little: `most` is what limits those."""


def nearest(ranked: Sequence[Candidate], least: RankingThresholds) -> list[Candidate]:
    """Lines that are near by their meaning, whatever their words.

    Returns:
        Those of `HALF_NEAR` or more, the nearest first. None where no line is near enough by its
        meaning alone: then what is asked for was never said.
    """
    if least.dense <= least.unrelated:
        return []
    shares = [
        (each, least.shares(each.signals)[0]) for each in ranked if each.payload.kind == "message"
    ]
    if max((share for _, share in shares), default=0.0) < 1:
        return []
    near = [each for each, share in shares if share >= HALF_NEAR]
    return sorted(near, key=lambda each: -each.meaning)


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
    is_chosen = {each.id for each in chosen}
    merged = list(chosen[:FIRST])
    for line, other in zip_longest(near, chosen[FIRST:]):
        merged += [each for each in (line, other) if each is not None]
    taken: dict[int, Candidate] = {}
    tokens = 0.0
    for each in merged:
        size = each.payload.words * TOKENS_A_WORD + TOKENS_A_LINE
        if each.id.int not in taken and (each.id in is_chosen or tokens + size <= room):
            taken[each.id.int] = each
            tokens += size
    return list(taken.values())[:most]
