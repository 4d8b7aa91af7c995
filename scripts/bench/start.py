"""Measure the time until a server answers, and its memory while it is idle.

`talekeeper serve` starts again and again on a data folder that has its tables and its index. The
figures are the time from the start to the first answer (`GET /health`), and after some idle seconds
the processor time and the memory, both with the process of the index.

The peer is a bare application: Litestar, SQLAlchemy and uvicorn with one route that asks the same
database. The two are started alternately.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2

from scripts.bench.processes import (
    TALEKEEPER,
    create_database,
    make_environment,
    read_cpu_seconds,
    read_resident_mib,
)
from scripts.bench.tables import (
    DatabaseName,
    Row,
    add_database_option,
    list_databases,
    make_row,
    new_parser,
    print_rows,
)

BARE_APPLICATION = """
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


@dataclass(frozen=True)
class StartFigures:
    """Milliseconds to the first answer and of CPU, and MiB of memory when idle.

    `private` is the part of `resident` that is not mapped from files.
    """

    first_answer: float
    cpu: float
    resident: float
    private: float


async def measure_start(url: str, folder: Path, idle: float, *, is_bare: bool) -> StartFigures:
    """Start a server, wait for an answer, leave it idle, and end it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [str(TALEKEEPER), "serve", "--port", port]
    if is_bare:
        command = [sys.executable, "-c", BARE_APPLICATION, url, port]
    environment = {
        **os.environ,  # noqa: TID251  # handed on, not read
        **make_environment(database_url=url, data_dir=folder),
    }
    # With it, modules would be compiled at each start.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
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
                        raise SystemExit(f"{command[0]} does not start.") from None
                    await asyncio.sleep(0.005)
        first_answer = (time.perf_counter() - began) * 1000
        await asyncio.sleep(idle)
        return StartFigures(
            first_answer,
            cpu=read_cpu_seconds(process.pid) * 1000,
            resident=read_resident_mib(process.pid),
            private=read_resident_mib(process.pid, "RssAnon"),
        )
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def bench(name: DatabaseName, runs: int, idle: float) -> list[Row]:
    """Return the rows of one database."""
    starts: dict[str, list[StartFigures]] = {"serve": [], "  peer: bare application": []}
    async with create_database(name) as url:
        with TemporaryDirectory(prefix="bench-") as data:
            for number in range(runs + 1):
                for label, figures in starts.items():
                    is_bare = label != "serve"
                    # The first run makes keys and the index, and compiles modules.
                    seconds = idle if number else 0.5
                    measured = await measure_start(url, Path(data), seconds, is_bare=is_bare)
                    if number:
                        figures.append(measured)
    return [row for label, found in starts.items() for row in _make_rows(name, label, found)]


def _make_rows(name: DatabaseName, label: str, starts: Sequence[StartFigures]) -> list[Row]:
    answers, cpu = [each.first_answer for each in starts], [each.cpu for each in starts]
    resident = [each.resident for each in starts]
    private = round(sum(each.private for each in starts) / len(starts))
    note = f"{private} not mapped from files"
    return [
        make_row(name, f"{label}: first answer", answers),
        make_row(name, f"{label}: CPU until idle", cpu),
        make_row(name, f"{label}: RSS, idle", resident, unit="MiB", note=note),
    ]


async def run(options: argparse.Namespace) -> list[Row]:
    return [
        row
        for name in list_databases(options)
        for row in await bench(name, options.runs, options.idle)
    ]


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("start", __doc__)
    add_database_option(parser)
    parser.add_argument("--runs", type=int, default=5, help="starts of each server")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds until memory is read")
    options = parser.parse_args(arguments)
    print_rows(asyncio.run(run(options)), as_json=options.json)
