"""A server for scripted models that speak OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

MODEL = "bench"
MODEL_ID = f"openai/{MODEL}"
CUT = -1
"""A status: the connection is closed without an answer."""

_NEW_LINES = re.compile(r"<new_lines>\n(.*?)\n?</new_lines>", re.DOTALL)
_LINE = re.compile(r"^#(\d+) ([^:\n]*): (.*(?:\n    .*)*)", re.MULTILINE)


class CutError(Exception):
    """Raised between the pieces of a stream to close the connection."""


@dataclass(frozen=True)
class Answer:
    """A whole body, or the pieces of a stream."""

    status: int = 200
    body: Any = None
    pieces: Sequence[str] | AsyncIterator[str] | None = None
    headers: Mapping[str, str] | None = None


Respond = Callable[[str, Any], Awaitable[Answer]]
"""Takes a path and a parsed body."""


async def listen(respond: Respond) -> tuple[asyncio.Server, int]:
    """Answer requests on a free port; return the server and the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, CutError):
            while await _answer_one(reader, writer, respond):
                pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
    return server, server.sockets[0].getsockname()[1]


async def _answer_one(
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
        is_encoded = isinstance(answer.body, bytes)
        body = answer.body if is_encoded else json.dumps(answer.body).encode()
        start += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(start.encode() + body)
    else:
        start += "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(start.encode())
        async for piece in _iterate(answer.pieces):
            data = f"data: {piece}\n\n".encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def _iterate(pieces: Sequence[str] | AsyncIterator[str]) -> AsyncIterator[str]:
    if isinstance(pieces, Sequence):
        for piece in pieces:
            yield piece
    else:
        async for piece in pieces:
            yield piece


def estimate_tokens(value: Any) -> int:
    """Return the tokens of a value as JSON, at four characters each."""
    return len(json.dumps(value, ensure_ascii=False)) // 4 + 1


def get_kind(body: Any) -> Literal["reply", "triage", "step"]:
    """Return the purpose of a request: the triage has a schema, a step of the agent has tools.

    Every request asks for a stream. The triage and the steps may be answered as a whole, as some
    servers do.
    """
    if any(each["function"]["name"] == "finish" for each in body.get("tools") or ()):
        return "step"
    return "triage" if "response_format" in body else "reply"


def find_new_lines(messages: Sequence[Any]) -> list[tuple[int, str]]:
    """Return (number, text) of the new lines in the agent's prompt."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, str) and (section := _NEW_LINES.search(content)):
            lines = _LINE.finditer(section[1])
            return [(int(line[1]), line[3].replace("\n    ", "\n")) for line in lines]
    return []


def make_answer(content: str | None, prompt_tokens: int, calls: Sequence[Any] = ()) -> Answer:
    """Return a whole answer: a text or tool calls."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls)
    finish = "tool_calls" if calls else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = make_usage(prompt_tokens, estimate_tokens(message))
    return Answer(body=_make_body("chat.completion", choice) | {"usage": usage})


def make_call(call_id: str, name: str, arguments: Mapping[str, Any]) -> Any:
    """Return a tool call."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def make_chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    """Return a chunk of a streamed reply."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _make_body("chat.completion.chunk", choice)


def _make_body(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    common = {"id": "chatcmpl-1", "object": kind, "created": 0, "model": MODEL}
    return {**common, "choices": [choice]}


def make_usage(prompt: int, completion: int) -> dict[str, int]:
    """Return the token counts of a request."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
