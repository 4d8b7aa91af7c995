"""Many players at once: what a turn costs the server's processor, next to a bare application.

Server, model and players are processes of their own. The model speaks OpenAI's format over a
socket, 40 words a reply, one every 5 ms. The bare application is Litestar and SQLAlchemy alone: it
stores the same two rows in two transactions and passes the same events on, without accounts,
sealing, a tree, a prompt or an index.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID, uuid4

import httpx
import uvicorn
import uvloop
from litestar import Litestar, post
from litestar.response import Stream
from sqlalchemy import update
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from scripts._processes import cpu_seconds

WORDS = 40
PACE = 0.005
"""Seconds between two words of the model."""

WARM_UP = 3
"""Turns of each player that do not count."""

SETTLE = 3.0
"""Seconds after the last turn in which what follows it (indexing) is still counted."""

SERVE = Path(sys.executable).with_name("talekeeper")


@dataclass(frozen=True)
class Load:
    """What a number of players cost. Times in milliseconds."""

    players: int
    cpu: float
    turns_per_second: float
    first_p50: float
    first_p95: float
    stages: Mapping[str, float] = field(default_factory=dict[str, float])
    """CPU a turn of each stage, where it was asked for."""


async def bench_load(
    url: str, *, bare: bool, players: int, turns: int, by_stage: bool = False
) -> Load:
    """Have players take turns, one right after the other.

    `by_stage` counts the server's CPU by the stages of a turn as well, which costs it some 2%.
    """
    with TemporaryDirectory(prefix="bench-") as folder:
        async with open_process(sys.executable, "-m", "scripts._load", "model") as (_, model):
            environment = _bare(url, model) if bare else _talekeeper(url, model, folder)
            command = [sys.executable, "-m", "scripts._load", "bare"]
            if not bare:
                server = [sys.executable, "-m", "scripts._stages"] if by_stage else [str(SERVE)]
                command = [*server, "serve", "--port", "0"]
            stages = Path(folder) / "stages.json" if by_stage else None
            environment["BENCH_STAGES"] = str(stages or "")
            async with open_process(*command, **environment) as (pid, port):
                make = _no_players if bare else _make_players
                chats = await make(port, players)
                return await _measured(pid, port, chats, turns, stages)


async def _measured(
    pid: int, port: int, chats: list[tuple[str, str]], turns: int, stages: Path | None
) -> Load:
    first: list[float] = []
    await asyncio.gather(*(_play(port, *chat, WARM_UP, []) for chat in chats))
    await asyncio.sleep(SETTLE)
    before = await _stage_seconds(pid, stages)
    cpu, begun = cpu_seconds(pid), time.perf_counter()
    await asyncio.gather(*(_play(port, *chat, turns, first) for chat in chats))
    took = time.perf_counter() - begun
    await asyncio.sleep(SETTLE)
    count = len(chats) * turns
    first.sort()
    spent = cpu_seconds(pid) - cpu
    after = await _stage_seconds(pid, stages)
    seconds = {stage: total - before.get(stage, 0.0) for stage, total in after.items()}
    if seconds:
        seconds["the rest: event loop, HTTP, sockets, the engine"] = spent - sum(seconds.values())
    return Load(
        players=len(chats),
        cpu=round(spent / count * 1000, 1),
        turns_per_second=round(count / took, 1),
        first_p50=round(first[count // 2] * 1000),
        first_p95=round(first[int(count * 0.95)] * 1000),
        stages={stage: round(spent / count * 1000, 1) for stage, spent in seconds.items()},
    )


async def _stage_seconds(pid: int, target: Path | None) -> dict[str, float]:
    """What `scripts._stages` counts in a process; nothing where it is not asked."""
    if target is None:
        return {}
    os.kill(pid, signal.SIGUSR1)
    while (found := _taken(target)) is None:
        await asyncio.sleep(0.05)
    return found


def _taken(target: Path) -> dict[str, float] | None:
    """What was written to a file, which goes; None while there is nothing."""
    if not target.exists():
        return None
    found: dict[str, float] = json.loads(target.read_text())
    target.unlink()
    return found


async def _play(port: int, key: str, chat_id: str, turns: int, first: list[float]) -> None:
    """Take turns on one connection; adds the seconds to each reply's first word to `first`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(turns):
        body = json.dumps({"text": f"What do we do now, {number}? I open the old door."}).encode()
        head = (
            f"POST /api/v1/chats/{chat_id}/turns HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        begun, answer, has_begun = time.perf_counter(), b"", False
        writer.write(head.encode() + body)
        while not answer.endswith(b"0\r\n\r\n"):
            more = await reader.read(65_536)
            answer += more
            if not more:
                raise SystemExit(answer.decode())
            if not has_begun and b"text.delta" in answer:
                has_begun = True
                first.append(time.perf_counter() - begun)
        if b"turn.completed" not in answer:
            raise SystemExit(answer.decode())
    writer.close()


async def _make_players(port: int, players: int) -> list[tuple[str, str]]:
    """(API key, chat) of a new account each."""
    made: list[tuple[str, str]] = []
    address = f"http://127.0.0.1:{port}/api/v1"
    for number in range(players):
        async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False) as client:
            account = {"username": f"player{number}", "password": "a long bench password"}
            (await client.post("/accounts", json=account)).raise_for_status()
            client.headers["x-csrftoken"] = client.cookies["csrftoken"]
            key = (await client.post("/api-keys", json={"label": "b"})).json()["token"]
            made.append((key, (await client.post("/chats", json={})).json()["id"]))
    return made


async def _no_players(_: int, players: int) -> list[tuple[str, str]]:
    return [("", str(uuid4())) for _ in range(players)]


def _talekeeper(url: str, model: int, folder: str) -> dict[str, str]:
    settings = {
        "database_url": url,
        "data_dir": folder,
        "registration": "open",
        "log_level": "error",
        "embedder": "none",
        "max_requests_per_minute_per_user": "0",
        "max_requests_per_minute_per_address": "0",
        "openai_base_url": f"http://127.0.0.1:{model}/v1",
        "openai_models": "words",
        "default_model": "openai/words",
    }
    return {f"TALEKEEPER_{name.upper()}": value for name, value in settings.items()}


def _bare(url: str, model: int) -> dict[str, str]:
    return {"BENCH_DATABASE_URL": url, "BENCH_MODEL_PORT": str(model)}


@asynccontextmanager
async def open_process(*command: str, **environment: str) -> AsyncGenerator[tuple[int, int]]:
    """(id, port) of a process whose first line ends in the port that it listens on."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},  # noqa: TID251  # handed on, not read
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        line = await process.stdout.readline() if process.stdout else b""
        port = int(line.decode().strip().rstrip("/").rpartition(":")[2])
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.05)
        yield process.pid, port
    finally:
        process.terminate()
        await process.wait()


def _chunk(finish: str | None = None, **delta: str) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _on_wire(json.dumps({"id": "1", "model": "words", "choices": [choice]}))


def _on_wire(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


async def _speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request of a connection with the same words."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length:")[2].split(b"\r\n")[0]
            await reader.readexactly(int(length))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
            writer.write(b"transfer-encoding: chunked\r\n\r\n")
            for number in range(WORDS):
                writer.write(_chunk(content=f"word{number} "))
                await asyncio.sleep(PACE)
            writer.write(_chunk("stop") + _on_wire("[DONE]") + b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _model() -> None:
    server = await asyncio.start_server(_speak, "127.0.0.1", 0)
    print(f"model on :{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


class _Base(DeclarativeBase):
    pass


class _Line(_Base):
    __tablename__ = "bare_lines"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    chat_id: Mapped[UUID] = mapped_column(index=True)
    role: Mapped[str]
    text: Mapped[str]


async def _bare_application() -> None:
    variables = os.environ  # noqa: TID251  # of this script's own
    url = variables["BENCH_DATABASE_URL"]
    is_sqlite = url.startswith("sqlite")
    engine = create_async_engine(url, connect_args={"timeout": 60} if is_sqlite else {})
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    model = httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{variables['BENCH_MODEL_PORT']}", timeout=60, trust_env=False
    )
    async with engine.begin() as connection:
        await connection.run_sync(_Base.metadata.create_all)
    if is_sqlite:
        async with engine.connect() as connection:
            await connection.exec_driver_sql("PRAGMA journal_mode=WAL")

    async def reply(line_id: UUID, text: str) -> AsyncIterator[bytes]:
        said: list[str] = []
        body = {"model": "words", "stream": True, "messages": [{"role": "user", "content": text}]}
        async with model.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                choice = json.loads(line[6:])["choices"][0]
                if word := choice["delta"].get("content"):
                    said.append(word)
                    event = json.dumps({"text": word})
                    yield f"id: {len(said)}\nevent: text.delta\ndata: {event}\n\n".encode()
        async with sessions.begin() as session:
            query = update(_Line).where(_Line.id == line_id).values(text="".join(said))
            await session.execute(query)
        yield b"event: turn.completed\ndata: {}\n\n"

    @post("/api/v1/chats/{chat_id:uuid}/turns", status_code=200)
    async def take_turn(chat_id: UUID, data: dict[str, Any]) -> Stream:
        line = _Line(chat_id=chat_id, role="user", text=data["text"])
        answer = _Line(chat_id=chat_id, role="assistant", text="")
        async with sessions.begin() as session:
            session.add_all([line, answer])
        return Stream(reply(answer.id, line.text), media_type="text/event-stream")

    config = uvicorn.Config(
        Litestar([take_turn], openapi_config=None, logging_config=None),
        port=0,
        log_config=None,
        access_log=False,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    print(f"bare on :{server.servers[0].sockets[0].getsockname()[1]}", flush=True)
    await task


if __name__ == "__main__":
    uvloop.run(_model() if sys.argv[1] == "model" else _bare_application())
