#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""How soon the server answers, and what it holds in memory while nobody is there.

    scripts/bench_start.py [--database sqlite|postgres] [--runs 5] [--idle 10] [--json]

`talekeeper serve` is started on a data folder whose tables and index are made, again and again: the
time from the process's start to the first answer (GET /health), the CPU and the memory that it and
the index's process have taken after some idle seconds. The *bare application* is Litestar,
SQLAlchemy and uvicorn with one route that asks the same database; the two are started by turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import httpx2

from scripts._bench_table import DatabaseName, Row, new_database, print_rows, spread
from scripts._processes import cpu_seconds, resident_mib

SERVE = Path(sys.executable).with_name("talekeeper")

BARE = """
import sys

import uvicorn
from litestar import Litestar, get
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

engine = create_async_engine(sys.argv[1])

@get("/health")
async def health() -> dict[str, int]:
    async with engine.connect() as connection:
        return {"one": (await connection.execute(text("SELECT 1"))).scalar_one()}

uvicorn.run(Litestar([health]), port=int(sys.argv[2]), log_level="error", ws="none")
"""

What = Literal["serve", "bare application"]


@dataclass(frozen=True)
class Start:
    """One start: milliseconds until the first answer, of CPU in all, and MiB when idle."""

    first_answer: float
    cpu: float
    resident: float
    private: float


async def start(what: What, url: str, folder: Path, idle: float) -> Start:
    """Start a server, have it answer, leave it alone, and end it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [str(SERVE), "serve", "--port", port]
    if what == "bare application":
        command = [sys.executable, "-c", BARE, url, port]
    environment = {
        **os.environ,  # noqa: TID251  # handed on, not read
        "TALEKEEPER_DATABASE_URL": url,
        "TALEKEEPER_DATA_DIR": str(folder),
        "TALEKEEPER_LOG_LEVEL": "error",
    }
    # Modules are compiled once, not at each start.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        async with httpx2.AsyncClient(trust_env=False) as client:
            while True:
                try:
                    await client.get(f"http://127.0.0.1:{port}/health")
                    break
                except httpx2.TransportError:
                    if process.returncode is not None:
                        raise SystemExit(f"The {what} does not start.") from None
                    await asyncio.sleep(0.005)
        answered = (time.perf_counter() - begun) * 1000
        await asyncio.sleep(idle)
        private = resident_mib(process.pid, "RssAnon")
        spent = cpu_seconds(process.pid) * 1000
        return Start(answered, spent, resident_mib(process.pid), private)
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def bench(name: DatabaseName, runs: int, idle: float) -> list[Row]:
    """The rows of one database."""
    async with new_database(name) as url:
        with tempfile.TemporaryDirectory(prefix="bench-") as data:
            rows: list[Row] = []
            starts: dict[What, list[Start]] = {"serve": [], "bare application": []}
            for what in starts:  # makes keys and index, and compiles modules
                await start(what, url, Path(data), 0.5)
            for _ in range(runs):
                for what, found in starts.items():
                    found.append(await start(what, url, Path(data), idle))
            for what, found in starts.items():
                rows += _rows(name, what, found)
            return rows


def _rows(name: DatabaseName, what: What, starts: Sequence[Start]) -> list[Row]:
    resident = [each.resident for each in starts]
    private = round(sum(each.private for each in starts) / len(starts))
    answers, cpu = [each.first_answer for each in starts], [each.cpu for each in starts]
    return [
        spread(name, f"{what}: first answer", answers, unit="ms"),
        spread(name, f"{what}: CPU until idle", cpu, unit="ms"),
        spread(name, f"{what}: RSS, idle", resident, unit="MiB", note=f"{private} not of files"),
    ]


async def run(options: argparse.Namespace) -> list[Row]:
    """Every row of the table."""
    wanted: tuple[DatabaseName, ...] = (
        (options.database,) if options.database else get_args(DatabaseName)
    )
    return [row for name in wanted for row in await bench(name, options.runs, options.idle)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--database", choices=get_args(DatabaseName))
    parser.add_argument("--runs", type=int, default=5, help="starts of each")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds until memory is read")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    print_rows(asyncio.run(run(options)), as_json=options.json)


if __name__ == "__main__":
    main()
