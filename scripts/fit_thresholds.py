#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""Chooses what the cosines of an embedding model say, and `best` beside them.

    scripts/fit_thresholds.py [--model-path DIR] [--vectors DIR] [--locomo FILE]

Without a folder the model is the one that the settings name (`TALEKEEPER_EMBEDDER` and the rest),
which some 400 short texts are sent to. The texts are those of `tests/fixtures`: questions for lines
of stories, lines that ask for entries of lorebooks, and everyday lines that have to do with none of
them. `dense` and `lore` let as many of the unrelated pairs in as MiniLM's do, which were chosen on
more than that. What comes out belongs into `backend/memory/embedding/cosines.toml`.

`--locomo` asks the dialogues of LoCoMo, too, and gives the strictest `dense` and `best` that keep
recall@10 to within a point and a half of what it is without thresholds. It needs a folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backend.core.logs import configure_logging
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.embedding.protocol import Embedder, ModelCosines, measured_cosines
from backend.memory.embedding.registry import build_embedder
from backend.memory.search.query import read
from backend.memory.search.ranking import RankingThresholds, Weights, relevant
from backend.settings import Settings
from scripts._vectors import KeptVectors
from scripts.bench_languages import PLAIN, read_stories
from scripts.bench_locomo import Bench, ranked, run
from scripts.bench_lore import BOOKS
from scripts.bench_lore import measure as lore_pairs

DENSE_SHARE = 9 / 960
"""Of everyday lines and lines of a story, the pairs that MiniLM's 0.29 lets in."""

LORE_SHARE = 6 / 1280
"""Of everyday lines and entries, the pairs that its 0.30 lets in."""

BESTS = (1.0, 1.33, 1.5)
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1)
LOST = 1.5
"""Points of recall@10 that thresholds may take."""


@dataclass(frozen=True)
class Pairs:
    """Cosines of texts that belong together, and of texts that do not."""

    meant: Any
    unrelated: Any


async def story_pairs(embedder: Embedder, everyday: Sequence[str]) -> Pairs:
    """Questions with their lines, and everyday lines with all lines, of the English story."""
    story = read_stories()["english"]
    texts = {line.id: line.text for line in story.lines}
    plain = [each for each in story.questions if each.category == PLAIN]
    asked = [read(each.text, now=story.ended, cast=["Mira"]).meaning for each in plain]
    gold = [texts[line_id] for each in plain for line_id in each.gold]
    near = await embedder.embed(asked, "query"), await embedder.embed(gold, "document")
    told = await embedder.embed([*texts.values()], "document")
    far = await embedder.embed(everyday, "query") @ told.T
    return Pairs((near[0] * near[1]).sum(axis=1), far.ravel())


async def book_pairs(embedder: Embedder, data: Any) -> Pairs:
    """Lines with the entries that they ask for; everyday lines with all entries."""
    books = (await lore_pairs(embedder, data)).values()
    return Pairs(
        np.concatenate([each["asked"] for each in books]),
        np.concatenate([each["unrelated"].ravel() for each in books]),
    )


def table(pairs: Pairs, chosen: float) -> list[str]:
    """By share of the unrelated pairs that come in: the cosine, and what is found with it."""
    lines = ["unrelated  cosine   found"]
    for share in sorted({*SHARES, chosen}):
        cosine = float(np.quantile(pairs.unrelated, 1 - share))
        lines.append(f"{100 * share:>8.2f}%{cosine:>8.3f}{(pairs.meant >= cosine).mean():>8.0%}")
    return lines


async def fit(embedder: Embedder, data: Any) -> tuple[ModelCosines, list[str]]:
    """What the cosines say, by the shipped texts (`BOOKS`), and the tables behind it."""
    measured = await measured_cosines(embedder.embed)
    stories = await story_pairs(embedder, data["unrelated"])
    books = await book_pairs(embedder, data)
    cosines = ModelCosines(
        unrelated=measured.unrelated,
        dense=float(np.quantile(stories.unrelated, 1 - DENSE_SHARE)),
        lore=float(np.quantile(books.unrelated, 1 - LORE_SHARE)),
    )
    lines = ["Lines of stories", *table(stories, DENSE_SHARE)]
    lines += ["Entries of lorebooks", *table(books, LORE_SHARE)]
    by_rule = f"By the rule for models that are not in the table: {measured}"
    return cosines, [*lines, by_rule]


def locomo_table(bench: Bench, cosines: ModelCosines) -> list[str]:
    """Recall@10 of categories 1 to 4 with each `dense` and `best`, and the strictest ones."""
    asked = [each for part in bench.searched for each in part if each.question.category != 5]
    orders = [(ranked(each, Weights())[0], each.question.gold) for each in asked]

    def recall(least: RankingThresholds) -> float:
        found = (
            len(gold & {each.payload.source_id for each in relevant(order, least)[:10]}) / len(gold)
            for order, gold in orders
        )
        return 100 * statistics.fmean(found)

    whole = recall(RankingThresholds(dense=0, sparse=0))
    lines = [f"{'dense':>8}{'best':>6}{'recall@10':>11}"]
    kept: list[tuple[float, float]] = []
    width = cosines.dense - cosines.unrelated
    for factor in (0.8, 0.9, 1.0, 1.1, 1.2):
        for best in BESTS:
            dense = cosines.unrelated + factor * width
            found = recall(RankingThresholds(dense=dense, best=best, unrelated=cosines.unrelated))
            lines.append(f"{dense:>8.3f}{best:>6}{found:>11.1f}")
            if found >= whole - LOST:
                kept.append((dense, best))
    strictest = "dense {:.3f}, best {}".format(*max(kept)) if kept else "none of these"
    return [*lines, f"Without thresholds {whole:.1f}; strictest within {LOST} points: {strictest}"]


async def choose(
    data: Any, model_path: Path | None, vectors: Path | None, locomo: Path | None
) -> list[str]:
    """Everything that is printed."""
    embedder: Embedder | None = LocalEmbedder(model_path, workers=2) if model_path else None
    given: dict[str, Any] = {}  # all of it from the environment
    embedder = embedder or build_embedder(Settings(**given))
    if embedder is None:
        raise SystemExit("The settings name no embedding model: --model-path, or a provider.")
    if vectors:
        embedder = KeptVectors(embedder, vectors)
    spec = await embedder.ready()
    cosines, lines = await fit(embedder, data)
    if locomo and model_path:
        lines += locomo_table(await run(locomo, model_path, embedder), cosines)
    await embedder.aclose()
    return [*lines, "", *_entry(spec.model, cosines)]


def _entry(model: str, cosines: ModelCosines) -> Sequence[str]:
    """For `cosines.toml`."""
    values = [f"{name} = {getattr(cosines, name):.2f}" for name in ("unrelated", "dense", "lore")]
    return [f'[models."{model.rpartition("/")[2].lower()}"]', *values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--model-path", type=Path, help="folder of the model (ONNX)")
    parser.add_argument("--vectors", type=Path, help="folder to keep vectors in between runs")
    parser.add_argument("--locomo", type=Path, help="LoCoMo's file")
    options = parser.parse_args()
    configure_logging("error", "json")
    data = json.loads(BOOKS.read_text(encoding="utf-8"))
    found = asyncio.run(choose(data, options.model_path, options.vectors, options.locomo))
    sys.stdout.write("\n".join(found) + "\n")


if __name__ == "__main__":
    main()
