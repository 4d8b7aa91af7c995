"""Measure turns with the chronicle's agent on and off, over HTTP at a human pace.

Three chats get the same lines in alternating blocks: with the agent on, with the same chronicle but
the agent off, and without a chronicle. All are longer than their history's budget, so that each
turn searches memory. The server does the jobs in its own process. The model is a scripted process
that streams replies at once and takes some time for each answer to the agent.

A note says how many turns began while the agent was at work: if all did, the pace is too fast and
the figures show a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import uvloop

from scripts.bench.data import CRD3, read_utterances
from scripts.bench.processes import (
    TALEKEEPER,
    check,
    create_database,
    make_environment,
    read_own_cpu_seconds,
    sign_up,
    start_process,
)
from scripts.bench.stopwatch import format_turn
from scripts.bench.tables import (
    DatabaseName,
    Row,
    add_database_option,
    get_p50_p95,
    list_databases,
    make_row,
    new_parser,
    print_rows,
)
from scripts.model_server import (
    MODEL,
    MODEL_ID,
    Answer,
    estimate_tokens,
    find_new_lines,
    get_kind,
    listen,
    make_answer,
    make_call,
    make_chunk,
)

BLOCK_TURNS = 10
WARM_UP_TURNS = 30
"""Turns of each chat that are not counted. They follow each other without a pause."""

HISTORY_TOKENS = 1_200
SETTLE_SECONDS = 60.0
MIN_LINE_WORDS, MAX_LINE_WORDS = 8, 150
LINES_PER_EVENT = 3

AGENT_CHAT, QUIET_CHAT, PLAIN_CHAT = "agent on", "agent off", "no chronicle"
CHATS = (QUIET_CHAT, AGENT_CHAT, PLAIN_CHAT)


def read_lines(folder: Path) -> list[str]:
    """Return different lines of the transcripts, `Speaker: text`, which users and model say."""
    lines = (f"{speaker.title()}: {text}" for speaker, text in read_utterances(folder))
    return [
        line
        for line in dict.fromkeys(lines)
        if MIN_LINE_WORDS <= len(line.split()) <= MAX_LINE_WORDS
    ]


class ScriptedModel:
    """A model that replies with the next line, and creates an event of every third line."""

    def __init__(self, lines: Sequence[str], think: float) -> None:
        self._next_lines = dict(pairwise(lines))
        self._think = think

    async def respond(self, _: str, body: dict[str, Any]) -> Answer:
        """Answer a request."""
        kind, messages = get_kind(body), body["messages"]
        if kind == "reply":
            return Answer(pieces=list(self._make_reply(messages)))
        await asyncio.sleep(self._think)
        tokens = estimate_tokens(messages)
        events = [line for line in find_new_lines(messages) if _is_event(line[1])]
        if kind == "triage":
            kinds = ["event"] if events else []
            verdict = {"why": "-", "significant": bool(events), "kinds": kinds}
            return make_answer(json.dumps(verdict), tokens)
        if not events or any(each["role"] == "assistant" for each in messages):
            return make_answer(None, tokens, [make_call("c0", "finish", {})])
        calls = [make_call("c0", "search_knowledge_base", {"query": events[0][1]})]
        for number, text in events:
            event = make_event(number, text)
            calls.append(make_call(f"c{number}", "create_chronicle_event", event))
        return make_answer(None, tokens, calls)

    def _make_reply(self, messages: Sequence[Any]) -> Iterator[str]:
        spoken = (each["content"] for each in reversed(messages) if each["role"] == "user")
        reply = next((self._next_lines[line] for line in spoken if line in self._next_lines), "Hm.")
        for word in reply.split():
            yield json.dumps(make_chunk({"content": f"{word} "}))
        yield json.dumps(make_chunk({}, "stop"))
        yield "[DONE]"


def _is_event(text: str) -> bool:
    return hashlib.sha256(text.encode()).digest()[0] % LINES_PER_EVENT == 0


def make_event(number: int, text: str) -> dict[str, Any]:
    """Return the arguments of the tool that creates an event."""
    words = sorted(set(re.findall(r"[a-z]{4,}", text.lower())), key=len, reverse=True)
    return {
        "summary": text[:200],
        "kind": "event",
        "who": [text.partition(":")[0]],
        "keywords": words[:4],
        "significance": 3,
        "source_messages": [f"#{number}"],
    }


async def serve_model(folder: Path, think: float) -> None:
    """Serve the scripted model in this process."""
    server, port = await listen(ScriptedModel(read_lines(folder), think).respond)
    print(f"model on :{port}", flush=True)
    await server.serve_forever()


@dataclass
class AgentTimes:
    """Measurements of each chat.

    `turns` are milliseconds to the first token and to the end. `cpu` is the server's processor
    time in seconds, with the work after the replies. `overlaps` counts turns that began while the
    agent was at work.
    """

    turns: defaultdict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict[str, list[tuple[float, float]]](list)
    )
    cpu: defaultdict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    overlaps: int = 0


async def bench(name: DatabaseName, options: argparse.Namespace) -> list[Row]:
    """Return the rows of one database."""
    lines = read_lines(options.data)[: 2 * (options.turns + WARM_UP_TURNS)][::2]
    model_command = (sys.executable, "-m", "scripts.bench.enrichment")
    model_arguments = (str(options.data), str(options.think))
    async with (
        create_database(name) as url,
        start_process(*model_command, *model_arguments) as (_, model),
    ):
        with TemporaryDirectory(prefix="bench-") as folder:
            environment = make_environment(
                database_url=url,
                data_dir=folder,
                embedder="none",
                openai_base_url=f"http://127.0.0.1:{model}/v1",
                openai_models=MODEL,
                default_model=MODEL_ID,
                enrichment_model=MODEL_ID,
                enrichment_tokens_per_day=10**9,
                max_turns_per_user=1000,
            )
            command = (str(TALEKEEPER), "serve", "--port", "0")
            async with (
                start_process(*command, **environment) as (pid, port),
                sign_up(port, "bench") as client,
            ):
                times = await measure(pid, port, client, lines, options.every)
    return _make_rows(name, times, options.every)


def _make_rows(name: DatabaseName, times: AgentTimes, every: float) -> list[Row]:
    rows: list[Row] = []
    for place, until in enumerate(("first token", "turn completed")):
        values = {kind: [each[place] for each in times.turns[kind]] for kind in CHATS}
        for kind in CHATS:
            note = f"{len(values[kind])} turns, one every {every:g} s"
            if kind == AGENT_CHAT:
                note += f"; {times.overlaps} began while the agent was at work"
            rows.append(make_row(name, f"{until}, {kind}", values[kind], note=note))
        (off, off_high), (on, on_high) = map(get_p50_p95, (values[QUIET_CHAT], values[AGENT_CHAT]))
        ratios = round(on / off, 3), round(on_high / off_high, 3)
        rows.append(Row(name, f"{until}, ratio of on to off", *ratios, note="aim: 1.05"))
    for kind in CHATS:
        mean = 1000 * times.cpu[kind] / max(1, len(times.turns[kind]))
        rows.append(Row(name, f"server's CPU a turn, {kind}", round(mean, 1), unit="ms"))
    return rows


async def measure(
    pid: int, port: int, client: httpx.AsyncClient, lines: Sequence[str], every: float
) -> AgentTimes:
    """Take the turns of all chats in alternating blocks."""
    chats = await make_chats(client)
    authorization: str = client.headers["authorization"]
    times = AgentTimes()
    for block, first in enumerate(range(0, len(lines), BLOCK_TURNS)):
        is_counted = first >= WARM_UP_TURNS
        for kind in CHATS if block % 2 else reversed(CHATS):
            cpu = read_own_cpu_seconds(pid)
            for line in lines[first : first + BLOCK_TURNS]:
                began = time.perf_counter()
                if is_counted:  # before turns of all chats, because this request costs time
                    times.overlaps += await is_agent_busy(client, chats[AGENT_CHAT])
                turn = await time_turn(port, authorization, chats[kind], line)
                if is_counted:
                    times.turns[kind].append(turn)
                    await asyncio.sleep(max(0.0, every - (time.perf_counter() - began)))
            # The work after the last turn must not add to the times of another chat.
            await wait_for_agent(client, chats[AGENT_CHAT])
            if is_counted:
                times.cpu[kind] += read_own_cpu_seconds(pid) - cpu
    if not check(await client.get(f"/chats/{chats[AGENT_CHAT]}/enrichment"))["items"]:
        raise SystemExit("The agent did nothing, so there is nothing to compare.")
    return times


async def make_chats(client: httpx.AsyncClient) -> dict[str, str]:
    """Create the three chats. Two of them share a chronicle."""
    chats: dict[str, str] = {}
    for kind in CHATS:
        chats[kind] = check(await client.post("/chats", json={"title": kind}))["id"]
        budgets = {"budgets": {"history": HISTORY_TOKENS}}
        check(await client.patch(f"/chats/{chats[kind]}/settings", json=budgets))
    settings: dict[str, Any] = {"chronicle_enabled": True}
    path = f"/chats/{chats[AGENT_CHAT]}/settings"
    settings = {"chronicle_id": check(await client.patch(path, json=settings))["chronicle_id"]}
    check(await client.patch(f"/chats/{chats[QUIET_CHAT]}/settings", json=settings))
    return chats


async def time_turn(port: int, authorization: str, chat_id: str, text: str) -> tuple[float, float]:
    """Return milliseconds from writing the request to the first token, and to the turn's end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = format_turn(port, authorization, chat_id, header="Connection: close\r\n", text=text)
    began = time.perf_counter()
    writer.write(request)
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


async def is_agent_busy(client: httpx.AsyncClient, chat_id: str) -> bool:
    """True if a job of the chat's agent waits or runs."""
    status = check(await client.get(f"/chats/{chat_id}/enrichment?limit=1"))
    return status["job"] is not None


async def wait_for_agent(client: httpx.AsyncClient, chat_id: str) -> None:
    """Wait until the agent has read all replies of a chat."""
    async with asyncio.timeout(SETTLE_SECONDS):
        while True:
            status = check(await client.get(f"/chats/{chat_id}/enrichment?limit=1"))
            if not status["pending"] and status["job"] is None:
                return
            await asyncio.sleep(0.25)


async def run(options: argparse.Namespace) -> list[Row]:
    return [row for name in list_databases(options) for row in await bench(name, options)]


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("enrichment", __doc__)
    add_database_option(parser)
    parser.add_argument("--data", type=Path, default=CRD3, help="folder of CRD3's transcripts")
    parser.add_argument("--turns", type=int, default=100, help="of each of the three chats")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two turns")
    parser.add_argument(
        "--think", type=float, default=0.3, help="seconds of an answer to the agent"
    )
    options = parser.parse_args(arguments)
    print_rows(uvloop.run(run(options)), as_json=options.json)


if __name__ == "__main__":
    uvloop.run(serve_model(Path(sys.argv[1]), float(sys.argv[2])))
