from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.generation.tokens import RATIO_BOUNDS, learn_ratio


def learn(reports: list[tuple[int, int]], *, start: float = 1.06) -> tuple[float, int]:
    ratio, samples = start, 0
    for counted, reported in reports:
        ratio, samples = learn_ratio(ratio, samples, counted=counted, reported=reported)
    return ratio, samples


def test_it_comes_to_what_the_provider_keeps_reporting() -> None:
    ratio, samples = learn([(10_000, 12_000)] * 40)

    assert ratio == pytest.approx(1.2, rel=0.01)
    assert samples == 40


def test_the_first_report_moves_it_half_way() -> None:
    ratio, samples = learn([(10_000, 12_600)])

    assert ratio == pytest.approx(1.16)
    assert samples == 1


def test_a_tiny_prompt_teaches_nothing() -> None:
    assert learn([(100, 300)]) == (1.06, 0)


@pytest.mark.parametrize("reported", [0, -1])
def test_a_report_of_nothing_teaches_nothing(reported: int) -> None:
    assert learn([(10_000, reported)]) == (1.06, 0)


def test_one_wild_report_hardly_moves_a_settled_ratio() -> None:
    settled = [(10_000, 11_000)] * 30

    ratio, _ = learn([*settled, (10_000, 1_000)])

    assert ratio == pytest.approx(1.1, rel=0.02)


def test_it_follows_a_lasting_change() -> None:
    ratio, _ = learn([*([(10_000, 11_000)] * 100), *([(10_000, 18_000)] * 400)])

    assert ratio == pytest.approx(1.8, rel=0.02)


@given(
    st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 10_000_000)), max_size=100),
    st.floats(*RATIO_BOUNDS),
)
def test_it_stays_within_its_bounds_whatever_is_reported(
    reports: list[tuple[int, int]], start: float
) -> None:
    ratio, samples = learn(reports, start=start)

    low, high = RATIO_BOUNDS
    assert low <= ratio <= high
    assert samples <= len(reports)
