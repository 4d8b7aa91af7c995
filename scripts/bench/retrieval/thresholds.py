"""Choose the thresholds for the cosines of an embedding model, and `best`.

Without `--model-path` the model is that of the settings (`TALEKEEPER_EMBEDDER` and others). It
receives about 400 short texts. The texts are those of `tests/fixtures`: questions for lines of
stories, lines that ask for lorebook entries, and everyday lines that are related to none of them.
The thresholds `dense` and `lore` admit the same share of unrelated pairs as MiniLM's thresholds,
which were chosen on more texts. The result belongs in `backend/memory/embedding/cosines.toml`.

`--locomo` also reports the strictest `dense` and `best` that keep recall@10 on LoCoMo's dialogues
within 1.5 points of recall without thresholds.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backend.core.logs import configure_logging
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.embedding.protocol import Embedder, ModelCosines, measure_cosines
from backend.memory.embedding.registry import build_embedder
from backend.memory.search.query import parse_query
from backend.memory.search.ranking import RankingThresholds, Weights, select_relevant
from backend.settings import Settings
from scripts.bench.retrieval import lore
from scripts.bench.retrieval.languages import PLAIN, read_stories
from scripts.bench.retrieval.locomo import LocomoRun, rank, search_dialogues
from scripts.bench.retrieval.measures import measure_recall
from scripts.bench.tables import new_parser
from scripts.bench.vectors import StoredVectors

DENSE_SHARE = 9 / 960
"""Share of the pairs of everyday lines and story lines above MiniLM's threshold of 0.29."""

LORE_SHARE = 6 / 1280
"""Share of the pairs of everyday lines and lorebook entries above MiniLM's threshold of 0.30."""

BEST_FACTORS = (1.0, 1.33, 1.5)
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1)
MAX_LOST_POINTS = 1.5


@dataclass(frozen=True)
class CosinePairs:
    """Cosines of related texts and of unrelated texts."""

    related: Any
    unrelated: Any


async def compare_stories(embedder: Embedder, everyday: Sequence[str]) -> CosinePairs:
    """Compare questions with their lines, and everyday lines with all lines, in English."""
    story = read_stories()["english"]
    texts = {line.id: line.text for line in story.lines}
    plain = [each for each in story.questions if each.category == PLAIN]
    questions = [parse_query(each.text, now=story.ended, cast=["Mira"]).meaning for each in plain]
    answers = [texts[line_id] for each in plain for line_id in each.gold]
    question_vectors = await embedder.embed(questions, "query")
    answer_vectors = await embedder.embed(answers, "document")
    line_vectors = await embedder.embed([*texts.values()], "document")
    unrelated = await embedder.embed(everyday, "query") @ line_vectors.T
    return CosinePairs((question_vectors * answer_vectors).sum(axis=1), unrelated.ravel())


async def compare_books(embedder: Embedder, data: Any) -> CosinePairs:
    """Compare lines with the entries that they ask for, and everyday lines with all entries."""
    books = (await lore.measure(embedder, data)).values()
    return CosinePairs(
        np.concatenate([each["related"] for each in books]),
        np.concatenate([each["unrelated"].ravel() for each in books]),
    )


def make_table(pairs: CosinePairs, chosen: float) -> list[str]:
    """Return the cosine and the share of found texts for shares of unrelated pairs."""
    lines = ["unrelated  cosine   found"]
    for share in sorted({*SHARES, chosen}):
        cosine = float(np.quantile(pairs.unrelated, 1 - share))
        lines.append(f"{100 * share:>8.2f}%{cosine:>8.3f}{(pairs.related >= cosine).mean():>8.0%}")
    return lines


async def fit(embedder: Embedder, data: Any) -> tuple[ModelCosines, list[str]]:
    """Return the thresholds of a model, and the tables that they come from."""
    measured = await measure_cosines(embedder.embed)
    stories = await compare_stories(embedder, data["unrelated"])
    books = await compare_books(embedder, data)
    cosines = ModelCosines(
        unrelated=measured.unrelated,
        dense=float(np.quantile(stories.unrelated, 1 - DENSE_SHARE)),
        lore=float(np.quantile(books.unrelated, 1 - LORE_SHARE)),
    )
    lines = ["Lines of stories", *make_table(stories, DENSE_SHARE)]
    lines += ["Entries of lorebooks", *make_table(books, LORE_SHARE)]
    by_rule = f"By the rule for models that are not in the table: {measured}"
    return cosines, [*lines, by_rule]


def make_locomo_table(run: LocomoRun, cosines: ModelCosines) -> list[str]:
    """Return recall@10 of categories 1 to 4 for each `dense` and `best`, and the strictest."""
    questions = [each for part in run.searched for each in part if each.question.category != 5]
    orders = [(rank(each, Weights())[0], each.question.gold) for each in questions]

    def average_recall(thresholds: RankingThresholds) -> float:
        kept = [
            [each.payload.source_id for each in select_relevant(order, thresholds)]
            for order, _ in orders
        ]
        recalls = (
            measure_recall(some, gold, 10) for some, (_, gold) in zip(kept, orders, strict=True)
        )
        return 100 * statistics.fmean(recalls)

    whole = average_recall(RankingThresholds(dense=0, sparse=0))
    lines = [f"{'dense':>8}{'best':>6}{'recall@10':>11}"]
    kept: list[tuple[float, float]] = []
    width = cosines.dense - cosines.unrelated
    for factor in (0.8, 0.9, 1.0, 1.1, 1.2):
        for best in BEST_FACTORS:
            dense = cosines.unrelated + factor * width
            thresholds = RankingThresholds(dense=dense, best=best, unrelated=cosines.unrelated)
            recall = average_recall(thresholds)
            lines.append(f"{dense:>8.3f}{best:>6}{recall:>11.1f}")
            if recall >= whole - MAX_LOST_POINTS:
                kept.append((dense, best))
    strictest = "dense {:.3f}, best {}".format(*max(kept)) if kept else "none of these"
    last = f"strictest within {MAX_LOST_POINTS} points: {strictest}"
    return [*lines, f"Without thresholds {whole:.1f}; {last}"]


async def choose(
    data: Any, model_path: Path | None, vectors: Path | None, locomo: Path | None
) -> list[str]:
    """Return the lines of the output."""
    given: dict[str, Any] = {}  # all settings come from the environment
    embedder = LocalEmbedder(model_path, workers=2) if model_path else None
    model: Embedder | None = embedder or build_embedder(Settings(**given))
    if model is None:
        raise SystemExit("No embedding model: use --model-path, or name a provider in settings.")
    if vectors:
        model = StoredVectors(model, vectors)
    spec = await model.ready()
    cosines, lines = await fit(model, data)
    if locomo:
        lines += make_locomo_table(await search_dialogues(locomo, model), cosines)
    else:
        await model.aclose()
    values = [f"{name} = {getattr(cosines, name):.2f}" for name in ("unrelated", "dense", "lore")]
    return [*lines, "", f'[models."{spec.model.rpartition("/")[2].lower()}"]', *values]


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval thresholds", __doc__)
    parser.add_argument("--model-path", type=Path, help="folder of the embedding model")
    parser.add_argument("--vectors", type=Path, help="folder that stores vectors between runs")
    parser.add_argument("--locomo", type=Path, help="LoCoMo's file")
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    data = json.loads(lore.BOOKS.read_text(encoding="utf-8"))
    found = asyncio.run(choose(data, options.model_path, options.vectors, options.locomo))
    print("\n".join(found))
