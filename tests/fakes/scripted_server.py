"""An HTTP server on loopback with scripted answers that records its requests.

It speaks HTTP/1.1 over a real socket, so that time-outs, broken connections and clients that hang
up are what they are in the wild. The fakes of the model providers build on it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Request:
    """A received request. Header names are in lower case. `body` is parsed JSON, or None."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


class Silence:
    """In a stream: nothing more is sent until the client hangs up."""


class Break:
    """In a stream: the connection is cut."""


@dataclass(frozen=True)
class Gate:
    """In a stream: nothing more is sent until the test opens it."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)


Event = Mapping[str, Any] | str | bytes | Silence | Break | Gate
"""A JSON object or a bare text is sent as one server-sent event, and bytes as they are.

The others steer the stream.
"""


@dataclass(frozen=True)
class Answer:
    """An answer: `events` where a stream is asked for and there are any, else `body` as JSON.

    A `body` that is bytes is sent as it is.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Any = None
    events: Sequence[Event] | None = None


class Exchange(NamedTuple):
    """A request, its answer, and the connection."""

    request: Request
    answer: Answer
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class ScriptedServer:
    """Answers its scripted answers in order, then the usual one for ever.

    `requests` are those that came in; `hung_up` is set when a client has gone before its answer
    was complete. Requests to the paths in `aside` are answered from there, at any time: they are
    not scripted and not among `requests`. `probes` lists them.
    """

    usual_answer: ClassVar[Answer]

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self.port: int = port
        self.requests: list[Request] = []
        self.aside: dict[str, Answer] = {}
        self.probes: list[Request] = []
        self.hung_up = asyncio.Event()
        self._answers: deque[Answer] = deque()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._origin = ""

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return self._origin

    def script(self, *answers: Answer) -> None:
        """Answer the next requests with these."""
        self._answers.extend(answers)

    def unscript(self) -> None:
        """Drop the scripted answers that were not sent."""
        self._answers.clear()

    def usual(self, request: Request) -> Answer:  # noqa: ARG002  # for those who tell them apart
        """The answer to a request for which there is none in the script."""
        return self.usual_answer

    def wants_stream(self, request: Request) -> bool:
        """True if the client asked for a stream."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.host, self.port)
        port: int = self._server.sockets[0].getsockname()[1]
        self.port = port
        self._origin = f"http://{self.host}:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read(reader)) is not None:
                if request.path in self.aside:
                    self.probes.append(request)
                    answer = self.aside[request.path]
                else:
                    self.requests.append(request)
                    answer = self._answers.popleft() if self._answers else self.usual(request)
                if not await self.respond(Exchange(request, answer, reader, writer)):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up.set()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def respond(self, exchange: Exchange) -> bool:
        """Send the answer. False if the connection is over."""
        request, answer, reader, writer = exchange
        if answer.events is None or not self.wants_stream(request):
            writer.write(_whole(answer))
            await writer.drain()
            return True
        sending = asyncio.ensure_future(_send_events(answer, writer))
        leaving = asyncio.ensure_future(reader.read(1))
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finished = sending.done()
        if not finished:
            self.hung_up.set()
        for task in (sending, leaving):
            task.cancel()
        await asyncio.wait((sending, leaving))
        return finished and sending.result()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """The next request on a connection; None when the client closes it instead."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    content = await reader.readexactly(int(headers.get("content-length", "0")))
    url = urlsplit(target)
    body = json.loads(content) if content else None
    return Request(method, url.path, dict(parse_qsl(url.query)), headers, body)


def encode_head(status: int, headers: Mapping[str, str]) -> bytes:
    known = status in HTTPStatus.__members__.values()  # Cloudflare has some of its own
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase if known else 'Unknown'}"]
    lines += (f"{name}: {value}" for name, value in headers.items())
    return "\r\n".join((*lines, "", "")).encode()


def _whole(answer: Answer) -> bytes:
    body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
    kind = "text/html" if isinstance(answer.body, bytes) else "application/json"
    headers = {"content-type": kind, "content-length": str(len(body)), **answer.headers}
    return encode_head(answer.status, headers) + body


async def _send_events(answer: Answer, writer: asyncio.StreamWriter) -> bool:
    await send_head(answer, writer)
    for event in answer.events or ():
        if isinstance(event, Break):
            return False
        if isinstance(event, Silence):
            await asyncio.Event().wait()
        elif isinstance(event, Gate):
            await event.opened.wait()
        else:
            await send_event(event, writer)
    await send_end(writer)
    return True


async def send_head(answer: Answer, writer: asyncio.StreamWriter) -> None:
    """Begin a stream of events."""
    headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
    writer.write(encode_head(answer.status, {**headers, **answer.headers}))
    await writer.drain()


async def send_event(event: Mapping[str, Any] | str | bytes, writer: asyncio.StreamWriter) -> None:
    """Send one event of a stream; bytes as they are."""
    data = event if isinstance(event, bytes) else _framed(event)
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


async def send_end(writer: asyncio.StreamWriter) -> None:
    """End a stream of events."""
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _framed(event: Mapping[str, Any] | str) -> bytes:
    text = event if isinstance(event, str) else json.dumps(event)
    return f"data: {text}\n\n".encode()
