"""The first token of chat completions: from the provider itself, and through the endpoint.

The provider answers at once, in a separate process. The floor is a server that passes each
request on with the same HTTP client and does nothing else.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpcore2

from backend.characters.cards.model import Card
from backend.chats.models import ChatCharacter
from backend.generation.adapters.openai.model import OpenAICompatibleConfig
from backend.generation.registry import ModelRegistry
from backend.settings import Settings
from scripts.bench.application import (
    Account,
    index_container,
    make_chat,
    open_account,
    serve,
    serve_app,
    wait_until_idle,
)
from scripts.bench.tables import DatabaseName, Row, make_row

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from backend.database.engine import Database

STORED = 1_000
WINDOW = 50
WARM_UP = 5
MODEL = "instant"
MODEL_ID = f"openai/{MODEL}"
SYSTEM = "Write Mara's next reply in a fictional chat."
PATH = "/v1/chat/completions"
TOKEN = b"Yes."
LAST_CHUNK = b"0\r\n\r\n"


def _encode_answer() -> bytes:
    """Return a stream with one token, as it is on the wire."""
    events = b""
    for delta, finish in (({"role": "assistant", "content": TOKEN.decode()}, None), ({}, "stop")):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
        events += b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n"
    events += b"data: [DONE]\n\n"
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return head + b"%x\r\n%s\r\n" % (len(events), events) + LAST_CHUNK


_ANSWER = _encode_answer()
_NOT_FOUND = (
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"
)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of a connection."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            _, found, rest = head.partition(b"content-length:")
            if found:
                await reader.readexactly(int(rest.partition(b"\r\n")[0]))
            writer.write(_ANSWER if b"/chat/completions" in head else _NOT_FOUND)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _run_provider(port: Connection) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    port.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _provide(port: Connection) -> None:
    asyncio.run(_run_provider(port))


@contextmanager
def provide() -> Generator[int]:
    """Run the provider in a process; yield its port."""
    processes = multiprocessing.get_context("spawn")
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=_provide, args=(sender,), daemon=True)
    process.start()
    try:
        yield receiver.recv()
    finally:
        process.terminate()
        process.join()


class PassThrough:
    """An ASGI application that passes requests on to the provider."""

    def __init__(self, port: int, client: httpcore2.AsyncConnectionPool) -> None:
        self._url = f"http://127.0.0.1:{port}{PATH}"
        self._client = client

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request; ignore the events of the server."""
        if scope["type"] != "http":
            return
        body, has_more = b"", True
        while has_more:
            message = await receive()
            body += message.get("body", b"")
            has_more = message.get("more_body", False)
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        async with self._client.stream("POST", self._url, headers=headers, content=body) as answer:
            head = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            async for part in answer.aiter_stream():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Connected:
    """A kept connection to a server, on which first tokens are measured."""

    def __init__(self, port: int, token: str = "") -> None:
        self._port = port
        self._token = token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, model: str, messages: Sequence[Any]) -> float:
        """Return the milliseconds from sending a request to the first token."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        body = json.dumps({"model": model, "messages": messages, "stream": True}).encode()
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        began = time.perf_counter()
        writer.write(head.encode() + body)
        heard, first = b"", 0.0
        while not heard.endswith(LAST_CHUNK):
            part = await reader.read(65_536)
            heard += part
            if not part or b'"error"' in heard:
                raise SystemExit(heard.decode())
            if not first and TOKEN in heard:
                first = (time.perf_counter() - began) * 1000
        return first

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


class WindowClient:
    """A client that sends the last messages of its chat with a new line."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._messages = [
            {"role": "user" if place % 2 else "assistant", "content": texts[place % len(texts)]}
            for place in range(STORED)
        ]
        self._turn = 0

    def say(self) -> list[Any]:
        """Return the messages of the next turn."""
        self._turn += 1
        line = {"role": "user", "content": f"What do we do now? ({self._turn})"}
        self._messages.append(line)
        sent = [{"role": "system", "content": SYSTEM}, *self._messages[-WINDOW:]]
        self._messages.append({"role": "assistant", "content": TOKEN.decode()})
        return sent


async def make_played_chat(
    account: Account, texts: Sequence[str], messages: int
) -> tuple[UUID, UUID]:
    """Store a character, and a chat with it; return their ids."""
    card = Card(name=f"Mara {messages}")
    character = await account.services.characters.create(account.identity, card)
    authored = [("Someone", text) for text in texts]
    chat_id = await make_chat(account.database, account.identity, authored, messages)
    async with account.database.write() as session:
        session.add(ChatCharacter(chat_id=chat_id, character_id=character.id, place=0))
    await account.database.optimize()
    return character.id, chat_id


@asynccontextmanager
async def _open_endpoint(
    settings: Settings, database: Database, provider: int
) -> AsyncGenerator[tuple[Account, int]]:
    registry = ModelRegistry(
        demo_tokens_per_second=0,
        openai=OpenAICompatibleConfig(
            base_url=f"http://127.0.0.1:{provider}/v1",
            models=(MODEL,),
            context_window=200_000,
            max_output_tokens=8_192,
        ),
        default=MODEL_ID,
    )
    account = await open_account(settings, database, "first", registry=registry)
    async with serve(account) as port:
        yield account, port


async def bench_first_tokens(
    name: DatabaseName, database: Database, settings: Settings, texts: Sequence[str], options: Any
) -> list[Row]:
    """Return the rows of the provider, of the floor, of a plain model and of a character."""
    with provide() as provider:
        async with (
            httpcore2.AsyncConnectionPool() as pool,
            serve_app(PassThrough(provider, pool)) as floor_port,
            _open_endpoint(settings, database, provider) as (account, port),
        ):
            character_id, chat_id = await make_played_chat(account, texts, STORED)
            await index_container(account, "message", chat_id)
            ways = {
                "provider itself": (Connected(provider), MODEL),
                "floor: passed on": (Connected(floor_port), MODEL),
                "plain model": (Connected(port, account.token), MODEL_ID),
                "character": (Connected(port, account.token), f"character:{character_id}"),
            }
            client = WindowClient(texts)
            times: dict[str, list[float]] = {label: [] for label in ways}
            for turn in range(options.turns + WARM_UP):
                messages = client.say()
                for label, (connection, model) in ways.items():
                    milliseconds = await connection.ask(model, messages)
                    if turn >= WARM_UP:
                        times[label].append(milliseconds)
                await wait_until_idle(account)
            for connection, _ in ways.values():
                connection.close()
    rows: list[Row] = []
    for label, values in times.items():
        row = make_row(name, f"first token: {label}", values)
        note = f"{row.value - rows[0].value:+.1f} ms" if rows else ""
        rows.append(Row(name, row.label, row.value, row.p95, row.unit, note))
    return rows
