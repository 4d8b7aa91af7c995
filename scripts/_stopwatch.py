"""How long turns take until the model is called: a model that notes it, and a client that asks."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from backend.database.engine import Database
from backend.generation.model import (
    Finish,
    ModelSpec,
    Piece,
    Prompt,
    TextPiece,
    TokenUsage,
)
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import SAMPLING_FIELDS, Sampling
from backend.memory import runtime
from backend.memory.embedding.cache import CachedEmbedder
from backend.settings import Settings
from scripts._bench import HashedWords

WARM_UP = 3
"""Turns before the first that counts."""


@dataclass
class Timed:
    """Turns that were timed: their milliseconds, when they were asked for, ids of the replies."""

    times: list[float] = field(default_factory=list[float])
    starts: list[float] = field(default_factory=list[float])
    replies: list[str] = field(default_factory=list[str])


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
        fixed=frozenset({"tool_support"}),
    )

    def __init__(self) -> None:
        self.called_at = 0.0
        self.prompt = Prompt([])

    async def stream(self, prompt: Prompt, _: Sampling, **__: Any) -> AsyncGenerator[Piece, None]:
        """Note the time and answer."""
        self.called_at = time.perf_counter()
        self.prompt = prompt
        yield TextPiece("Yes.")
        yield TokenUsage(prompt_tokens=0, completion_tokens=1)
        yield Finish("stop")


class StopwatchRegistry(ModelRegistry):
    """The demo's registry with the stopwatch as its only model."""

    def __init__(self, model: StopwatchModel) -> None:
        super().__init__(built_in=model)  # type: ignore[arg-type]  # it only streams


async def time_turns(
    port: int,
    token: str,
    chat_id: UUID,
    model: StopwatchModel,
    turns: int,
    texts: Sequence[str] = (),
    settle: Callable[[], Awaitable[None]] | None = None,
    warm_up: int = WARM_UP,
) -> Timed:
    """Milliseconds from writing each request to the model's being called.

    A plain socket, so that no client's work is measured. What is said are the `texts`, if any.
    Between two turns there are 20 ms, and whatever `settle` waits for. The first `warm_up` turns
    do not count.
    """
    timed = Timed()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(turns + warm_up):
        text = texts[number % len(texts)] if texts else f"What do we do now? ({number})"
        body = json.dumps({"text": text}).encode()
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
        if number >= warm_up:  # the first ones warm caches and connections up
            timed.times.append((model.called_at - started) * 1000)
            timed.starts.append(started)
            timed.replies += re.findall(r'"message_id":"([0-9a-f-]+)"', answer.decode())[-1:]
        await asyncio.sleep(0.02)
        if settle is not None:
            await settle()
    writer.close()
    return timed


def prompt_settings(url: str, folder: Path, **others: Any) -> Settings:
    """Settings of the servers that prompts are timed on."""
    return Settings(
        _env_file=None,  # type: ignore[call-arg]
        data_dir=folder,
        database_url=url,
        registration="open",
        **others,
    )


@contextmanager
def hashed_words() -> Generator[None]:
    """Have a server that is put together in here embed with `HashedWords`."""
    name = "build_cached_embedder"
    before = getattr(runtime, name)
    setattr(runtime, name, _hashed_words)
    try:
        yield
    finally:
        setattr(runtime, name, before)


def _hashed_words(_: Settings, database: Database) -> CachedEmbedder:
    return CachedEmbedder(database, HashedWords())
