#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""What a campaign costs, and whether its prompts hold what the story needs.

    scripts/bench_campaign.py [--only PART] [--crd3 DIR] [--database NAME] [--json]

Parts are `figures`, `continuity` and `compaction`.

**Figures**: a campaign of 2,000 entities, 10,000 facts and 20,000 changes, told in a chat of 5,000
messages. Turns are timed from the request to the call of the model, beside those of a plain chat
with the same messages; then choosing a swipe that toggles 50 changes (the floor: a plain chat's),
restoring a version, what 100 turns take that wait for their player (the floor: turns that are
over), and finding 5,000 names in a line (the peer: a regular expression).

**Continuity**: 40 rounds of CRD3's transcripts with 60 things planted in them, and 120 questions:
does the prompt say what the answer needs, does it tell as current what is over, does it tell what
the one who asks may not know? Beside Talekeeper: the last messages that fit, without and with a
rolling summary. Without the transcripts it is skipped.

**Compaction**: 100 rounds of four players that a script makes up, in a chat that the compactor
reads and in one that it does not, while a fifth of the calls fails and processes are killed: what
prompts of 8,192 tokens say of what was told long before, and whether the state is as the script
knows it. On SQLite, unless a database is named. It takes some minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import get_args

import uvloop

from backend.core.logs import configure_logging
from scripts._bench import SHARED, made_up, utterances
from scripts._bench_table import DatabaseName, Row, print_rows
from scripts._campaign_compaction import ROUNDS as COMPACTED_ROUNDS
from scripts._campaign_compaction import bench_compaction
from scripts._campaign_continuity import ROUNDS, WINDOWS, bench_continuity
from scripts._campaign_figures import bench_figures, bench_names
from scripts._campaign_waiting import bench_waiting
from scripts._campaign_world import Sizes

SMALL = Sizes(entities=150, facts=200, changes=1_200, messages=200)


async def run(options: argparse.Namespace) -> list[Row]:
    """Every row of the table."""
    lines = made_up() if options.small else utterances(options.crd3)
    rows: list[Row] = []
    if options.only in {None, "figures"}:
        sizes = SMALL if options.small else Sizes()
        for name in get_args(DatabaseName):
            if options.database in {None, name}:
                with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                    rows += await bench_figures(name, Path(folder), lines, sizes, options.turns)
                with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                    rows += await bench_waiting(name, Path(folder))
        rows += bench_names(lines)
    if options.only in {None, "continuity"}:
        rows += await _continuity(options)
    if options.only in {None, "compaction"}:
        rows += await bench_compaction(
            options.database or "sqlite",
            lines,
            rounds=20 if options.small else COMPACTED_ROUNDS,
            explain=options.explain,
        )
    return rows


async def _continuity(options: argparse.Namespace) -> list[Row]:
    if not any(options.crd3.glob("*.json")):
        return [Row("", "continuity", 0, note=f"skipped: no transcripts in {options.crd3}")]
    embedding = options.model_path if options.model_path.is_dir() else None
    if embedding is None:
        print(
            f"No model in {options.model_path} (--model-path DIR): by words alone.", file=sys.stderr
        )
    return await bench_continuity(
        utterances(options.crd3),
        windows=WINDOWS[1:2] if options.small else options.windows,
        rounds=20 if options.small else ROUNDS,
        embedding=embedding,
        explain=options.explain,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--only", choices=("figures", "continuity", "compaction"))
    parser.add_argument("--database", choices=get_args(DatabaseName))
    parser.add_argument(
        "--crd3", type=Path, default=SHARED / "crd3", help="folder of CRD3's transcripts"
    )
    parser.add_argument(
        "--model-path",
        type=Path,
        default=SHARED / "minilm-l6-v2-int8",
        help="folder of the embedding model",
    )
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS, help="in tokens")
    parser.add_argument("--explain", action="store_true", help="name each probe that failed")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--small", action="store_true", help="small sizes, for development")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.small:
        options.turns = min(options.turns, 9)
    configure_logging("error", "json")
    print_rows(uvloop.run(run(options)), as_json=options.json)  # uvloop, as the server runs


if __name__ == "__main__":
    main()
