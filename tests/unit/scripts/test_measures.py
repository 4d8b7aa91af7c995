"""Measures of rankings, against values that were computed by hand."""

from __future__ import annotations

from math import log2

import pytest

from scripts.bench.retrieval.measures import (
    average,
    measure_budgets,
    measure_first,
    measure_hits,
    measure_ndcg,
    measure_ranking,
    measure_recall,
    rank_units,
)

ORDER = "abcdefghijkl"


@pytest.mark.parametrize(
    ("gold", "count", "recall"),
    [("a", 5, 1), ("f", 5, 0), ("aek", 5, 2 / 3), ("aek", 11, 1), ("az", 50, 1 / 2), ("a", 0, 0)],
)
def test_recall_is_the_share_of_gold_among_the_first(gold: str, count: int, recall: float) -> None:
    assert measure_recall(ORDER, gold, count) == recall


def test_a_repeated_id_takes_one_place() -> None:
    assert measure_recall("aaab", "b", 2) == 1
    assert measure_ndcg("aaab", "b", 2) == 1 / log2(3)
    assert measure_budgets("aab", "b", {"a": 1000, "b": 24})["1024t"] == 1


@pytest.mark.parametrize(
    ("gold", "usual", "original"),
    [
        ("a", 1, 1),
        ("b", 1 / log2(3), 1),
        ("c", 1 / 2, 1 / log2(3)),
        ("bd", (1 / log2(3) + 1 / log2(5)) / (1 + 1 / log2(3)), (1 + 1 / 2) / 2),
        ("az", 1 / (1 + 1 / log2(3)), 1 / 2),
        ("k", 0, 0),
    ],
)
def test_ndcg_discounts_later_places(gold: str, usual: float, original: float) -> None:
    assert measure_ndcg(ORDER, gold, 10) == pytest.approx(usual)
    assert measure_ndcg(ORDER, gold, 10, shift=0) == pytest.approx(original)


def test_ndcg_is_perfect_if_only_gold_comes_first() -> None:
    assert measure_ndcg(ORDER, ORDER[:3], 10) == 1
    assert measure_ndcg(ORDER, ORDER, 10) == pytest.approx(1)


def test_one_line_is_a_hit_and_all_lines_are_a_complete_answer() -> None:
    assert measure_hits(ORDER, "ef") == {
        "any@5": 1,
        "all@5": 0,
        "coverage@5": 1 / 2,
        "NDCG@5": pytest.approx(1 / log2(6) / (1 + 1 / log2(3))),
        "any@10": 1,
        "all@10": 1,
        "coverage@10": 1,
        "NDCG@10": pytest.approx((1 / log2(6) + 1 / log2(7)) / (1 + 1 / log2(3))),
    }
    assert measure_hits(ORDER, "kl") == dict.fromkeys(measure_hits(ORDER, "kl"), 0)


def test_a_budget_ends_before_the_text_that_exceeds_it() -> None:
    tokens = {"a": 1000, "b": 24, "c": 1025, "d": 1}
    assert measure_budgets("abcd", "abd", tokens) == {
        "1024t": 2 / 3,
        "2048t": 2 / 3,
        "4096t": 1,
    }


def test_a_ranking_has_every_measure() -> None:
    figures = measure_ranking(ORDER, "ak", dict.fromkeys(ORDER, 200))
    recalls = {"@5": 1 / 2, "@10": 1 / 2, "@20": 1, "@50": 1}
    hits = {"any@5": 1, "any@10": 1, "all@10": 0, "NDCG@10": 1 / (1 + 1 / log2(3))}
    assert figures == recalls | hits | {"1024t": 1 / 2, "2048t": 1 / 2, "4096t": 1}


def test_the_best_line_decides_the_place_of_its_session() -> None:
    assert rank_units("dacb", {"a": 1, "b": 1, "c": 2, "d": 3}) == [3, 1, 2]


def test_averages_are_in_per_cent_and_by_group() -> None:
    scores = [(1, {"@5": 1.0}), (1, {"@5": 0.0}), (2, {"@5": 1.0})]
    groups = {"all": (1, 2), "first": (1,), "none": (3,)}
    assert average(scores, groups) == {"all": {"@5": 66.7}, "first": {"@5": 50.0}}


def test_a_missing_line_is_not_among_the_first() -> None:
    assert measure_first([0, 4, 5, None], 5) == 50
