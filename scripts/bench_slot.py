#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""Measure the waits of turns for background work on a server that answers one request at a time.

    scripts/bench_slot.py [--turns 20] [--think 0.3] [--late] [--json]

The model is a server in this process with one slot. It thinks before the first token, and stops
when its client hangs up: at once, or with `--late` only before the next token, four a second. The
agent of the chronicle asks it all the time, for answers that take a minute. Each turn begins while
such a request is being answered. The wait is the time to the first token, less the time that the
model thinks. On SQLite one process does everything; on PostgreSQL the turns are in one process and
the background work is in another.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx

from scripts._bench_table import DatabaseName, Row, new_database, print_rows, spread
from scripts._load import SERVE, open_process

TOKEN_SECONDS = 0.25
MANY_TOKENS, FEW_TOKENS = 240, 2


class OneSlot:
    """A model that answers one request at a time, in the order in which they come."""

    def __init__(self, *, think: float, is_late: bool) -> None:
        self.background = asyncio.Event()
        self._think = think
        self._is_late = is_late
        self._slot = asyncio.Lock()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length:")[2].split(b"\r\n")[0]
            body = json.loads(await reader.readexactly(int(length or b"0")) or b"{}")
            if b"/chat/completions" not in head:
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            else:
                async with self._slot:
                    await self._answer(body, reader, writer)
        writer.close()

    async def _answer(
        self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        is_background = "response_format" in body or "tools" in body
        speaking = asyncio.create_task(self._speak(reader, writer, is_background=is_background))
        if is_background:
            self.background.set()
        leaving = asyncio.create_task(reader.read(1))
        waiting = [speaking] if self._is_late else [speaking, leaving]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in (speaking, leaving):
            task.cancel()
        await asyncio.wait([speaking, leaving])
        if is_background:
            self.background.clear()

    async def _speak(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_background: bool
    ) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        await asyncio.sleep(self._think)
        for _ in range(MANY_TOKENS if is_background else FEW_TOKENS):
            if reader.at_eof():
                return
            writer.write(_event({"content": "word "}))
            await writer.drain()
            await asyncio.sleep(TOKEN_SECONDS)
        writer.write(_event({}, finish="stop") + b"data: [DONE]\n\n")
        await writer.drain()


def _event(delta: dict[str, str], *, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()


async def measure(database: DatabaseName, options: argparse.Namespace) -> list[Row]:
    """The waits of so many turns, in milliseconds."""
    model = OneSlot(think=options.think, is_late=options.late)
    async with await asyncio.start_server(model.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with new_database(database) as url, _talekeeper(url, port, database) as address:
            waits = await _play(address, model, options)
    note = "the model notices late" if options.late else "the model notices at once"
    worst = Row(database, "longest wait for the first token", max(waits), None, "ms", note)
    return [spread(database, "wait for the first token", waits, unit="ms", note=note), worst]


async def _play(address: str, model: OneSlot, options: argparse.Namespace) -> list[float]:
    waits: list[float] = []
    async with httpx.AsyncClient(base_url=address, timeout=120, trust_env=False) as client:
        account = {"username": "player", "password": "a long bench password"}
        (await client.post("/accounts", json=account)).raise_for_status()
        client.headers["x-csrftoken"] = client.cookies["csrftoken"]
        chat = (await client.post("/chats", json={})).json()["id"]
        await client.patch(f"/chats/{chat}/settings", json={"chronicle_enabled": True})
        for number in range(options.turns + 1):
            if number:
                await model.background.wait()
            begun = time.perf_counter()
            first = 0.0
            body = {"text": f"What do we do now, {number}?"}
            async with client.stream("POST", f"/chats/{chat}/turns", json=body) as answer:
                async for line in answer.aiter_lines():
                    if line == "event: text.delta" and not first:
                        first = time.perf_counter() - begun
            if number:
                waits.append(round((first - options.think) * 1000, 1))
    return waits


@contextlib.asynccontextmanager
async def _talekeeper(url: str, model: int, database: DatabaseName) -> AsyncGenerator[str]:
    """Start a Talekeeper and yield its address. On PostgreSQL a second one does the jobs."""
    settings = {
        "database_url": url,
        "root_key": base64.b64encode(b"r" * 32).decode(),
        "log_level": "error",
        "embedder": "none",
        "max_requests_per_minute_per_user": "0",
        "max_requests_per_minute_per_address": "0",
        "openai_base_url": f"http://127.0.0.1:{model}/v1",
        "openai_models": "words",
        "openai_server": "llama-cpp",
        "default_model": "openai/words",
    }
    command = [str(SERVE), "serve", "--port", "0"]
    async with contextlib.AsyncExitStack() as processes:
        folder = Path(processes.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        if database == "postgres":
            values = _environment(settings, data_dir=folder / "jobs")
            await processes.enter_async_context(open_process(*command, **values))
            settings["job_workers"] = "0"
        values = _environment(settings, data_dir=folder / "turns")
        _, port = await processes.enter_async_context(open_process(*command, **values))
        yield f"http://127.0.0.1:{port}/api/v1"


def _environment(settings: dict[str, str], *, data_dir: Path) -> dict[str, str]:
    values = {**settings, "data_dir": str(data_dir)}
    return {f"TALEKEEPER_{name.upper()}": value for name, value in values.items()}


async def main() -> None:
    """Measure on both databases, and print the rows."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--database", choices=("sqlite", "postgres"), action="append")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--think", type=float, default=0.3)
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[Row] = []
    for database in options.database or ("sqlite", "postgres"):
        rows += await measure(database, options)
    print_rows(rows, as_json=options.json)
    if any(row.p95 is None and row.value > 2000 for row in rows):  # the aim
        sys.exit("A turn waited for more than 2 seconds.")


if __name__ == "__main__":
    asyncio.run(main())
