#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""Chooses how much less scenes count where a question asks for several things (`diversity.SCENE`).

    scripts/fit_breadth.py [--data FILE] [--model-path DIR] [--vectors DIR] [--shares X...]

By recall@10 of LoCoMo's categories 1 to 4 (`bench_locomo.py`). A dialogue is scored with weights
that were fitted on the others, and for the last row with the share that is best on the others.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from backend.core.logs import configure_logging
from backend.memory.embedding.local import LocalEmbedder
from scripts._vectors import KeptVectors
from scripts.bench_locomo import (
    CATEGORIES,
    KS,
    SHARED,
    Bench,
    fit,
    listed,
    ranked,
    recalls,
    run,
)

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
AT_TEN = KS.index(10)
Rows = list[tuple[int, float]]


def rows_of(bench: Bench, shares: Sequence[float]) -> dict[float, list[Rows]]:
    """By share and dialogue: (category, recall@10) of each question."""
    rows: dict[float, list[Rows]] = {share: [] for share in shares}
    for held_out, part in enumerate(bench.searched):
        others = [some for at, some in enumerate(bench.searched) if at != held_out]
        weights = fit([searched for some in others for searched in some])
        for share in shares:
            found: Rows = []
            for searched in part:
                turns = listed(searched, *ranked(searched, weights, share=share))
                gold = searched.question.gold
                values = recalls(list(dict.fromkeys(turns)), gold, bench.pieces)
                found.append((searched.question.category, values[AT_TEN]))
            rows[share].append(found)
    return rows


def recall(rows: Sequence[Rows], categories: Sequence[int]) -> float:
    """Mean over the questions of some categories, in per cent."""
    some = [value for part in rows for category, value in part if category in categories]
    return 100 * statistics.fmean(some)


def left_one_out(rows: dict[float, list[Rows]]) -> tuple[list[float], list[Rows]]:
    """The share that is best on the others, for each dialogue; and what it reaches there."""
    count = len(next(iter(rows.values())))
    best = [
        max(
            rows,
            key=lambda share: recall(
                [*rows[share][:held_out], *rows[share][held_out + 1 :]], (1, 2, 3, 4)
            ),
        )
        for held_out in range(count)
    ]
    return best, [rows[share][at] for at, share in enumerate(best)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=SHARED / "locomo" / "locomo_first5.json")
    parser.add_argument("--model-path", type=Path, default=SHARED / "minilm-l6-v2-int8")
    parser.add_argument(
        "--vectors", type=Path, default=Path(tempfile.gettempdir()) / "bench-vectors"
    )
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    options = parser.parse_args()
    configure_logging("error", "json")
    model = KeptVectors(LocalEmbedder(options.model_path, workers=2), options.vectors)
    bench = asyncio.run(run(options.data, options.model_path, model))
    rows = rows_of(bench, options.shares)
    best, held_out = left_one_out(rows)
    groups = {"1-4": (1, 2, 3, 4)} | {title: (each,) for each, title in CATEGORIES.items()}
    sys.stdout.write(f"{'share':<14}" + "".join(f"{title:>13}" for title in groups) + "\n")
    for name, some in [*((f"{share}", rows[share]) for share in rows), ("left-one-out", held_out)]:
        figures = "".join(f"{recall(some, each):>13.1f}" for each in groups.values())
        sys.stdout.write(f"{name:<14}{figures}\n")
    sys.stdout.write(f"chosen on the others: {', '.join(map(str, best))}\n")


if __name__ == "__main__":
    main()
