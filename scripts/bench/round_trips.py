"""Measure turns on a PostgreSQL that is another machine, directly and behind a pooler.

Between the server and the database is a proxy that delays each round trip and counts them. The demo
model answers at once, so that the times are those of the server. PgBouncer runs in transaction
mode; without it only the direct way is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory

import uvloop
from sqlalchemy import make_url

from scripts.bench.pooler import find_pooler, run_pooler
from scripts.bench.processes import (
    TALEKEEPER,
    check,
    create_database,
    make_environment,
    sign_up,
    start_process,
)
from scripts.bench.stopwatch import WARM_UP_TURNS, format_turn
from scripts.bench.tables import Row, get_p50_p95, make_row, new_parser, print_machine, print_rows

LINE = "/demo long 40"
PAUSE_SECONDS = 1.0
"""Time after a turn in which the work that follows from it is counted."""
IDLE_SECONDS = 5.0
POOL_SIZE = 20


@dataclass
class SlowProxy:
    """A proxy in front of PostgreSQL. `round_trips` counts the messages of clients."""

    target: str
    delay: float
    round_trips: int = 0
    _pumps: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[str]:
        """Yield the URL of the database through the proxy."""
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        url = make_url(self.target).set(host="127.0.0.1", port=port)
        try:
            yield url.difference_update_query(["host"]).render_as_string(hide_password=False)
        finally:
            server.close()
            for pump in self._pumps:
                pump.cancel()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        url = make_url(self.target)
        if url.host:
            answers, requests = await asyncio.open_connection(url.host, url.port)
        else:
            path = f"{url.query['host']}/.s.PGSQL.5432"
            answers, requests = await asyncio.open_unix_connection(path)
        for pump in (self._send(reader, requests), self._return(answers, writer)):
            task = asyncio.ensure_future(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        later = asyncio.get_running_loop().call_later
        while part := await reader.read(1 << 20):
            self.round_trips += 1
            later(self.delay, writer.write, part)
        later(self.delay, writer.close)

    async def _return(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(1 << 20):
            writer.write(part)
        writer.close()


@dataclass
class Times:
    """Milliseconds to the first token and to the end, and round trips, of each turn.

    `idle` are the round trips a second without turns.
    """

    label: str
    idle: float
    first_token: list[float] = field(default_factory=list[float])
    whole: list[float] = field(default_factory=list[float])
    round_trips: list[float] = field(default_factory=list[float])

    def make_rows(self) -> list[Row]:
        return [
            make_row("postgres", f"{self.label}: first token", self.first_token),
            make_row("postgres", f"{self.label}: whole turn", self.whole),
            Row("postgres", f"{self.label}: round trips", *get_p50_p95(self.round_trips)),
            Row("postgres", f"{self.label}: round trips a second, idle", round(self.idle, 1)),
        ]

    def format_line(self) -> str:
        """Return a line of a Markdown table."""
        first, whole = get_p50_p95(self.first_token), get_p50_p95(self.whole)
        trips, _ = get_p50_p95(self.round_trips)
        times = f"{first[0]:.0f}, {first[1]:.0f} | {whole[0]:.0f}, {whole[1]:.0f}"
        return f"| {self.label} | {times} | {trips:.0f} | {self.idle:.1f} |"


HEAD = """\
| | first token p50, p95 (ms) | whole turn p50, p95 (ms) | round trips a turn | a second, idle |
| --- | --- | --- | --- | --- |"""


async def bench(*, is_pooled: bool, delay_ms: float, turns: int) -> Times:
    """Measure one server."""
    async with create_database("postgres") as url, AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="bench-"))
        program, target = find_pooler(), url
        if is_pooled and program:
            target = stack.enter_context(run_pooler(program, url, size=POOL_SIZE))
        proxy = SlowProxy(target, delay_ms / 1000)
        proxied = await stack.enter_async_context(proxy.serve())
        environment = make_environment(
            database_url=proxied,
            data_dir=folder,
            embedder="none",
            demo_tokens_per_second=0,
            index_delay_seconds=0,
        )
        command = (str(TALEKEEPER), "serve", "--port", "0")
        _, port = await stack.enter_async_context(start_process(*command, **environment))
        client = await stack.enter_async_context(sign_up(port, "bench"))
        chat_id = check(await client.post("/chats", json={}))["id"]
        await asyncio.sleep(PAUSE_SECONDS)
        before = proxy.round_trips
        await asyncio.sleep(IDLE_SECONDS)
        idle = (proxy.round_trips - before) / IDLE_SECONDS
        token = client.headers["authorization"]
        times = Times(f"{'PgBouncer' if is_pooled else 'direct'}, {delay_ms:g} ms", idle)
        await time_turns(proxy, port, token, chat_id, turns, times)
    return times


async def time_turns(
    proxy: SlowProxy, port: int, token: str, chat_id: str, turns: int, times: Times
) -> None:
    """Take turns on one connection, and add their times."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(turns + WARM_UP_TURNS):
        before, began, answer, first = proxy.round_trips, time.perf_counter(), b"", 0.0
        writer.write(format_turn(port, token, chat_id, text=LINE))
        while not answer.endswith(b"0\r\n\r\n"):
            part = await reader.read(1 << 16)
            answer += part
            if not first and b"text.delta" in answer:
                first = time.perf_counter() - began
            if not part:
                break
        whole = time.perf_counter() - began
        if b"turn.completed" not in answer:
            raise SystemExit(answer.decode())
        await asyncio.sleep(PAUSE_SECONDS)
        if number >= WARM_UP_TURNS:
            times.first_token.append(1000 * first)
            times.whole.append(1000 * whole)
            spent = time.perf_counter() - began
            times.round_trips.append(proxy.round_trips - before - times.idle * spent)
    writer.close()


async def run(options: argparse.Namespace) -> list[Times]:
    ways = (False, True) if find_pooler() else (False,)
    return [
        await bench(is_pooled=is_pooled, delay_ms=delay_ms, turns=options.turns)
        for delay_ms in options.delays
        for is_pooled in ways
    ]


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("round_trips", __doc__)
    parser.add_argument("--delays", type=float, nargs="+", default=[0, 1], help="milliseconds")
    parser.add_argument("--turns", type=int, default=30)
    options = parser.parse_args(arguments)
    measured = uvloop.run(run(options))
    if options.json:
        print_rows([row for each in measured for row in each.make_rows()], as_json=True)
        return
    print_machine()
    print("\n".join([HEAD, *(each.format_line() for each in measured)]))
