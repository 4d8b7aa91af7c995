"""A turn's latency with the agent on and off, over HTTP, at a human pace.

Three chats say the same and take turns in alternating blocks: one with the agent on, one that only
remembers the same chronicle, and one without any. The first two differ in the agent alone. All are
longer than their history's budget, so that each turn searches in memory. The model streams at once,
and thinks for a moment about what the agent asks. How many turns began while the work behind an
earlier one still went on is noted: a pace at which all do measures a machine that is simply busy.
What the server's process computes for a turn, and all that is behind it, is told beside it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from scripts._bench import p50_p95
from scripts._bench_table import DatabaseName, Row, spread, start
from scripts._enrichment_model import transcript
from scripts._enrichment_town import Town, all_items, checked, player, town

BLOCK = 10
WARM_UP = 30
"""Turns of each chat before the first that counts, one right after the other."""
HISTORY = 1_200
"""Tokens of each chat's history: what the first turns said has scrolled out."""
SETTLED = 60.0

KINDS = {"off": "agent off", "on": "agent on", "bare": "no chronicle"}


@dataclass(frozen=True)
class Pace:
    """How turns are taken.

    Args:
        turns: Turns of each chat that count.
        seconds: From one turn's beginning to the next one's.
        think: Seconds that the model takes for each answer to the agent.
    """

    turns: int
    seconds: float
    think: float


@dataclass
class Times:
    """What was measured, by kind of chat.

    `took` is milliseconds to the first token and to the end of each turn. `computed` is CPU seconds
    of the server's process over the turns that count, with the work behind them. `overlapped` are
    turns that began while the agent was still at work.
    """

    took: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict[str, list[tuple[float, float]]](list)
    )
    computed: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    overlapped: int = 0
    runs: int = 0


async def bench_latency(
    name: DatabaseName, url: str, folder: Path, data: Path, pace: Pace, **settings: Any
) -> list[Row]:
    """The rows of one empty database. `settings` go to the server."""
    lines = transcript(data)[: 2 * (pace.turns + WARM_UP)][::2]
    model = await start("_enrichment_model", str(data), "--think", str(pace.think))
    async with town(name, url, folder, model, **settings) as made, player(made) as client:
        times = await _timed(made, client, lines, pace)
    what = f"one every {pace.seconds:g} s"
    rows: list[Row] = []
    for place, until in enumerate(("first token", "turn completed")):
        of = {kind: [each[place] for each in times.took[kind]] for kind in KINDS}
        for kind, values in of.items():
            note = f"{len(values)} turns, {what}"
            if kind == "on":
                note += f"; {times.runs} runs, {times.overlapped} turns began during one"
            rows.append(spread(name, f"{until}, {KINDS[kind]}", values, unit="ms", note=note))
        (off, off_high), (on, on_high) = p50_p95(of["off"]), p50_p95(of["on"])
        ratios = round(on / off, 3), round(on_high / off_high, 3)
        rows.append(Row(name, f"{until}, on by off", *ratios, "", "at most 1.05"))
    for kind, what in KINDS.items():
        mean = 1000 * times.computed[kind] / max(1, len(times.took[kind]))
        note = "mean; with the work behind it, where no worker does that"
        rows.append(Row(name, f"server's CPU a turn, {what}", round(mean, 1), None, "ms", note))
    return rows


async def _timed(made: Town, client: httpx.AsyncClient, lines: Sequence[str], pace: Pace) -> Times:
    chats = await _chats(client)
    authorization: str = client.headers["authorization"]
    times = Times()
    for block, first in enumerate(range(0, len(lines), BLOCK)):
        counts = first >= WARM_UP
        for kind in KINDS if block % 2 else reversed(KINDS):
            computed = _cpu_seconds(made)
            for line in lines[first : first + BLOCK]:
                began = time.perf_counter()
                if counts:  # asked in all of them: it is work, too
                    times.overlapped += await _is_at_work(client, chats["on"])
                took = await time_turn(made.port, authorization, chats[kind], text=line)
                if counts:
                    times.took[kind].append(took)
                    await asyncio.sleep(max(0.0, pace.seconds - (time.perf_counter() - began)))
            # What is behind the last turn must not fall into another chat's times.
            await _settle(client, chats["on"])
            if counts:
                times.computed[kind] += _cpu_seconds(made) - computed
    times.runs = len(await all_items(client, f"/chats/{chats['on']}/enrichment"))
    if not times.runs:
        raise SystemExit("The agent did nothing: there is nothing to compare.")
    return times


async def _chats(client: httpx.AsyncClient) -> dict[str, str]:
    """A chat of each kind; two of them share a chronicle."""
    chats: dict[str, str] = {}
    for kind in KINDS:
        chat = checked(await client.post("/chats", json={"title": kind}))
        chats[kind] = chat["id"]
        budgets = {"budgets": {"history": HISTORY}}
        checked(await client.patch(f"/chats/{chat['id']}/settings", json=budgets))
    settings: dict[str, Any] = {"chronicle_enabled": True}
    made = checked(await client.patch(f"/chats/{chats['on']}/settings", json=settings))
    settings = {"chronicle_id": made["chronicle_id"]}
    checked(await client.patch(f"/chats/{chats['off']}/settings", json=settings))
    return chats


def _cpu_seconds(made: Town) -> float:
    """What the server's process has computed so far; 0 where the system does not tell."""
    if made.server is None:
        return 0.0
    try:
        stat = Path(f"/proc/{made.server.pid}/stat").read_text()
    except FileNotFoundError:
        return 0.0
    user, system = stat.rpartition(") ")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def time_turn(
    port: int, authorization: str, chat_id: str, **turn: Any
) -> tuple[float, float]:
    """Milliseconds from writing the request to the first token, and to the turn's end.

    A plain socket, so that no client's work is measured.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(turn).encode()
    head = (
        f"POST /api/v1/chats/{chat_id}/turns HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Authorization: {authorization}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    began = time.perf_counter()
    writer.write(head + body)
    await writer.drain()
    answer, first = b"", 0.0
    while b"event: turn.completed" not in answer:
        piece = await reader.read(65_536)
        if not piece:
            raise SystemExit(answer.decode(errors="replace"))
        answer += piece
        if not first and b"event: text.delta" in answer:
            first = time.perf_counter()
    ended = time.perf_counter()
    writer.close()
    return (first - began) * 1000, (ended - began) * 1000


async def _is_at_work(client: httpx.AsyncClient, chat_id: str) -> bool:
    """Whether a job waits or runs behind the replies of a chat."""
    found = checked(await client.get(f"/chats/{chat_id}/enrichment?limit=1"))
    return found["job"] is not None


async def _settle(client: httpx.AsyncClient, chat_id: str) -> None:
    """Wait until nothing is behind the replies of a chat."""
    began = time.monotonic()
    while time.monotonic() - began < SETTLED:
        found = checked(await client.get(f"/chats/{chat_id}/enrichment?limit=1"))
        if not found["pending"] and found["job"] is None:
            return
        await asyncio.sleep(0.25)
    raise SystemExit("The agent does not come to an end.")
