"""Choose the weight of scenes for questions that ask for several things (`diversity.SCENE`).

The criterion is recall@10 of LoCoMo's categories 1 to 4. A dialogue is scored with weights that are
fitted on the others, and in the last row with the share that is best on the others.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path

from backend.core.logs import configure_logging
from scripts.bench.data import LOCOMO
from scripts.bench.retrieval.locomo import (
    CATEGORY_GROUPS,
    LocomoRun,
    diversify,
    fit_without,
    rank,
    search_dialogues,
)
from scripts.bench.retrieval.measures import measure_recall
from scripts.bench.retrieval.search import add_model_options, open_model
from scripts.bench.tables import new_parser, print_grid

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
DialogueScores = list[tuple[int, float]]
"""(category, recall@10) of each question of a dialogue."""


def score_shares(run: LocomoRun, shares: Sequence[float]) -> dict[float, list[DialogueScores]]:
    """Return the scores of each share and dialogue."""
    scores: dict[float, list[DialogueScores]] = {share: [] for share in shares}
    for number, part in enumerate(run.searched):
        weights = fit_without(run, number)
        for share in shares:
            found: DialogueScores = []
            for searched in part:
                turns = diversify(searched, *rank(searched, weights, share=share))
                recall = measure_recall(turns, searched.question.gold, 10)
                found.append((searched.question.category, recall))
            scores[share].append(found)
    return scores


def average_recall(scores: Sequence[DialogueScores], categories: Sequence[int]) -> float:
    """Return the mean over the questions of some categories, in per cent."""
    values = [value for part in scores for category, value in part if category in categories]
    return round(100 * statistics.fmean(values), 1)


def choose_without(scores: dict[float, list[DialogueScores]], dialogue: int) -> float:
    """Return the share that is best on all dialogues except one."""

    def average_others(share: float) -> float:
        others = [part for at, part in enumerate(scores[share]) if at != dialogue]
        return average_recall(others, CATEGORY_GROUPS["1-4"])

    return max(scores, key=average_others)


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval breadth", __doc__)
    parser.add_argument("--data", type=Path, default=LOCOMO, help="LoCoMo's file")
    add_model_options(parser)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    run = asyncio.run(search_dialogues(options.data, open_model(options)))
    scores = score_shares(run, options.shares)
    best = [choose_without(scores, number) for number in range(len(run.dialogues))]
    rows = {f"{share}": some for share, some in scores.items()}
    rows["left-one-out"] = [scores[share][number] for number, share in enumerate(best)]
    figures = {
        label: {title: average_recall(some, each) for title, each in CATEGORY_GROUPS.items()}
        for label, some in rows.items()
    }
    print_grid("share", figures)
    print(f"Chosen on the others: {', '.join(map(str, best))}")
