"""HTTP and OpenAI's chat completions, as far as the scripted model needs them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

MODEL = "bench"
MODEL_ID = f"openai/{MODEL}"
CUT = -1
"""In place of a status: the connection is cut without an answer."""


class CutError(Exception):
    """Raised between the pieces of a stream: the connection is cut there."""


@dataclass(frozen=True)
class Answer:
    """An answer: a whole body, or the pieces of a stream, at once or as they come."""

    status: int = 200
    body: Any = None
    pieces: Sequence[str] | AsyncIterator[str] | None = None
    headers: Mapping[str, str] | None = None


Respond = Callable[[str, Any], Awaitable[Answer]]
"""Takes a path and a parsed body."""


async def listen(respond: Respond) -> tuple[asyncio.Server, int]:
    """Answer on a free port of this machine; the server and the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, CutError):
            while await _serve_one(reader, writer, respond):
                pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
    return server, server.sockets[0].getsockname()[1]


async def _serve_one(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, respond: Respond
) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in lines)}
    content = await reader.readexactly(int(headers.get("content-length", "0")))
    answer = await respond(first.split(" ")[1], json.loads(content) if content else None)
    if answer.status == CUT:
        return False
    extra = "".join(f"{name}: {value}\r\n" for name, value in (answer.headers or {}).items())
    start = f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n{extra}"
    if answer.pieces is None:
        raw = isinstance(answer.body, bytes)
        body = answer.body if raw else json.dumps(answer.body).encode()
        writer.write(
            f"{start}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
    else:
        writer.write(
            f"{start}content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )
        async for piece in _one_by_one(answer.pieces):
            data = f"data: {piece}\n\n".encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def _one_by_one(pieces: Sequence[str] | AsyncIterator[str]) -> AsyncIterator[str]:
    if isinstance(pieces, Sequence):
        for piece in pieces:
            yield piece
    else:
        async for piece in pieces:
            yield piece


def tokens_of(value: Any) -> int:
    """About how many tokens something is, as JSON: four characters each."""
    return len(json.dumps(value, ensure_ascii=False)) // 4 + 1


def kind_of(body: Any) -> Literal["reply", "triage", "step"]:
    """What a request is for: the triage asks for a schema, and a step of the agent has its tools.

    Every request asks for a stream. The triage and the steps may be answered as a whole, as some
    servers do.
    """
    if any(each["function"]["name"] == "finish" for each in body.get("tools") or ()):
        return "step"
    return "triage" if "response_format" in body else "reply"


def streamed(text: str, prompt_tokens: int) -> Answer:
    """A reply in pieces of some words."""
    words = text.split(" ")
    texts = [" ".join(words[at : at + 4]) for at in range(0, len(words), 4)]
    texts = [texts[0], *(f" {each}" for each in texts[1:])]
    chunks: list[Any] = [chunk({"role": "assistant", "content": each}) for each in texts]
    chunks.append(chunk({}, finish="stop"))
    chunks.append({**chunk({}), "choices": [], "usage": usage(prompt_tokens, tokens_of(text))})
    return Answer(pieces=[*map(json.dumps, chunks), "[DONE]"])


def streamed_calls(calls: Sequence[Any], prompt_tokens: int) -> Answer:
    """A stream of calls of tools, each in one piece."""
    chunks: list[Any] = [
        chunk({"tool_calls": [{"index": index, **each}]}) for index, each in enumerate(calls)
    ]
    chunks.append(chunk({}, finish="tool_calls"))
    chunks.append({**chunk({}), "choices": [], "usage": usage(prompt_tokens, tokens_of(calls))})
    return Answer(pieces=[*map(json.dumps, chunks), "[DONE]"])


def said(content: str | None, prompt_tokens: int, calls: Sequence[Any] = ()) -> Answer:
    """A whole answer: a text, or calls of tools."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls)
    finish = "tool_calls" if calls else "stop"
    return Answer(
        body={
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": usage(prompt_tokens, tokens_of(message)),
        }
    )


def call(call_id: str, name: str, arguments: Mapping[str, Any]) -> Any:
    """One call of a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    """One chunk of a streamed reply."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def usage(prompt: int, completion: int) -> dict[str, int]:
    """What a request took, in tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
