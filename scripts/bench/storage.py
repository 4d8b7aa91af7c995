"""Measure what a turn leaves in PostgreSQL, and the CPU that it takes of each part.

Several players take turns of the same length with a model that answers at once. Everything that
follows from a turn, such as indexing, is included. The demo model counts as part of the server.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import uvloop
from sqlalchemy import text

from backend.database.engine import Database
from scripts.bench.processes import (
    TALEKEEPER,
    check,
    create_database,
    make_environment,
    sign_up,
    start_process,
)
from scripts.bench.stopwatch import format_turn
from scripts.bench.tables import Row, new_parser, print_rows

LINE = (
    "/demo long 110, while the rain went on and the lamp burned low beside the window of the mill"
)
"""A line of the player, and about 150 tokens of reply."""

SETTLE_SECONDS = 10.0
"""Time after the last turn for the jobs that follow from it."""

LARGEST = 8
"""Tables with a row of their own."""

_SIZES = text("SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r'")


async def bench(*, players: int, turns: int) -> list[Row]:
    async with create_database("postgres") as url, AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="bench-"))
        environment = make_environment(
            database_url=url, data_dir=folder, embedder="none", demo_tokens_per_second=0
        )
        command = (str(TALEKEEPER), "serve", "--port", "0")
        pid, port = await stack.enter_async_context(start_process(*command, **environment))
        clients = [
            await stack.enter_async_context(sign_up(port, f"player{number}"))
            for number in range(players)
        ]
        chats = [check(await client.post("/chats", json={}))["id"] for client in clients]
        database = Database(url)
        stack.push_async_callback(database.dispose)
        await asyncio.sleep(SETTLE_SECONDS)
        postmaster = await find_postmaster(database)
        sizes, before = await read_sizes(database), [read_cpu(pid), read_cpu(postmaster)]
        for _ in range(turns):
            tokens = [client.headers["authorization"] for client in clients]
            await asyncio.gather(
                *(take_turn(port, *each) for each in zip(tokens, chats, strict=True))
            )
        await asyncio.sleep(SETTLE_SECONDS)
        count = players * turns
        spent = [read_cpu(pid) - before[0], read_cpu(postmaster) - before[1]]
        after = await read_sizes(database)
    grown = {name: (after[name] - sizes.get(name, 0)) / count for name in after}
    largest = sorted(grown, key=lambda name: -grown[name])[:LARGEST]
    return [
        Row("postgres", "CPU of the server, a turn", round(1000 * spent[0] / count, 1), unit="ms"),
        Row("postgres", "CPU of PostgreSQL, a turn", round(1000 * spent[1] / count, 1), unit="ms"),
        Row("postgres", "all tables, a turn", round(sum(grown.values())), unit="bytes"),
        *(Row("postgres", name, round(grown[name]), unit="bytes") for name in largest),
    ]


async def read_sizes(database: Database) -> dict[str, int]:
    """Return the bytes of each table with its indexes and large values."""
    async with database.write() as session:
        await session.execute(text("SELECT pg_stat_clear_snapshot()"))
    async with database.read() as session:
        return {row[0]: row[1] for row in await session.execute(_SIZES)}


async def find_postmaster(database: Database) -> int:
    """Return the id of PostgreSQL's first process, on this machine."""
    async with database.read() as session:
        folder = await session.scalar(text("SHOW data_directory"))
    return int((await asyncio.to_thread(Path(str(folder), "postmaster.pid").read_text)).split()[0])


def read_cpu(pid: int) -> float:
    """Return the CPU seconds of a process and its children, also of those that have ended."""
    first = psutil.Process(pid)
    running = first.children(recursive=True)
    ended = float(sum(first.cpu_times()[:4]))
    return ended + float(sum(sum(each.cpu_times()[:2]) for each in running))


async def take_turn(port: int, token: str, chat_id: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(format_turn(port, token, chat_id, text=LINE))
    answer = b""
    while part := await reader.read(1 << 16):
        answer += part
        if answer.endswith(b"0\r\n\r\n"):
            break
    writer.close()
    if b"turn.completed" not in answer:
        raise SystemExit(answer.decode())


async def run(options: argparse.Namespace) -> list[Row]:
    return await bench(players=options.players, turns=options.turns)


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("storage", __doc__)
    parser.add_argument("--players", type=int, default=10)
    parser.add_argument("--turns", type=int, default=60)
    options = parser.parse_args(arguments)
    print_rows(uvloop.run(run(options)), as_json=options.json)
