"""The command line of `scripts/torture.py`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from backend.core.logs import configure_logging
from scripts.torture import (
    fleet,
    generated,
    hostile,
    index_faults,
    kills,
    model_faults,
    postgres_faults,
    replicas,
    sqlite_faults,
)
from scripts.torture.campaign import Options, run_guarded
from scripts.torture.report import Row, show

Group = Callable[[Options], Coroutine[Any, Any, list[Row]]]

FAULTS: dict[str, Group] = {
    "model": model_faults.run_model,
    "embedder": model_faults.run_embedder,
    "index": index_faults.run,
    "sqlite": sqlite_faults.run,
    "postgres": postgres_faults.run,
}


async def _faults(options: Options) -> list[Row]:
    rows: list[Row] = []
    for name, group in FAULTS.items():
        rows += await run_guarded(name, options.kind, group(options))
    return rows


GROUPS: dict[str, Group] = {
    "kills": kills.run,
    "replicas": replicas.run,
    "fleet": fleet.run,
    "hostile": hostile.run,
    "faults": _faults,
    "generated": generated.run,
}


async def run(options: Options, only: list[str]) -> list[Row]:
    task = asyncio.current_task()
    if task is not None:  # so that all processes are ended
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    rows: list[Row] = []
    for name in only or GROUPS:
        group = GROUPS.get(name) or FAULTS[name]
        rows += await run_guarded(name, options.kind, group(options))
    return rows


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="scripts/torture.py", description=__doc__)
    much = made.add_mutually_exclusive_group()
    much.add_argument("--kills", type=int, default=20, help="processes to kill or to end")
    much.add_argument("--minutes", type=float, help="how long to go on killing")
    made.add_argument(
        "--database",
        default="sqlite",
        help="sqlite, postgres (a server of its own), or the URL of an empty PostgreSQL database",
    )
    made.add_argument("--qdrant", default="", metavar="URL", help="a Qdrant server, for PostgreSQL")
    made.add_argument("--only", action="append", choices=(*GROUPS, *FAULTS), default=[])
    made.add_argument(
        "--name", default="", help="hostile inputs and faults whose names have this in them"
    )
    made.add_argument("--requests", type=int, default=2000, help="to make up, at the least")
    made.add_argument("--players", type=int, default=50, help="of the group `fleet`")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--keep", type=Path, help="an own folder for all files, which stays")
    made.add_argument(
        "--slow", type=float, default=1.0, metavar="FACTOR", help="for a machine that is busy"
    )
    made.add_argument("--json", action="store_true")
    return made


def main() -> int:
    """Run the chosen groups; return 0 only if every promise held."""
    asked = parser().parse_args()
    options = Options(
        database=asked.database,
        qdrant=asked.qdrant,
        kills=asked.kills,
        minutes=asked.minutes,
        seed=asked.seed,
        requests=asked.requests,
        players=asked.players,
        keep=asked.keep,
        slow=asked.slow,
        name=asked.name,
    )
    configure_logging("error", "json")
    # uvicorn logs connections that are still open at the end.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    began = time.monotonic()
    rows = uvloop.run(run(options, asked.only))
    show(rows, as_json=asked.json, seed=asked.seed, seconds=time.monotonic() - began)
    return 1 if any(row.broken for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
