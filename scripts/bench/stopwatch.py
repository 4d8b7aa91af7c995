"""Clocks: how long turns take until the model is called, and how long watched functions take."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from backend.generation.model import Finish, ModelSpec, Piece, Prompt, TextPiece, TokenUsage
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import SAMPLING_FIELDS, Sampling

WARM_UP_TURNS = 3


@dataclass(frozen=True)
class TimedCall:
    """The start and the duration of a call, in seconds."""

    began: float
    seconds: float


class Watch:
    """A context that measures the calls of functions.

    Args:
        watched: (class or module, name of its function) of each.
    """

    def __init__(self, *watched: tuple[Any, str]) -> None:
        self.calls: dict[tuple[Any, str], list[TimedCall]] = {each: [] for each in watched}
        self._originals: list[tuple[Any, str, Any]] = []
        for holder, name in watched:
            if not hasattr(holder, name):
                raise SystemExit(f"{holder.__name__} has no {name}: change this benchmark.")
            self._originals.append((holder, name, getattr(holder, name)))

    def __enter__(self) -> Self:
        for holder, name, function in self._originals:
            setattr(holder, name, _time_calls(function, self.calls[holder, name]))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for holder, name, function in self._originals:
            setattr(holder, name, function)

    def sum_seconds(self, *watched: tuple[Any, str]) -> float:
        """Return the total duration of all calls of some of the functions."""
        return sum(call.seconds for each in watched for call in self.calls[each])


def _time_calls(function: Callable[..., Any], calls: list[TimedCall]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run_async(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return await function(*args, **kwargs)
        finally:
            calls.append(TimedCall(began, time.perf_counter() - began))

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            calls.append(TimedCall(began, time.perf_counter() - began))

    return run_async if inspect.iscoroutinefunction(function) else run


class StopwatchModel:
    """A model that stores the time of its last call and answers with one word."""

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
        self.called_at = time.perf_counter()
        self.prompt = prompt
        yield TextPiece("Yes.")
        yield TokenUsage(prompt_tokens=0, completion_tokens=1)
        yield Finish("stop")


class OneModelRegistry(ModelRegistry):
    """A registry with one model."""

    def __init__(self, model: Any) -> None:
        super().__init__(built_in=model)


@dataclass
class TurnTimes:
    """Milliseconds and starts of turns, and the ids of their replies."""

    milliseconds: list[float] = field(default_factory=list[float])
    starts: list[float] = field(default_factory=list[float])
    replies: list[str] = field(default_factory=list[str])


async def time_turns(
    port: int,
    token: str,
    chat_id: UUID,
    model: StopwatchModel,
    turns: int,
    texts: Sequence[str] = (),
    settle: Callable[[], Awaitable[None]] | None = None,
    warm_up: int = WARM_UP_TURNS,
) -> TurnTimes:
    """Measure milliseconds from writing each request until the model is called.

    It writes to a plain socket, because a client would add work of its own. Between two turns it
    waits 20 ms and then for `settle`. The first `warm_up` turns fill caches and are not counted.
    """
    times = TurnTimes()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(turns + warm_up):
        text = texts[number % len(texts)] if texts else f"What do we do now? ({number})"
        began = time.perf_counter()
        writer.write(format_turn(port, f"Bearer {token}", str(chat_id), text=text))
        await writer.drain()
        answer = await reader.readuntil(b"0\r\n\r\n")
        if b"turn.completed" not in answer:
            raise SystemExit(answer.decode())
        if number >= warm_up:
            times.milliseconds.append((model.called_at - began) * 1000)
            times.starts.append(began)
            times.replies += re.findall(r'"message_id":"([0-9a-f-]+)"', answer.decode())[-1:]
        await asyncio.sleep(0.02)
        if settle is not None:
            await settle()
    writer.close()
    return times


def format_turn(
    port: int, authorization: str, chat_id: str, *, header: str = "", **turn: Any
) -> bytes:
    """Return the HTTP request of a turn. `header` is one more line of its head."""
    body = json.dumps(turn).encode()
    head = (
        f"POST /api/v1/chats/{chat_id}/turns HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Authorization: {authorization}\r\nContent-Type: application/json\r\n"
        f"{header}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
