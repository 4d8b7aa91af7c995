"""Measure an installation of two servers and two workers on PostgreSQL.

Accounts with chats of sealed messages fill the database in three steps. After each step, new
players take turns in chats of the same length: the growth is the change of their CPU a turn. Then
more and more players play at once. In the end a server and a worker are killed. The model speaks 40
words a reply. The index is empty before the first turn, and searched by words only.

The peer of the load is the bare application of `scripts/bench.py load`, in two processes.

A given database has to be empty. Without one, a PostgreSQL starts in a temporary folder.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import logging
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import uvloop

from backend.core.logs import configure_logging
from backend.database.engine import Database
from backend.database.migrate import upgrade
from scripts.bench.processes import create_database, read_cpu_seconds, start_process
from scripts.bench.scale.fill import Player, fill
from scripts.bench.scale.installation import ScaleInstallation, run_installation
from scripts.bench.scale.players import Crowd, find_lost
from scripts.bench.tables import Row, make_row, print_rows

STEPS = (100, 10, 1)
"""The divisors of the number of messages, at which the growth is measured."""
GROWTH_PLAYERS = 20
SETTLE_SECONDS = 3.0
IDLE_SECONDS = 8.0
MAX_GROWTH = 1.2

HISTOGRAMS = {
    "prompt built": "talekeeper_prompt_seconds",
    "model": "talekeeper_first_token_seconds",
}
"""Figures of `/metrics` that are stages of a turn, by their labels."""


@asynccontextmanager
async def open_database(url: str) -> AsyncGenerator[str]:
    """Yield the URL of a migrated database."""
    if not url:
        async with create_database("postgres") as made:
            yield made
        return
    database = Database(url)
    await upgrade(database)
    await database.dispose()
    yield url


@dataclass(frozen=True)
class Measured:
    """Turns of players.

    Attributes:
        costs: Milliseconds of CPU a turn of each part, with all that follows from it, and without
            the CPU of idle processes.
        stages: Mean milliseconds of the parts of the time to the first token.
    """

    crowd: Crowd
    costs: dict[str, float]
    stages: dict[str, float]


class Benchmark:
    """The phases of a run, and their rows."""

    def __init__(self, options: argparse.Namespace, made: ScaleInstallation) -> None:
        self.rows: list[Row] = []
        self._options = options
        self._made = made
        self._costs: dict[int, float] = {}
        self._idle: dict[str, float] = {}

    async def grow(self, players: Sequence[Player], messages: int) -> None:
        """Measure turns with a number of messages in the table."""
        measured = await self._measure(players)
        self._costs[messages] = sum(measured.costs.values())
        self._add(f"{messages:,} messages: first token", measured.crowd)
        self._add_costs(measured)
        if len(self._costs) == len(STEPS):
            first, *_, last = self._costs.values()
            self._add_value("growth of CPU a turn", last / first, "times", f"aim {MAX_GROWTH}")

    async def load(self, players: Sequence[Player]) -> None:
        """Measure turns of many players at once."""
        watch = asyncio.create_task(self._made.watch())
        measured = await self._measure(players)
        watch.cancel()
        connections, heartbeat = await watch
        self._add(f"{len(players)} players: first token", measured.crowd)
        whole = sum(measured.stages.values()) or 1
        for label, part in measured.stages.items():
            note = f"{part / whole:.0%} of the mean time to the first token"
            self._add_value(f"  {label}", part, "ms", note)
        self._add_costs(measured)
        self._add_value("  connections to PostgreSQL", connections)
        self._add_value("  oldest heartbeat", 1000 * heartbeat, "ms")

    async def lose_processes(self, players: Sequence[Player]) -> None:
        """Kill a server and a worker in the middle, and look for lost lines and replies."""
        victim, worker = self._made.servers[0], self._made.workers[0]
        crowd = self._make_crowd(self._made.ports)
        playing = asyncio.create_task(crowd.play(players, self._options.seconds))
        await asyncio.sleep(self._options.seconds / 2)
        crowd.lose(crowd.ports[0])
        await asyncio.gather(victim.kill(), worker.kill())
        await playing
        lost = await find_lost(crowd)
        left = await self._made.wait_until_idle()
        self._add(f"{len(players)} players, a server and a worker killed", crowd)
        for label, seconds in (("resumed", crowd.resumed), ("ended", crowd.ended)):
            times = [1000 * each for each in seconds]
            note = f"{len(times)} replies, at most {max(times, default=0):.0f} ms"
            row = make_row("postgres", f"  replies of the killed server: {label}", times, note=note)
            self.rows.append(row)
        note = "; ".join(lost[:3]) or "lines and completed replies"
        self._add_value("  acknowledged, and lost", len(lost), note=note)
        self._add_value("  jobs that did not end", left)

    async def load_peer(self, url: str, model_port: int, players: Sequence[Player]) -> None:
        """Measure the bare application under the same load."""
        async with AsyncExitStack() as stack:
            command = (sys.executable, "-m", "scripts.bench.load", "bare", url, str(model_port))
            peers = [
                await stack.enter_async_context(start_process(*command)) for _ in self._made.servers
            ]
            crowd = self._make_crowd([port for _, port in peers])
            await crowd.greet(players)
            cpu = sum(read_cpu_seconds(pid) for pid, _ in peers)
            await crowd.play(players, self._options.seconds)
            cpu = sum(read_cpu_seconds(pid) for pid, _ in peers) - cpu
        self._add(f"  peer: bare application, {len(players)} players", crowd)
        turns = len(crowd.first_tokens) or 1
        self._add_value("  peer: CPU a turn, its own", 1000 * cpu / turns, "ms")

    async def measure_idle(self) -> None:
        """Measure the CPU of processes that have nothing to do."""
        before = self._made.read_cpu()
        await asyncio.sleep(IDLE_SECONDS)
        after = self._made.read_cpu()
        self._idle = {name: (after[name] - before[name]) / IDLE_SECONDS for name in before}
        note = format_parts({name: 1000 * rate for name, rate in self._idle.items()})
        self._add_value("CPU a second, idle", 1000 * sum(self._idle.values()), "ms", note)

    async def _measure(self, players: Sequence[Player]) -> Measured:
        crowd = self._make_crowd(self._made.ports)
        await crowd.greet(players)
        await self._made.wait_until_idle()
        stages = await self._made.read_stages()
        cpu, began = self._made.read_cpu(), time.perf_counter()
        await crowd.play(players, self._options.seconds)
        await self._made.wait_until_idle()
        await asyncio.sleep(SETTLE_SECONDS)
        after, seconds = self._made.read_cpu(), time.perf_counter() - began
        later = await self._made.read_stages()
        turns = len(crowd.first_tokens) or 1
        costs = {
            name: 1000 * (after[name] - cpu[name] - seconds * self._idle[name]) / turns
            for name in cpu
        }
        times = {
            label: 1000 * (later[name] - stages[name]) / turns for label, name in HISTOGRAMS.items()
        }
        rest = 1000 * statistics.fmean(crowd.first_tokens or [0]) - sum(times.values())
        return Measured(crowd, costs, {**times, "the rest": rest})

    def _make_crowd(self, ports: Sequence[int]) -> Crowd:
        return Crowd(list(ports), self._options.think)

    def _add(self, label: str, crowd: Crowd) -> None:
        rate = len(crowd.first_tokens) / crowd.seconds
        failures = "".join(f", {count} {why}" for why, count in crowd.failures.items())
        note = f"{rate:.1f} turns/s{failures}"
        times = [1000 * each for each in crowd.first_tokens]
        self.rows.append(make_row("postgres", label, times, note=note))

    def _add_costs(self, measured: Measured) -> None:
        note = format_parts(measured.costs)
        self._add_value("  CPU a turn", sum(measured.costs.values()), "ms", note)

    def _add_value(self, label: str, value: float, unit: str = "", note: str = "") -> None:
        self.rows.append(Row("postgres", label, round(value, 2), unit=unit, note=note))


async def run(options: argparse.Namespace) -> list[Row]:
    task = asyncio.current_task()
    if task is not None:  # so that all processes are ended
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    per_user = max(1, options.messages // options.users)
    root_key = f"1:{base64.b64encode(os.urandom(32)).decode()}"
    model = (sys.executable, "-m", "scripts.bench.load", "model", str(options.word_seconds))
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(open_database(options.database))
        _, model_port = await stack.enter_async_context(start_process(*model))
        made = await stack.enter_async_context(
            run_installation(url, root_key, qdrant_url=options.qdrant, model_port=model_port)
        )
        benchmark, players = Benchmark(options, made), list[Player]()
        for divisor in STEPS if options.players else ():
            last = max(len(players) + 2, options.users // divisor)
            progress(f"filling up to {last * per_user:,} messages")
            users = range(len(players), last)
            players += await fill(url, root_key, users, per_user, options.data)
            if divisor == STEPS[0]:
                await benchmark.measure_idle()
            progress("growth")
            same = min(GROWTH_PLAYERS, max(2, options.users // STEPS[0]))
            await benchmark.grow(players[-same:], len(players) * per_user)
        for count in options.players:
            progress(f"{count} players")
            await benchmark.load(players[:count])
        for count in options.players:
            progress(f"{count} players at the peer")
            nobodys = [Player(number, "", str(uuid4())) for number in range(count)]
            await benchmark.load_peer(url, model_port, nobodys)
        if not players:
            players = await fill(url, root_key, range(options.kill_players), per_user, options.data)
        progress("killing a server and a worker")
        await benchmark.lose_processes(players[: options.kill_players])
        return benchmark.rows


def format_parts(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in parts.items())


def progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_scale.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--database", default="", metavar="URL", help="an empty PostgreSQL database"
    )
    parser.add_argument("--qdrant", default="", metavar="URL", help="else a shared Qdrant Edge")
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--messages", type=int, default=1_000_000, help="of all users together")
    parser.add_argument(
        "--players", type=int, nargs="*", default=[50, 200, 500], help="none: only the kill"
    )
    parser.add_argument("--kill-players", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30, help="of each measurement")
    parser.add_argument("--think", type=float, default=2, help="seconds between two turns")
    parser.add_argument("--word-seconds", type=float, default=0.05, help="pace of the model")
    parser.add_argument("--data", type=Path, help="folder of CRD3's transcripts, else random lines")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    if options.users < max(options.players, default=0):
        parser.error("each player needs an account: give more --users or fewer --players")
    configure_logging("error", "json")
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # connections of the killed server
    print_rows(uvloop.run(run(options)), as_json=options.json)
