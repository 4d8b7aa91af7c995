#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""What goes on behind the reply: the queue by itself, a long story with the agent, turns beside it.

    scripts/bench_enrichment.py [--only PART] [--database sqlite|postgres] [--quick] [--json] [...]

`queue`: jobs that do nothing, in and out, each exactly once. `story`: a chat of many turns out of
CRD3's transcripts with the agent on, while a fifth of the model's answers fail and processes are
killed. `latency`: turns with the agent on and off. The heads of `_enrichment_queue.py`,
`_enrichment_story.py` and `_enrichment_latency.py` say how.

Without --database each part runs on SQLite in a temporary folder and on a PostgreSQL of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
from pathlib import Path
from typing import Any, get_args

import uvloop

from backend.core.logs import configure_logging
from scripts._bench import SHARED
from scripts._bench_table import DatabaseName, Row, new_database, print_rows
from scripts._enrichment_latency import Pace, bench_latency
from scripts._enrichment_queue import bench_queue
from scripts._enrichment_story import bench_story

QUICK = {"jobs": 2_000, "users": 100, "turns": 40, "latency_turns": 20, "embedder": "none"}


async def run(options: argparse.Namespace) -> list[Row]:
    """Every row of the table."""
    task = asyncio.current_task()
    if task is not None:  # so that no process of ours is left behind
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    names: tuple[DatabaseName, ...] = get_args(DatabaseName)
    rows: list[Row] = []
    for name in names:
        if options.database not in {None, name}:
            continue
        if options.only in {None, "queue"}:
            rows += await bench_queue(
                name,
                options.jobs,
                options.users,
                workers=options.workers or (1, 2),
                peer_python=options.peer_python,
            )
        if options.only in {None, "story"}:
            rows += await bench_story(name, options)
        if options.only in {None, "latency"}:
            rows += await _latency(name, options)
    return rows


async def _latency(name: DatabaseName, options: argparse.Namespace) -> list[Row]:
    pace = Pace(options.latency_turns, options.every, options.think)
    settings: dict[str, Any] = {"embedder": options.embedder}
    if options.embedder == "local":
        settings["embedding_model_path"] = options.model_path
    async with new_database(name) as url:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            return await bench_latency(name, url, Path(folder), options.data, pace, **settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--only", choices=("queue", "story", "latency"))
    parser.add_argument("--database", choices=get_args(DatabaseName))
    parser.add_argument("--quick", action="store_true", help="small sizes, for development")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--data", type=Path, default=SHARED / "crd3", help="folder of CRD3's transcripts"
    )
    parser.add_argument(
        "--model-path",
        type=Path,
        default=SHARED / "minilm-l6-v2-int8",
        help="folder of the embedding model",
    )
    parser.add_argument("--embedder", choices=("local", "none"), default="local")
    parser.add_argument("--jobs", type=int, default=100_000, help="through the queue")
    parser.add_argument("--users", type=int, default=1_000, help="whose jobs they are")
    parser.add_argument(
        "--workers", type=int, nargs="*", help="at once, one number after the other: 1 2"
    )
    parser.add_argument(
        "--peer-python", help="a Python with huey, procrastinate and psycopg, for the peers"
    )
    parser.add_argument("--turns", type=int, default=1_000, help="of the story")
    parser.add_argument("--pace", type=float, default=3.0, help="turns of the story a second")
    parser.add_argument("--failures", type=float, default=0.2, help="of the model's answers")
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds; 0 for never")
    parser.add_argument(
        "--think", type=float, default=0.3, help="seconds that the model takes for the agent"
    )
    parser.add_argument("--latency-turns", type=int, default=100, help="of each of three chats")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between these")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        parser.set_defaults(**QUICK)
        options = parser.parse_args()
    configure_logging("error", "json")
    print_rows(uvloop.run(run(options)), as_json=options.json)  # uvloop, as the server runs


if __name__ == "__main__":
    main()
