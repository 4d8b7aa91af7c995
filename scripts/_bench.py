"""What the benchmarks share: lines, chats and lorebooks of them, an account, points, clocks."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import json
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID, uuid5

import httpx
import msgspec
import numpy as np
import uvicorn
from sqlalchemy import Select, insert, select

from backend.accounts.auth.identity import Identity
from backend.app import create_app
from backend.chats.drafts import SCENE_LENGTH
from backend.chats.models import CHAT_TITLE, MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.chats.token_counting import CountUnit
from backend.container import Services, build_services
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.generation.registry import ModelRegistry
from backend.http.responses import observe
from backend.jobs.models import Job
from backend.memory.embedding.protocol import EmbedderSpec, Floats, Task
from backend.memory.index.protocol import Kind, Payload, Point, Sparse, VectorIndex, point_id
from backend.memory.models import IndexChange
from backend.settings import Settings
from backend.vault.root import RootKeys
from backend.vault.slots import PasswordKdf

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
ROOT = RootKeys({1: b"r" * 32})
CHEAP_KDF = PasswordKdf(salt=b"\0" * 16, memory_kib=32, passes=1, lanes=1)
STRANGERS = 9
DIMENSION = 384
IDS = UUID("6d1c6f0e-0a3f-5d39-8a51-2f1f6a1b0000")


@dataclass(frozen=True)
class Account:
    """A server's parts, and somebody who is signed in."""

    parts: Services
    identity: Identity
    token: str


@dataclass(frozen=True)
class Call:
    """A call of something that is watched: when it began and how long it took, in seconds."""

    began: float
    seconds: float


class Watch:
    """Notes how long calls of functions take, as long as it is entered.

    Args:
        watched: (class or module, name of its function) of each.
    """

    def __init__(self, *watched: tuple[Any, str]) -> None:
        self.calls: dict[tuple[Any, str], list[Call]] = {each: [] for each in watched}
        self._before: list[tuple[Any, str, Any]] = []
        for holder, name in watched:
            if not hasattr(holder, name):
                raise SystemExit(f"{holder.__name__} has no {name} any more: change this script.")
            self._before.append((holder, name, getattr(holder, name)))

    def __enter__(self) -> Self:
        for holder, name, function in self._before:
            setattr(holder, name, self._timed(function, self.calls[holder, name]))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for holder, name, function in self._before:
            setattr(holder, name, function)

    def seconds(self, *watched: tuple[Any, str]) -> float:
        """What all calls of some of the functions took together."""
        return sum(call.seconds for each in watched for call in self.calls[each])

    @staticmethod
    def _timed(function: Callable[..., Any], calls: list[Call]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return await function(*args, **kwargs)
            finally:
                calls.append(Call(began, time.perf_counter() - began))

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                calls.append(Call(began, time.perf_counter() - began))

        return awaited if inspect.iscoroutinefunction(function) else called


def p50_p95(times: Sequence[float]) -> tuple[float, float]:
    """The median and the 95th percentile, rounded to hundredths."""
    ordered = sorted(times)
    return (
        round(statistics.median(ordered), 2),
        round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))], 2),
    )


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


def joined(lines: Sequence[tuple[str, str]], count: Callable[[str], int], size: int) -> list[str]:
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


def questions(lines: Sequence[tuple[str, str]], count: int) -> list[str]:
    """Different lines of at least five words, those that ask first, the same at each run."""
    long = list(dict.fromkeys(text for _, text in lines if 5 <= len(text.split()) <= 60))
    asking = [text for text in long if text.endswith("?")]
    telling = [text for text in long if not text.endswith("?")]
    draw = random.Random(21)
    draw.shuffle(asking)
    draw.shuffle(telling)
    return [*asking, *telling][:count]


async def make_chat(
    database: Database, identity: Identity, lines: Sequence[tuple[str, str]], messages: int
) -> UUID:
    """A chat whose path is `messages` long, made of (author, text) over and over."""
    unit = CountUnit("o200k_base", names=False)
    counts = unit.count_many([("", text) for _, text in lines])
    sealer, chat_id = identity.sealer, new_id()
    rows: list[dict[str, Any]] = []
    total = 0
    for place, ((author, text), tokens) in enumerate(
        islice(cycle(zip(lines, counts, strict=True)), messages)
    ):
        message_id = new_id()
        total += tokens
        scene_place = place % SCENE_LENGTH
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
                "scene_id": rows[-1]["scene_id"] if scene_place else message_id,
                "scene_place": scene_place,
                "sealed_author": sealer.seal(MESSAGE_AUTHOR, message_id, author),
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


def made_up_book(number: int, entries: int, lines: Sequence[tuple[str, str]]) -> bytes:
    """A World Info file: entries of 40 to 120 words, with three keys each.

    Of every fifteenth entry one key is a word that up to 20 of the lines say; the other keys are
    said nowhere. Contents are made of the lines; the last one ends in `lastentry<number>`.
    """
    draw = random.Random(100 + number)
    spoken = [text for _, text in lines]
    counts = Counter(word for text in spoken for word in set(re.findall(r"[a-z]{4,}", text)))
    rare = sorted(word for word, count in counts.items() if count <= 20)
    found: dict[str, Any] = {}
    for place in range(entries):
        words: list[str] = []
        size = draw.randint(40, 120)
        while len(words) < size:
            words += draw.choice(spoken).split()
        words = words[:size]
        if place == entries - 1:
            words.append(f"lastentry{number}")
        found[str(place)] = {
            "uid": place,
            "key": [
                f"ruin{number}x{place}",
                f"house of {number}x{place}",
                f"oath{number}x{place}" if place % 15 else draw.choice(rare),
            ],
            "keysecondary": [],
            "comment": f"Entry {number}.{place}",
            "content": " ".join(words),
            "order": draw.randint(1, 200),
        }
    return json.dumps({"entries": found}).encode()


async def open_account(
    settings: Settings,
    database: Database,
    name: str,
    *,
    is_new: bool = True,
    registry: ModelRegistry | None = None,
) -> Account:
    """Put a server together, and sign somebody up or in."""
    parts = await build_services(
        settings,
        ROOT,
        database,
        kdf=CHEAP_KDF,
        registry=registry or ModelRegistry(demo_tokens_per_second=0),
    )
    accounts, password = parts.accounts, "a long bench password"
    if is_new:
        unlocked = await accounts.sign_up(name, password, invitation=None, address="")
    else:
        unlocked = await accounts.unlock(name, password, address="")
    session_token = await parts.sessions.open_session(unlocked, label=name)
    identity = await parts.sessions.authenticate(session_token, kind="session")
    if identity is None:
        raise SystemExit("The session does not open.")
    token, _ = await parts.sessions.make_api_key(
        identity, label=name, scope="chat", expires_at=None
    )
    return Account(parts, identity, token)


@asynccontextmanager
async def serving(parts: Services) -> AsyncGenerator[int]:
    """The application on a free port, in this process: clocks are read here."""
    config = uvicorn.Config(
        observe(create_app(parts)), port=0, log_config=None, access_log=False, log_level="critical"
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await task


def client(account: Account, port: int) -> httpx.AsyncClient:
    """A client of the account's on the API of a server."""
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}/api/v1",
        headers={"Authorization": f"Bearer {account.token}"},
        timeout=120,
        trust_env=False,
    )


async def import_book(api: httpx.AsyncClient, book: bytes) -> str:
    """Import a lorebook file; gives back the lorebook's id."""
    made = await api.post("/lorebooks/import", files={"file": ("book.json", book)})
    if made.is_error:
        raise SystemExit(made.text)
    found: str = made.json()["lorebook"]["id"]
    return found


async def index_container(account: Account, kind: Kind, container_id: UUID) -> float:
    """Have a chat or a lorebook indexed by the job that does it; gives back the seconds."""
    parts = account.parts
    began = time.perf_counter()
    async with parts.database.write() as session:
        await parts.index.changed(session, account.identity, kind=kind, container_id=container_id)
    await until_indexed(account)
    return time.perf_counter() - began


async def until_indexed(account: Account) -> None:
    """Wait until nothing is left to index, while its server serves."""
    noted = select(IndexChange.id).where(IndexChange.user_id == account.identity.user_id)
    await until_none(account, noted)


async def until_idle(account: Account) -> None:
    """Wait until what follows replies is done: indexing, and all jobs."""
    await until_indexed(account)
    unfinished = select(Job.id).where(Job.user_id == account.identity.user_id)
    await until_none(account, unfinished.where(Job.state.in_(["queued", "running"])))


async def until_none(account: Account, query: Select[UUID]) -> None:
    """Wait until a query finds nothing, while the account's server serves."""
    while True:
        async with account.parts.database.read() as session:
            if await session.scalar(query.limit(1)) is None:
                break
        await asyncio.sleep(0.02)


def stranger_id(number: int) -> UUID:
    """Who else has points in the index."""
    return uuid5(IDS, f"stranger/{number}")


def strangers_vectors(count: int, *, seed: int) -> Floats:
    """Unit vectors, shape (count, 384), drawn at random."""
    drawn = np.random.default_rng(seed).standard_normal((count, DIMENSION), dtype=np.float32)
    unit: Floats = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return unit


async def write_strangers(index: VectorIndex, count: int, *, page: int = 2_000) -> float:
    """Points of messages of `STRANGERS` other owners; gives back the seconds in the engine.

    Vectors are random, terms are drawn as words are: few of them often, most of them seldom.
    """
    draw, took = np.random.default_rng(22), 0.0
    for start in range(0, count, page):
        size = min(page, count - start)
        dense = strangers_vectors(size, seed=start)
        window = strangers_vectors(size, seed=start + 1)
        points: list[Point] = []
        for row in range(size):
            number = start + row
            source_id, owner = uuid5(IDS, str(number)), number % STRANGERS
            container_id = uuid5(IDS, f"chat/{owner}")
            payload = Payload(
                owner_id=stranger_id(owner),
                kind="message",
                container_id=container_id,
                source_id=source_id,
                version=1,
                position=number // STRANGERS,
                words=20,
            )
            points.append(
                Point(
                    id=point_id("message", source_id),
                    payload=payload,
                    dense={"dense": dense[row], "dense_window": window[row]},
                    sparse={"sparse": _drawn(draw, 10), "sparse_window": _drawn(draw, 50)},
                )
            )
        began = time.perf_counter()
        await index.upsert(points)
        took += time.perf_counter() - began
    return took


def _drawn(draw: np.random.Generator, count: int) -> Sparse:
    ranks = np.unique(draw.zipf(1.3, count).astype(np.uint64) % 50_000)
    ids = (ranks * 85_899).astype(np.uint32)
    return Sparse(ids, draw.random(len(ids), dtype=np.float32))


class HashedWords:
    """An embedder that costs next to nothing: a text is the sum of its words' random vectors."""

    def __init__(self) -> None:
        self.spec = EmbedderSpec(provider="bench", model="hashed-words", dimension=DIMENSION)
        self._words: dict[str, Floats] = {}

    async def ready(self) -> EmbedderSpec:
        """See `Embedder`."""
        return self.spec

    async def embed(
        self,
        texts: Sequence[str],
        task: Task,  # noqa: ARG002  # all texts are alike
    ) -> Floats:
        """See `Embedder`."""
        found = np.empty((len(texts), DIMENSION), dtype=np.float32)
        for row, text in enumerate(texts):
            words = re.findall(r"\w+", text.lower()) or ["."]
            total = np.sum([self._word(word) for word in words], axis=0)
            found[row] = total / np.linalg.norm(total)
        return found

    async def aclose(self) -> None:
        """See `Embedder`."""

    def _word(self, word: str) -> Floats:
        vector = self._words.get(word)
        if vector is None:
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
            vector = np.random.default_rng(seed).standard_normal(DIMENSION, dtype=np.float32)
            self._words[word] = vector
        return vector
