"""The processes of an installation: started, killed, paused and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from backend.memory.index.protocol import IndexUnavailableError
from backend.memory.index.server import list_server_collections
from backend.settings import Settings
from scripts.bench.processes import start_process
from scripts.bench.tables import DatabaseName
from scripts.model_server import MODEL, MODEL_ID, listen
from scripts.torture.model import DIMENSION, TaggedModel

READY_WITHIN = 10.0
"""Seconds from the start of a process to the first good answer of `/ready`: a promise."""
STOP_WITHIN = 20.0
"""Seconds from SIGTERM to the end of a process."""
KILLED_WITHIN = 60.0
"""The same from SIGKILL: a machine that is busy takes its time."""


MUCH = 10_000
UNLIMITED = {
    "max_requests_per_minute_per_user": 100 * MUCH,
    "max_requests_per_minute_per_address": 100 * MUCH,
    "max_requests_at_once_per_user": MUCH,
    "max_turns_per_user": MUCH,
    "max_previews_per_user": MUCH,
    "max_streams_per_user": MUCH,
    "max_uploads_per_user": MUCH,
    "max_queued_jobs_per_user": 100 * MUCH,
}
"""Disabled quotas: a campaign looks for lost data, not for refusals."""


class BrokenPromiseError(Exception):
    """A broken promise, described in the text."""


@dataclass
class Process:
    """One process of the installation, running or not."""

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    log: Path
    url: str = ""
    popen: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0

    @property
    def is_alive(self) -> bool:
        """True if the process runs or is stopped."""
        return self.popen is not None and self.popen.poll() is None

    @property
    def pid(self) -> int:
        if self.popen is None:
            raise RuntimeError(f"{self.name} does not run.")
        return self.popen.pid

    def start(self) -> None:
        """Start the process without waiting for an answer."""
        with self.log.open("ab") as output:
            self.popen = subprocess.Popen(  # noqa: S603  # a command of ours
                self.command,
                env=self.environment,
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.started_at = time.monotonic()

    def send(self, number: signal.Signals) -> None:
        """Send a signal if the process runs."""
        if self.popen is not None and self.popen.poll() is None:
            self.popen.send_signal(number)

    async def gone(self, within: float) -> None:
        """Wait for its end. Raises `BrokenPromiseError` after `within` seconds, and kills it."""
        began = time.monotonic()
        while self.is_alive:
            if time.monotonic() - began > within:
                self.send(signal.SIGKILL)
                raise BrokenPromiseError(f"{self.name} did not end within {within:.0f} s")
            await asyncio.sleep(0.01)

    async def kill(self) -> None:
        """Send SIGKILL if the process runs."""
        self.send(signal.SIGKILL)
        await self.gone(KILLED_WITHIN)

    async def ready(self, within: float) -> float:
        """Wait for a good answer of `/ready`; gives back the seconds since the start.

        Raises `BrokenPromiseError` after `within` seconds, or when the process ended.
        """
        async with httpx.AsyncClient(base_url=self.url, timeout=2, trust_env=False) as client:
            while True:
                seconds = time.monotonic() - self.started_at
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get("/ready")).status_code == 200:
                        return time.monotonic() - self.started_at
                if not self.is_alive:
                    raise BrokenPromiseError(f"{self.name} ended by itself: {self.last_words()}")
                if seconds > within:
                    raise BrokenPromiseError(f"{self.name} was not ready within {within:.0f} s")
                await asyncio.sleep(0.02)

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-500:]


@dataclass
class Installation:
    """A Talekeeper with its model: on SQLite one process, on PostgreSQL servers and a worker.

    `root` holds `data` (the data folder), `logs` and, on PostgreSQL, `index`. `model_url` is where
    the model listens, without a path.
    """

    database: DatabaseName
    database_url: str
    root: Path
    model: TaggedModel
    servers: list[Process]
    workers: list[Process]
    settings: dict[str, str]
    model_url: str
    index_port: int | None = None
    ready_within: float = READY_WITHIN
    started: list[float] = field(default_factory=list[float])

    @property
    def stop_within(self) -> float:
        """Seconds from SIGTERM to the end."""
        return STOP_WITHIN * self.ready_within / READY_WITHIN

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def index_folder(self) -> Path:
        """The folder of the collections that servers open with Qdrant Edge."""
        return self.data / "index"

    @property
    def index_settings(self) -> Settings:
        """The servers' settings for a Qdrant server."""
        given = {name: text for name, text in self.settings.items() if name.startswith("qdrant_")}
        return Settings.model_validate(given)

    @property
    def processes(self) -> list[Process]:
        """Servers and workers."""
        return [*self.servers, *self.workers]

    @property
    def url(self) -> str:
        return self.servers[0].url

    def urls(self) -> list[str]:
        """The addresses of the running servers."""
        return [each.url for each in self.servers if each.is_alive]

    async def open(self, within: float | None = None) -> None:
        """Start the processes that have ended, and wait until every server is ready."""
        within = within or self.ready_within
        fresh = [each for each in self.processes if not each.is_alive]
        servers = [each for each in fresh if each in self.servers]
        for each in servers:
            each.start()
        for each in servers:
            self.started.append(await each.ready(within))
        # Only a server makes the root key.
        for each in fresh:
            if each not in servers:
                each.start()

    async def stop(self) -> None:
        """End all processes as a service manager does."""
        for each in self.processes:
            each.send(signal.SIGCONT)
            each.send(signal.SIGTERM)
        for each in self.processes:
            await each.gone(self.stop_within)

    async def kill(self) -> None:
        """Send SIGKILL to all processes."""
        for each in self.processes:
            await each.kill()


@asynccontextmanager
async def installation(
    database: DatabaseName,
    database_url: str,
    root: Path,
    model: TaggedModel,
    *,
    qdrant_url: str = "",
    servers_url: str = "",
    servers: int = 2,
    ready_within: float = READY_WITHIN,
    **settings: Any,
) -> AsyncGenerator[Installation]:
    """Everything but the database, not started yet; killed at the end.

    Args:
        database: SQLite means one process that does everything.
        database_url: Empty for SQLite in the data folder.
        root: An empty folder.
        model: Answers the requests for replies and embeddings.
        qdrant_url: A Qdrant server. Without one, processes on PostgreSQL share a Qdrant Edge that
            another process has open.
        servers_url: The database as the servers get there, if another way.
        servers: The number of servers on PostgreSQL.
        ready_within: Seconds from the start of a server to its first good answer of `/ready`.
        settings: Further ones, by the names of the fields of `Settings`.
    """
    (root / "data").mkdir(mode=0o700)
    (root / "logs").mkdir()
    listener, model_port = await listen(model.respond)
    processes, index_port = AsyncExitStack(), None
    if database == "postgres" and not qdrant_url:
        command = (sys.executable, "-m", "scripts.torture.index_process", str(root / "index"))
        _, index_port = await processes.enter_async_context(start_process(*command))
    given = {
        "database_url": servers_url or database_url,
        "data_dir": root / "data",
        "registration": "open",
        "log_format": "json",
        "openai_base_url": f"http://127.0.0.1:{model_port}/v1",
        "openai_models": MODEL,
        "default_model": MODEL_ID,
        "enrichment_model": MODEL_ID,
        "enrichment_tokens_per_day": 10**9,
        **UNLIMITED,
        "embedder": "openai",
        "embedding_model": "vectors",
        "embedding_dimension": DIMENSION,
        "qdrant_url": qdrant_url or (f"http://127.0.0.1:{index_port}" if index_port else ""),
        # Collections of other installations on the same server are none of this one's.
        "qdrant_collection_prefix": f"torture-{uuid4().hex[:8]}-",
        **settings,
    }
    environment = _environment(given, root)
    launcher = [sys.executable, "-m", "scripts.torture.process"]
    if index_port is not None:
        launcher.append("--shared-index")
    made = Installation(
        database,
        database_url or f"sqlite+aiosqlite:///{root / 'data' / 'talekeeper.sqlite3'}",
        root,
        model,
        [
            _server(number, launcher, environment, root)
            for number in range(servers if database == "postgres" else 1)
        ],
        [
            Process("worker", [*launcher, "work"], environment, root / "logs" / "worker.log")
            for _ in range(1 if database == "postgres" else 0)
        ],
        {name: str(value) for name, value in given.items()},
        model_url=f"http://127.0.0.1:{model_port}",
        index_port=index_port,
        ready_within=ready_within,
    )
    try:
        yield made
    finally:
        await made.kill()
        await processes.aclose()
        if qdrant_url:
            await delete_collections(made.index_settings)
        listener.close()


async def delete_collections(settings: Settings) -> None:
    """Delete an installation's collections on a Qdrant server; report those that are left."""
    prefix = settings.qdrant_collection_prefix
    try:
        async with httpx.AsyncClient(base_url=settings.qdrant_urls[0], trust_env=False) as client:
            for name in await list_server_collections(settings):
                (await client.delete(f"/collections/{prefix}{name}")).raise_for_status()
    except (IndexUnavailableError, httpx.HTTPError) as error:
        kind = type(error).__name__
        print(f"collections {prefix}* are left on the Qdrant server: {kind}", file=sys.stderr)


def _server(number: int, launcher: list[str], environment: dict[str, str], root: Path) -> Process:
    port = free_port()
    return Process(
        f"server {number + 1}",
        [*launcher, "serve", "--port", str(port)],
        environment,
        root / "logs" / f"server{number + 1}.log",
        url=f"http://127.0.0.1:{port}",
    )


def _environment(settings: dict[str, Any], root: Path) -> dict[str, str]:
    inherited = {
        key: value
        for key, value in os.environ.items()  # noqa: TID251  # handed on, not read
        if not key.startswith("TALEKEEPER_") and key != "PYTHONDONTWRITEBYTECODE"
    }
    # Without compiled modules each start would take seconds longer.
    inherited["PYTHONPYCACHEPREFIX"] = str(root.parent / "pycache")
    named = {f"TALEKEEPER_{key.upper()}": str(value) for key, value in settings.items() if value}
    return inherited | named


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
