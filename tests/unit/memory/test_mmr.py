from __future__ import annotations

from uuid import UUID, uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.memory.index.protocol import Floats, Payload
from backend.memory.search import ranking as mmr
from backend.memory.search.features import Candidate


def candidate(score: float) -> Candidate:
    row = uuid4()
    payload = Payload(owner_id=uuid4(), kind="message", container_id=uuid4(), source_id=row)
    return Candidate(id=row, payload=payload, score=score)


def at(degrees: float) -> Floats:
    turned = np.radians(degrees)
    return np.array([np.cos(turned), np.sin(turned)], dtype=np.float32)


def test_what_says_the_same_as_something_better_is_dropped() -> None:
    best, same, other = candidate(0.9), candidate(0.8), candidate(0.7)
    vectors = {best.id: at(0), same.id: at(2), other.id: at(60)}
    assert mmr.select([best, same, other], vectors, count=3) == [best, other]


def test_the_order_stays_where_relevance_is_all_that_counts() -> None:
    some = [candidate(score) for score in (0.9, 0.8, 0.7)]
    vectors = {each.id: at(20 * place) for place, each in enumerate(some)}
    assert mmr.select(some, vectors, count=2, relevance_weight=1) == some[:2]


def test_a_lower_weight_prefers_what_is_new() -> None:
    best, near, far = candidate(0.9), candidate(0.85), candidate(0.7)
    vectors = {best.id: at(0), near.id: at(25), far.id: at(90)}
    assert mmr.select([best, near, far], vectors, count=2, relevance_weight=0.5) == [best, far]


def test_what_has_no_vector_repeats_nothing() -> None:
    some = [candidate(0.9), candidate(0.9)]
    assert mmr.select(some, {}, count=5) == some
    assert mmr.select(some, {some[0].id: at(0)}, count=5) == some


def test_nothing_is_picked_from_nothing_and_nothing_when_none_is_wanted() -> None:
    assert mmr.select([], {}, count=3) == []
    assert mmr.select([candidate(1)], {}, count=0) == []


@pytest.mark.parametrize("weight", [-0.1, 1.1])
def test_a_weight_outside_zero_to_one_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        mmr.select([candidate(1)], {}, count=1, relevance_weight=weight)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 360)), max_size=20),
    st.integers(0, 10),
    st.floats(0, 1),
)
def test_picks_are_candidates_once_each_and_none_near_another(
    given_ones: list[tuple[float, float]], count: int, weight: float
) -> None:
    some = sorted((candidate(score) for score, _ in given_ones), key=lambda each: -each.score)
    vectors: dict[UUID, Floats] = {
        each.id: at(angle) for each, (_, angle) in zip(some, given_ones, strict=True)
    }
    picked = mmr.select(some, vectors, count=count, relevance_weight=weight)
    assert len(picked) <= count
    assert len({each.id for each in picked}) == len(picked)
    assert all(
        float(vectors[one.id] @ vectors[other.id]) < mmr.SAME
        for place, one in enumerate(picked)
        for other in picked[:place]
    )
