"""Questions that ask for several things: what is found comes from several places.

A question for a list ("Which spells has she cast?") is short, and its hits lie in many scenes; a
question for one fact has more words, and its hits lie in one. Neither says anything of a language.
For the first kind a line that stands next to a better one adds little, for the two were found by
nearly the same window; and that its scene is about what is asked says less. What it brings:
docs/explanation/quality.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from uuid import UUID

from msgspec import structs

from backend.memory.signals import Candidate
from backend.memory.terms import query_terms

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
