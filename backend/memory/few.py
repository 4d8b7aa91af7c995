"""The best few memories of each kind, while a prompt is almost empty.

A threshold keeps noise away from memories that it would take room from. If there are hardly any,
a fact or a line that almost reaches it costs little and may be the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from backend.memory.nearest import estimate_tokens
from backend.memory.signals import Candidate
from backend.memory.thresholds import HALF, RankingThresholds, sum_shares

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
