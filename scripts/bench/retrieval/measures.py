"""Measures of a ranking: recall, hits, NDCG, and gold within a number of tokens.

A ranking is a sequence of ids, best first; a repeated id counts at its first place. Gold are the
ids that answer a question, at least one. Every measure is a share from 0 to 1.

The ids may be of any unit. `rank_units` turns a ranking of messages into one of chunks or sessions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

RECALL_COUNTS = (5, 10, 20, 50)
HIT_COUNTS = (5, 10)
TOKEN_BUDGETS = (1024, 2048, 4096)

Figures = Mapping[str, float]
ScoredQuestions = Sequence[tuple[Hashable, Figures]]
"""(category, figures) of each question."""

_Id = TypeVar("_Id", bound=Hashable)
_Unit = TypeVar("_Unit", bound=Hashable)


def measure_recall(order: Sequence[_Id], gold: Collection[_Id], count: int) -> float:
    """Return the share of gold among the first `count` ids. Others call it coverage."""
    first = [*dict.fromkeys(order)][:count]
    return len(set(gold).intersection(first)) / len(set(gold))


def measure_ndcg(
    order: Sequence[_Id], gold: Collection[_Id], count: int, *, shift: int = 1
) -> float:
    """Return the normalised discounted cumulative gain of the first `count` ids.

    Gold has the gain 1, everything else 0. The discount of a place, from 1, is
    log2(place + shift), at least 1. A `shift` of 1 is the usual definition; 0 is that of Järvelin
    and Kekäläinen (TOIS 2002) with base 2, which LongMemEval uses.
    """
    gains = [1 / math.log2(max(place + shift, 2)) for place in range(1, count + 1)]
    first = [*dict.fromkeys(order)][:count]
    reached = sum(gain for gain, each in zip(gains, first, strict=False) if each in gold)
    return reached / sum(gains[: len(set(gold))])


def measure_hits(
    order: Sequence[_Id],
    gold: Collection[_Id],
    *,
    counts: Sequence[int] = HIT_COUNTS,
    shift: int = 1,
) -> dict[str, float]:
    """Return any@k, all@k, coverage@k and NDCG@k for each k of `counts`."""
    figures: dict[str, float] = {}
    for count in counts:
        recall = measure_recall(order, gold, count)
        figures |= {
            f"any@{count}": float(recall > 0),
            f"all@{count}": float(recall == 1),
            f"coverage@{count}": recall,
            f"NDCG@{count}": measure_ndcg(order, gold, count, shift=shift),
        }
    return figures


def measure_budgets(
    order: Sequence[_Id], gold: Collection[_Id], tokens: Mapping[_Id, int]
) -> dict[str, float]:
    """Return the recall within each of `TOKEN_BUDGETS`.

    A budget ends before the first text that exceeds it.
    """
    figures: dict[str, float] = {}
    for budget in TOKEN_BUDGETS:
        spent, kept = 0, 0
        for each in (unique := [*dict.fromkeys(order)]):
            spent += tokens[each]
            if spent > budget:
                break
            kept += 1
        figures[f"{budget}t"] = measure_recall(unique, gold, kept)
    return figures


def measure_ranking(
    order: Sequence[_Id], gold: Collection[_Id], tokens: Mapping[_Id, int]
) -> dict[str, float]:
    """Return the recall at each of `RECALL_COUNTS`, the hits, and the recall within budgets."""
    recalls = {f"@{count}": measure_recall(order, gold, count) for count in RECALL_COUNTS}
    hits = measure_hits(order, gold)
    hits = {name: hits[name] for name in ("any@5", "any@10", "all@10", "NDCG@10")}
    return recalls | hits | measure_budgets(order, gold, tokens)


def rank_units(order: Sequence[_Id], units: Mapping[_Id, _Unit]) -> list[_Unit]:
    """Return the units of a ranking. The best member decides the place of its unit."""
    return [*dict.fromkeys(units[each] for each in order)]


def average(
    scores: ScoredQuestions, groups: Mapping[str, Collection[Hashable]]
) -> dict[str, dict[str, float]]:
    """Return mean figures in per cent of each group of categories that has questions."""
    rows: dict[str, dict[str, float]] = {}
    for title, categories in groups.items():
        some = [figures for category, figures in scores if category in categories]
        if some:
            rows[title] = {
                name: round(100 * statistics.fmean(each[name] for each in some), 1)
                for name in some[0]
            }
    return rows


def measure_first(places: Sequence[int | None], count: int) -> int:
    """Return the share of lines among the first `count`, in per cent, from places from 0."""
    found = sum(place is not None and place < count for place in places)
    return round(100 * found / len(places))
