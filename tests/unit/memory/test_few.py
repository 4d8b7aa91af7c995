"""The best few of each kind, while a prompt has room for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from backend.memory.index.protocol import Kind
from backend.memory.search.features import Candidate
from backend.memory.search.ranking import (
    ALMOST_EMPTY_SHARE,
    FEW_PER_KIND,
    RankingThresholds,
    add_few,
    compute_thresholds,
    estimate_tokens,
    select_relevant,
)
from tests.unit.memory.test_nearest import candidate

LEAST = RankingThresholds()
ROOM = 4_000


def some(kind: Kind, count: int, share: float) -> list[Candidate]:
    """Memories that have so much of what is enough, by their meaning."""
    cosine = share * LEAST.dense
    return [candidate(f"{kind} {share} {n}", cosine, kind=kind) for n in range(count)]


def kinds(candidates: Sequence[Candidate]) -> list[Kind]:
    return [each.payload.kind for each in candidates]


def test_the_best_of_each_kind_but_lore_come_in_while_there_is_room() -> None:
    ranked = [
        *some("message", 5, 0.6),
        *some("campaign", 2, 0.6),
        *some("lore", 2, 0.6),
        *some("event", 1, 0.4),
    ]
    assert select_relevant(ranked, LEAST) == []
    few = add_few([], ranked, LEAST, room=ROOM)
    assert few == [*ranked[:FEW_PER_KIND], *ranked[5:7]]
    assert kinds(few) == ["message"] * FEW_PER_KIND + ["campaign"] * 2


def test_those_that_are_near_enough_count_among_the_few_and_keep_their_order() -> None:
    near, far = some("message", 2, 1.5), some("message", 5, 0.6)
    ranked = [far[0], *near, *far[1:]]
    assert add_few(near, ranked, LEAST, room=ROOM) == [far[0], *near]


def test_no_more_come_in_if_memories_take_a_part_of_the_room_or_there_is_none() -> None:
    [near], ranked = some("campaign", 1, 1.5), some("message", 2, 0.6)
    kept = [near]
    enough = int(estimate_tokens(near) / ALMOST_EMPTY_SHARE)
    assert add_few(kept, [*kept, *ranked], LEAST, room=enough) == kept
    assert add_few(kept, [*kept, *ranked], LEAST, room=0) == kept
    assert len(add_few(kept, [*kept, *ranked], LEAST, room=enough + 1)) == 3
    everything = compute_thresholds(0.0, activates_lore=False)
    assert add_few(ranked, ranked, everything, room=ROOM) == ranked


@pytest.mark.parametrize(
    ("aboutness", "cosine", "bm25", "is_in"),
    [
        (1.0, None, 5.0, True),
        (0.9, None, 20.0, False),
        (1.0, None, 4.0, False),
        (1.0, 0.16, 5.0, True),
        (1.0, 0.14, 20.0, False),
        (1.0, -0.1, 20.0, False),
        (0.0, 0.31, 0.0, True),
    ],
)
def test_lore_comes_in_by_its_words_or_its_meaning(
    aboutness: float, cosine: float | None, bm25: float, *, is_in: bool
) -> None:
    least = compute_thresholds(None, activates_lore=True)
    entry = worded("entry", aboutness, cosine, bm25)
    assert select_relevant([entry], least) == ([entry] if is_in else [])


def test_words_bring_in_the_best_five_entries() -> None:
    least = compute_thresholds(None, activates_lore=True)
    entries = [worded(f"entry {number}", 1.2, None, 5 + number) for number in range(8)]
    assert select_relevant(entries, least) == entries[3:]


def worded(name: str, aboutness: float, cosine: float | None, bm25: float) -> Candidate:
    """An entry as a search by words found it, and one by meaning if it has a cosine."""
    plain = candidate(name, cosine or 0.0, terms=bm25, kind="lore")
    signals = structs.replace(plain.signals, dense=cosine)
    return structs.replace(plain, signals=signals, aboutness=aboutness)
