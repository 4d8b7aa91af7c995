"""Budgets of history and retrieval, and truncation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from backend.context.budget import Budget, fill, find_eviction_point, find_middle_gap

LINES = st.lists(st.integers(1, 400), max_size=120)


@dataclass(frozen=True)
class Piece:
    tokens: int


def kept(lines: list[int], budget: int) -> list[int]:
    """Indices of the lines that are wholly after the eviction point, as the query selects them."""
    sums = list(accumulate(lines))
    point = find_eviction_point(sums[-1] if sums else 0, budget)
    return [index for index, total in enumerate(sums) if total - lines[index] >= point]


@given(LINES, st.integers(0, 5_000))
def test_kept_history_is_an_unbroken_run_that_ends_with_the_newest_line(
    lines: list[int], budget: int
) -> None:
    indices = kept(lines, budget)
    assert indices == list(range(len(lines) - len(indices), len(lines)))


@given(LINES, st.integers(0, 5_000))
def test_kept_history_never_takes_more_than_its_budget(lines: list[int], budget: int) -> None:
    assert sum(lines[index] for index in kept(lines, budget)) <= budget


@given(LINES, st.integers(0, 5_000))
def test_growing_the_budget_never_drops_a_kept_line(lines: list[int], budget: int) -> None:
    assert set(kept(lines, budget)) <= set(kept(lines, budget + 1))


@given(st.integers(0, 100_000), st.integers(1, 50_000))
def test_at_most_a_tenth_of_the_budget_stays_unused(path: int, budget: int) -> None:
    left = path - find_eviction_point(path, budget)
    assert left == path if path <= budget else left > budget - max(1, budget // 10)


def test_a_path_within_the_budget_is_kept_whole() -> None:
    assert find_eviction_point(150_000, 150_000) == 0


def test_the_beginning_stays_the_same_for_many_turns() -> None:
    budget = 150_000
    points = [find_eviction_point(length, budget) for length in range(0, 2_000_000, 300)]
    moves = sum(1 for one, other in pairwise(points) if one != other)
    assert moves < 2_000_000 / (budget / 20)


def test_never_skips_a_long_line_to_reach_an_older_short_one() -> None:
    assert kept([10, 10, 500, 10], 60) == [3]


@given(st.lists(st.integers(1, 100).map(Piece)), st.integers(0, 500))
def test_filling_takes_fitting_pieces_by_rank(pieces: list[Piece], budget: int) -> None:
    taken, passed = fill(pieces, budget)
    left = budget - sum(piece.tokens for piece in taken)
    assert left >= 0
    assert len(taken) + len(passed) == len(pieces)
    assert all(piece.tokens > left for piece in passed)


def test_a_piece_that_does_not_fit_is_skipped_for_a_smaller_one() -> None:
    large, small = Piece(90), Piece(10)
    assert fill([Piece(50), large, small], 60) == ([Piece(50), small], [large])


@given(
    st.lists(st.tuples(st.integers(1, 100), st.booleans()), max_size=60),
    st.integers(1, 3_000),
    st.integers(1, 20),
    st.integers(2, 12),
)
def test_truncation_spares_the_first_message_and_the_last_exchange(
    lines: list[tuple[int, bool]], excess: int, gap_tokens: int, min_tail: int
) -> None:
    tokens = [size for size, _ in lines]
    gap = find_middle_gap(
        tokens,
        [start for _, start in lines],
        excess=excess,
        gap_tokens=gap_tokens,
        min_tail=min_tail,
    )
    if gap is None:
        assert sum(tokens[1:-2]) - gap_tokens < excess
        return
    assert gap.start == 1
    assert gap.stop <= len(tokens) - 2
    assert sum(tokens[gap.start : gap.stop]) - gap_tokens >= excess


@given(
    st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=4, max_size=60),
    st.integers(1, 2_000),
    st.integers(2, 12),
)
def test_a_larger_limit_never_takes_more_out(
    lines: list[tuple[int, bool]], excess: int, min_tail: int
) -> None:
    tokens, starts = [size for size, _ in lines], [start for _, start in lines]
    less = find_middle_gap(tokens, starts, excess=excess, gap_tokens=5, min_tail=min_tail)
    more = find_middle_gap(tokens, starts, excess=excess + 1, gap_tokens=5, min_tail=min_tail)
    assert more is None or (less is not None and less.stop <= more.stop)


def test_whole_turns_go_before_the_tail_is_touched() -> None:
    # Turns of two lines, the user's first; eight lines at the end are spared.
    starts = [index % 2 == 0 for index in range(20)]
    gap = find_middle_gap([10] * 20, starts, excess=25, gap_tokens=5, min_tail=8)
    assert gap is not None
    assert (gap.start, gap.stop) == (1, 4)


def test_the_tail_shrinks_only_when_whole_turns_are_not_enough() -> None:
    starts = [index % 2 == 0 for index in range(12)]
    gap = find_middle_gap([10] * 12, starts, excess=60, gap_tokens=5, min_tail=8)
    assert gap is not None
    assert gap.stop == 8


ASKED = Budget(
    total=200_000, history=150_000, retrieval=50_000, reply_reserve=8_192, min_tail_messages=8
)


@given(st.integers(0, 300_000))
def test_in_a_smaller_window_budgets_become_shares_of_it(window: int) -> None:
    found = ASKED.within(window)
    if window >= ASKED.total:
        assert found == ASKED
        return
    assert found.total == window
    assert found.reply_reserve == min(8_192, window // 4)
    assert found.history + found.retrieval == found.prompt
    assert abs(found.history - 3 * found.retrieval) <= 4


def test_budgets_that_fit_a_smaller_window_stay_as_they_are() -> None:
    small = replace(ASKED, history=10_000, retrieval=5_000)
    assert small.within(32_000) == replace(small, total=32_000, reply_reserve=8_000)
    short = replace(ASKED, history=800)
    assert short.within(16_000).history == 800
    assert short.within(16_000).retrieval == 16_000 - 4_000 - 800
    nothing = replace(ASKED, history=0, retrieval=0)
    assert nothing.within(1_000) == replace(nothing, total=1_000, reply_reserve=250)


def test_shares_of_the_window_never_go_below_nothing() -> None:
    budget = Budget(total=1000, history=600, retrieval=300, reply_reserve=100, min_tail_messages=2)
    assert budget.prompt == 900
    assert budget.for_history(950) == 0
    assert budget.for_history(100) == 600
    assert budget.for_retrieval(100, 600) == 200
    assert budget.for_retrieval(800, 200) == 0
