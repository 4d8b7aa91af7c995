"""Fit the weights of the ranking on LoCoMo and on questions in other words.

The loss is a softmax over the candidates of a question: the likelihood of its gold. The weights
have fixed signs and a ridge. Each fold leaves out one dialogue of LoCoMo and one chat of CRD3, and
is scored by them. The ridge and the share of CRD3 of a fold are those that are best on the other
folds. The last row has the shipped weights.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backend.core.logs import configure_logging
from backend.memory.embedding.protocol import Embedder
from backend.memory.search.features import FEATURES, SIGNALS, FeatureTable
from backend.memory.search.ranking import Weights, apply_curve
from scripts.bench.data import CRD3, LOCOMO
from scripts.bench.retrieval.locomo import (
    CATEGORY_GROUPS,
    LocomoRun,
    SearchedQuestion,
    list_distinct,
    print_figures,
    rank,
    read_dialogues,
    search_dialogues,
    summarize,
)
from scripts.bench.retrieval.measures import measure_budgets, measure_recall
from scripts.bench.retrieval.paraphrase import (
    RECENT_MESSAGES,
    make_line_id,
    read_probes,
    read_transcript,
    split_chats,
)
from scripts.bench.retrieval.search import Dialogue, Question, add_model_options, open_model
from scripts.bench.tables import new_parser, print_grid

CHAT_SIZE = 1500
RIDGES = (1e-3, 1e-2)
CRD3_SHARES = (0.0, 0.1, 0.3)
"""Weights of a question of CRD3, relative to one of LoCoMo."""

ADVERSARIAL, ADVERSARIAL_WEIGHT = 5, 0.6
"""Adversarial questions name the wrong speaker, which is rare in real questions."""

STEPS, RATE = 150, 0.05

SIGNS = np.array([-1.0 if name == "question" else 1.0 for name in FEATURES], dtype=np.float32)


class Choice(NamedTuple):
    """The ridge, and the weight of a question of CRD3."""

    ridge: float
    share: float


class Tables(NamedTuple):
    """The features of q questions with n candidates at most, shape (q, n, f).

    `is_candidate` and `target` have shape (q, n). The targets of a question sum to 1, or are all 0
    if no gold was found. `weights` has shape (q,).
    """

    values: NDArray[np.float32]
    is_candidate: NDArray[np.bool_]
    target: NDArray[np.float32]
    weights: NDArray[np.float32]


def make_tables(searched: Sequence[SearchedQuestion]) -> Tables:
    tables = [
        FeatureTable(each.found, speakers=each.speakers, spans=each.reading.spans)
        for each in searched
    ]
    shape = len(tables), max(len(table.lines) for table in tables)
    values = np.zeros((*shape, len(FEATURES)), dtype=np.float32)
    is_candidate, target = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.float32)
    weights = np.zeros(len(tables), dtype=np.float32)
    for row, (table, each) in enumerate(zip(tables, searched, strict=True)):
        count = len(table.lines)
        values[row, :count], is_candidate[row, :count] = apply_curve(table.values), True
        gold = np.array([line.source_id in each.question.gold for line in table.lines])
        if gold.any():
            target[row, :count] = gold / gold.sum()
            is_adversarial = each.question.category == ADVERSARIAL
            weights[row] = ADVERSARIAL_WEIGHT if is_adversarial else 1.0
    return Tables(values, is_candidate, target, weights)


def fit_weights(parts: Sequence[tuple[Tables, float]], ridge: float) -> Weights:
    """Return the weights that rank gold highest on average.

    Each of `parts` has a weight for its questions. By gradient (Adam). Source of the loss: Cao et
    al., ICML 2007 (ListNet).
    """
    count = len(FEATURES)
    weights = (0.5 * SIGNS).astype(np.float32)
    mean, square = np.zeros(count, np.float32), np.zeros(count, np.float32)
    total = sum(share * float(tables.weights.sum()) for tables, share in parts)
    for step in range(1, STEPS + 1):
        gradient = ridge * weights
        for tables, share in parts:
            scores = np.where(tables.is_candidate, tables.values @ weights, -np.inf)
            guess = np.exp(scores - scores.max(axis=1, keepdims=True))
            guess /= guess.sum(axis=1, keepdims=True)
            pull = (guess - tables.target) * (share * tables.weights[:, None] / total)
            gradient += np.tensordot(pull, tables.values, axes=2)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient**2
        pace = np.sqrt(square / (1 - 0.99**step)) + 1e-8
        weights = weights - RATE * (mean / (1 - 0.9**step)) / pace
        weights[weights * SIGNS < 0] = 0
    weights /= weights[: len(SIGNALS) + 1].sum()
    chosen = {name: round(float(w), 3) for name, w in zip(FEATURES, weights, strict=True)}
    return replace(Weights(), **chosen)


def list_probe_chats(folder: Path) -> Iterator[Dialogue]:
    """Yield the chats of CRD3 without their history, with the questions about them."""
    lines = read_transcript(folder)
    probes = read_probes(lines)
    for chat in split_chats(lines, CHAT_SIZE):
        searched = chat.lines[:-RECENT_MESSAGES]
        ids = {line.id for line in searched}
        asked = [
            Question(each.question, each.number % 2 + 1, frozenset({line_id}))
            for each in probes
            if (line_id := make_line_id(CHAT_SIZE, each.place)) in ids
        ]
        if asked:
            yield replace(chat, lines=searched, questions=asked, sessions=dict.fromkeys(ids, "1"))


def measure(run: LocomoRun, dialogue: int, weights: Weights) -> list[dict[str, float]]:
    """Return the figures of each question of a dialogue."""
    found: list[dict[str, float]] = []
    for searched in run.searched[dialogue]:
        order, gold = list_distinct(searched, rank(searched, weights)), searched.question.gold
        recalls = {f"@{count}": measure_recall(order, gold, count) for count in (10, 40)}
        recalls |= measure_budgets(order, gold, run.tokens)
        found.append({"category": searched.question.category, **recalls})
    return found


def summarize_folds(
    locomo: Sequence[Sequence[dict[str, float]]], crd3: Sequence[Sequence[dict[str, float]]]
) -> dict[str, float]:
    """Return mean figures in per cent. The criterion is the mean of @10 of both sets."""
    own = [each for fold in locomo for each in fold]
    usual = [each for each in own if each["category"] in CATEGORY_GROUPS["1-4"]]
    hard = [each for each in own if each["category"] == ADVERSARIAL]
    other = [each for fold in crd3 for each in fold]

    def average(some: Sequence[dict[str, float]], name: str) -> float:
        return round(100 * statistics.fmean(each[name] for each in some), 1)

    return {
        "@10": average(usual, "@10"),
        "1024t": average(usual, "1024t"),
        "adversarial @10": average(hard, "@10"),
        "other words @10": average(other, "@10"),
        "@40": average(other, "@40"),
        "their 1024t": average(other, "1024t"),
        "criterion": round((average(own, "@10") + average(other, "@10")) / 2, 2),
    }


async def fit(
    locomo: Path, crd3: Path, open_embedder: Callable[[], Embedder]
) -> tuple[dict[str, dict[str, float]], Weights, dict[str, object]]:
    """Return the figures of each choice, the weights for both sets, and LoCoMo's left-one-out."""
    runs = [
        await search_dialogues(read_dialogues(locomo), open_embedder()),
        await search_dialogues([*list_probe_chats(crd3)], open_embedder()),
    ]
    tables = [[make_tables(part) for part in run.searched] for run in runs]
    folds = len(tables[0])

    def train(choice: Choice, left_out: int | None) -> Weights:
        parts = [
            (each, share)
            for some, share in zip(tables, (1.0, choice.share), strict=True)
            for number, each in enumerate(some)
            if number != left_out and share
        ]
        return fit_weights(parts, choice.ridge)

    choices = [Choice(*each) for each in itertools.product(RIDGES, CRD3_SHARES)]
    fitted = {each: [train(each, fold) for fold in range(folds)] for each in choices}
    scored = {
        each: [
            [measure(run, fold, some[fold]) for fold in range(len(run.searched))] for run in runs
        ]
        for each, some in fitted.items()
    }

    def find_best(left_out: int | None) -> Choice:
        def criterion(choice: Choice) -> float:
            kept = [
                [each for fold, each in enumerate(some) if fold != left_out]
                for some in scored[choice]
            ]
            return summarize_folds(*kept)["criterion"]

        return max(choices, key=criterion)

    rows = {
        f"ridge {each.ridge}, CRD3 {each.share}": summarize_folds(*some)
        for each, some in scored.items()
    }
    best = [find_best(fold) for fold in range(folds)]
    rows["left-one-out"] = summarize_folds(
        *([scored[best[fold]][at][fold] for fold in range(len(runs[at].searched))] for at in (0, 1))
    )
    rows["shipped"] = summarize_folds(
        *([measure(run, fold, Weights()) for fold in range(len(run.searched))] for run in runs)
    )
    nested = [fitted[each][fold] for fold, each in enumerate(best)]
    return rows, train(find_best(None), None), summarize(runs[0], nested)


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval fit", __doc__)
    parser.add_argument("--locomo", type=Path, default=LOCOMO, help="LoCoMo's file")
    parser.add_argument("--data", type=Path, default=CRD3, help="folder of CRD3's transcripts")
    add_model_options(parser)
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    rows, weights, figures = asyncio.run(
        fit(options.locomo, options.data, partial(open_model, options))
    )
    if options.json:
        print(json.dumps({"choices": rows, "left-one-out": figures}, indent=2))
        return
    print_figures(figures)
    print_grid("LoCoMo; questions in other words", rows, width=30)
    print(f"\nWeights for both sets: {weights}")
