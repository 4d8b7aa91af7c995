"""The processes of a whole installation: model, index, server and workers, started and killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from scripts._bench_table import DatabaseName, Started, start
from scripts._enrichment_wire import MODEL, MODEL_ID

WORKERS = 2
PATIENCE = 60.0


@dataclass
class Town:
    """A Talekeeper: on PostgreSQL a server and two workers, on SQLite a server alone."""

    name: DatabaseName
    environment: dict[str, str]
    folder: Path
    port: int
    model: Started | None
    index: Started | None
    server: asyncio.subprocess.Process | None = None
    workers: list[asyncio.subprocess.Process | None] = field(
        default_factory=list[asyncio.subprocess.Process | None]
    )

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Start everything that is not there yet, and wait until the server answers."""
        if self.server is None:
            self.server = await self._run("serve", "--port", str(self.port))
        if self.name == "postgres":
            self.workers = [each or await self._run("work") for each in self.workers]
        began = time.monotonic()
        async with httpx.AsyncClient(trust_env=False) as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"{self.url}/ready")).is_success:
                        return
                if time.monotonic() - began > PATIENCE:
                    raise SystemExit(f"The server does not come up: {self.folder}/serve.log")
                await asyncio.sleep(0.02)

    async def kill_server(self) -> None:
        """SIGKILL, and start it again."""
        process, self.server = self.server, None
        await _kill(process)
        await self.open()

    async def kill_worker(self, number: int) -> None:
        """SIGKILL, and start it again; over when it works again."""
        process, self.workers[number] = self.workers[number], None
        await _kill(process)
        await self.open()

    async def close(self) -> None:
        """End them all."""
        for each in (self.server, *self.workers):
            await _kill(each)
        for started in (self.model, self.index):
            if started is not None:
                await started.kill()

    async def _run(self, *command: str) -> asyncio.subprocess.Process:
        log = self.folder / f"{command[0]}.log"
        with log.open("a") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "scripts._enrichment_process", *command),
                env=self.environment,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        # Both say a line when they have begun, and little more.
        if process.stdout is None or not await process.stdout.readline():
            raise SystemExit(f"talekeeper {command[0]} does not start: {log.read_text()}")
        return process


async def _kill(process: asyncio.subprocess.Process | None) -> None:
    if process is not None:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def town(
    name: DatabaseName, url: str, folder: Path, model: Started | int, **settings: Any
) -> AsyncGenerator[Town]:
    """An installation on an empty database, with the scripted model as its only one.

    Args:
        name: SQLite means one process that does everything.
        url: The database.
        folder: Empty: for the index, the root key and the logs.
        model: The scripted model's process, which ends with the rest, or its port.
        settings: Further ones, by the names of the fields of `Settings`.
    """
    index = await start("_enrichment_index", str(folder / "index")) if name == "postgres" else None
    port = model if isinstance(model, int) else model.greeting
    given = {
        "database_url": url,
        "data_dir": folder,
        "registration": "open",
        "log_level": "warning",
        "log_format": "json",
        "openai_base_url": f"http://127.0.0.1:{port}/v1",
        "openai_models": MODEL,
        "default_model": MODEL_ID,
        "enrichment_model": MODEL_ID,
        "enrichment_tokens_per_day": 10**9,
        "max_turns_per_user": 1000,
        **({"qdrant_url": f"http://127.0.0.1:{index.greeting}"} if index else {}),
        **settings,
    }
    inherited = {
        key: value
        for key, value in os.environ.items()  # noqa: TID251  # handed on, not read
        if not key.startswith("TALEKEEPER_")
    }
    named = {f"TALEKEEPER_{key.upper()}": str(value) for key, value in given.items()}
    process = None if isinstance(model, int) else model
    made = Town(name, inherited | named, folder, _free_port(), process, index)
    made.workers = [None] * (WORKERS if name == "postgres" else 0)
    try:
        await made.open()
        yield made
    finally:
        await made.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def player(made: Town) -> AsyncGenerator[httpx.AsyncClient]:
    """Somebody who has signed up, with an API key."""
    async with httpx.AsyncClient(base_url=made.url, timeout=PATIENCE, trust_env=False) as client:
        body = {"username": f"bench{time.time_ns()}", "password": "a long bench password"}
        checked(await client.post("/api/v1/accounts", json=body))
        csrf = {"x-csrftoken": client.cookies["csrftoken"]}
        key = checked(await client.post("/api/v1/api-keys", json={"label": "b"}, headers=csrf))
    async with httpx.AsyncClient(
        base_url=f"{made.url}/api/v1",
        headers={"Authorization": f"Bearer {key['token']}"},
        timeout=PATIENCE,
        trust_env=False,
    ) as client:
        yield client


def checked(answer: httpx.Response) -> Any:
    """The body of an answer that is no error."""
    if answer.is_error:
        raise SystemExit(f"{answer.request.method} {answer.request.url}: {answer.text}")
    return answer.json() if answer.content else None


async def all_items(client: httpx.AsyncClient, path: str, **query: Any) -> list[dict[str, Any]]:
    """The items of all pages of a list."""
    found: list[dict[str, Any]] = []
    while True:
        page = checked(await client.get(path, params={"limit": 100, **query}))
        found += page["items"]
        if page.get("next") is None:
            return found
        query["after"] = page["next"]


async def stats_of(model: Started) -> dict[str, Any]:
    """What the scripted model tells of itself."""
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
        found: dict[str, Any] = checked(
            await client.get(f"http://127.0.0.1:{model.greeting}/stats")
        )
        return found
