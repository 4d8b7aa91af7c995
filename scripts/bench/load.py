"""Measure the processor time of turns, and the first token, while many players play at once.

Server, model and players are processes of their own. The model speaks OpenAI's format: 40 words a
reply, one every 5 ms. Each player takes one turn after the other. Times include the work after the
replies, such as indexing.

The peer is a bare application of Litestar and SQLAlchemy. It stores the same two rows in two
transactions and forwards the same events, without accounts, sealing, a tree, a prompt or an index.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID, uuid4

import httpx
import uvloop
from litestar import Litestar, post
from litestar.response import Stream
from sqlalchemy import update
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from scripts.bench.processes import (
    TALEKEEPER,
    check,
    create_database,
    make_environment,
    read_cpu_seconds,
    serve_on_free_port,
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
    new_parser,
    print_rows,
)

REPLY_WORDS = 40
WORD_SECONDS = 0.005

WARM_UP_TURNS = 3
"""Turns of each player that are not counted."""

SETTLE_SECONDS = 10.0
"""Time after the last turn in which the work after it is still counted."""

Player = tuple[str, str]
"""The `Authorization` header of a player, and the id of a chat."""


async def bench(name: DatabaseName, *, is_bare: bool, players: int, turns: int) -> Row:
    """Return the row of one server: milliseconds to the first token."""
    module = (sys.executable, "-m", "scripts.bench.load")
    async with create_database(name) as url, AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="bench-"))
        _, model = await stack.enter_async_context(start_process(*module, "model"))
        command: tuple[str, ...] = (*module, "bare", url, str(model))
        environment: dict[str, str] = {}
        if not is_bare:
            command = (str(TALEKEEPER), "serve", "--port", "0")
            environment = make_environment(
                database_url=url,
                data_dir=folder,
                embedder="none",
                openai_base_url=f"http://127.0.0.1:{model}/v1",
                openai_models="words",
                default_model="openai/words",
            )
        pid, port = await stack.enter_async_context(start_process(*command, **environment))
        chats: list[Player] = [("", str(uuid4())) for _ in range(players)]
        if not is_bare:
            chats = [await make_player(port, number) for number in range(players)]
        first_tokens: list[float] = []
        await asyncio.gather(*(play(port, *chat, WARM_UP_TURNS, []) for chat in chats))
        await asyncio.sleep(SETTLE_SECONDS)
        cpu, began = read_cpu_seconds(pid), time.perf_counter()
        await asyncio.gather(*(play(port, *chat, turns, first_tokens) for chat in chats))
        seconds = time.perf_counter() - began
        await asyncio.sleep(SETTLE_SECONDS)
        cpu = read_cpu_seconds(pid) - cpu
    count = players * turns
    label = f"{players} players: first token"
    if is_bare:
        label = f"  peer: bare application, {players} players"
    note = f"{1000 * cpu / count:.1f} ms of CPU a turn, {count / seconds:.1f} turns/s"
    return Row(name, label, *get_p50_p95([1000 * each for each in first_tokens]), "ms", note)


async def make_player(port: int, number: int) -> Player:
    """Create an account with a chat."""
    async with sign_up(port, f"player{number}") as client:
        chat = check(await client.post("/chats", json={}))
        return client.headers["authorization"], chat["id"]


async def play(
    port: int, authorization: str, chat_id: str, turns: int, first_tokens: list[float]
) -> None:
    """Take turns on one connection; append the seconds to the first token of each reply."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(turns):
        text = f"What do we do now, {number}? I open the old door."
        began, answer, has_token = time.perf_counter(), b"", False
        writer.write(format_turn(port, authorization, chat_id, text=text))
        while not answer.endswith(b"0\r\n\r\n"):
            more = await reader.read(65_536)
            answer += more
            if not more:
                raise SystemExit(answer.decode())
            if not has_token and b"text.delta" in answer:
                has_token = True
                first_tokens.append(time.perf_counter() - began)
        if b"turn.completed" not in answer:
            raise SystemExit(answer.decode())
    writer.close()


async def serve_model(word_seconds: float = WORD_SECONDS) -> None:
    """Serve a model that answers every request with the same words."""
    answer = partial(_answer_requests, word_seconds)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    print(f"model on :{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def _answer_requests(
    word_seconds: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if head.startswith(b"get "):  # the server asks which abilities the model has
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                continue
            length = head.partition(b"content-length:")[2].split(b"\r\n")[0]
            await reader.readexactly(int(length))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
            writer.write(b"transfer-encoding: chunked\r\n\r\n")
            for number in range(REPLY_WORDS):
                writer.write(_format_chunk({"content": f"word{number} "}))
                await asyncio.sleep(word_seconds)
                if writer.is_closing():  # the server has ended
                    return
            writer.write(_format_chunk({}, "stop") + _format_event("[DONE]") + b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _format_chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _format_event(json.dumps({"id": "1", "model": "words", "choices": [choice]}))


def _format_event(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


class _Base(DeclarativeBase):
    pass


class _BareLine(_Base):
    __tablename__ = "bare_lines"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    chat_id: Mapped[UUID] = mapped_column(index=True)
    role: Mapped[str]
    text: Mapped[str]


async def serve_bare(url: str, model_port: str) -> None:
    """Serve the bare application."""
    is_sqlite = url.startswith("sqlite")
    engine = create_async_engine(url, connect_args={"timeout": 60} if is_sqlite else {})
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    model = httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{model_port}", timeout=60, trust_env=False
    )
    async with engine.begin() as connection:
        await connection.run_sync(_Base.metadata.create_all)
    if is_sqlite:
        async with engine.connect() as connection:
            await connection.exec_driver_sql("PRAGMA journal_mode=WAL")

    async def reply(line_id: UUID, text: str) -> AsyncIterator[bytes]:
        words: list[str] = []
        body = {"model": "words", "stream": True, "messages": [{"role": "user", "content": text}]}
        async with model.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                choice = json.loads(line[6:])["choices"][0]
                if word := choice["delta"].get("content"):
                    words.append(word)
                    event = json.dumps({"text": word})
                    yield f"id: {len(words)}\nevent: text.delta\ndata: {event}\n\n".encode()
        async with sessions.begin() as session:
            query = update(_BareLine).where(_BareLine.id == line_id)
            await session.execute(query.values(text="".join(words)))
        yield b"event: turn.completed\ndata: {}\n\n"

    @post("/api/v1/chats/{chat_id:uuid}/turns", status_code=200)
    async def take_turn(chat_id: UUID, data: dict[str, Any]) -> Stream:
        line = _BareLine(chat_id=chat_id, role="user", text=data["text"])
        answer = _BareLine(chat_id=chat_id, role="assistant", text="")
        async with sessions.begin() as session:
            session.add_all([line, answer])
        return Stream(reply(answer.id, line.text), media_type="text/event-stream")

    await serve_on_free_port(Litestar([take_turn], openapi_config=None, logging_config=None))


async def run(options: argparse.Namespace) -> list[Row]:
    return [
        await bench(name, is_bare=is_bare, players=players, turns=max(2, options.turns // players))
        for players in options.players
        for name in list_databases(options)
        for is_bare in (False, True)
    ]


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("load", __doc__)
    add_database_option(parser)
    parser.add_argument("--players", type=int, nargs="+", default=[10, 50, 150])
    parser.add_argument("--turns", type=int, default=600, help="of all players together")
    options = parser.parse_args(arguments)
    print_rows(uvloop.run(run(options)), as_json=options.json)


if __name__ == "__main__":
    if sys.argv[1] == "model":
        uvloop.run(serve_model(*map(float, sys.argv[2:3])))
    else:
        uvloop.run(serve_bare(*sys.argv[2:4]))
