"""The processes of an installation, and the figures that are read from outside of it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import httpx
import psutil
from sqlalchemy import text

from backend.database.engine import Database
from backend.settings import Settings
from scripts.bench.processes import TALEKEEPER, make_environment, start_process
from scripts.bench.storage import find_postmaster, read_cpu
from scripts.torture.installation import (
    BrokenPromiseError,
    Process,
    delete_collections,
    free_port,
)

SERVERS, WORKERS = 2, 2
READY_WITHIN = 120.0
IDLE_WITHIN = 120.0
"""Seconds within which all jobs that follow from the turns have to end."""

WATCH_SECONDS = 0.2

_WATCHED = text(
    "SELECT count(*) AS connections, (SELECT extract(epoch FROM max(clock_timestamp() - seen_at))"
    " FROM processes) AS heartbeat FROM pg_stat_activity WHERE datname = current_database()"
    " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
)
_OPEN_WORK = text(
    "SELECT (SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')"
    " AND run_after <= now() + interval '1 minute') + (SELECT count(*) FROM index_changes)"
)


@dataclass
class ScaleInstallation:
    """Servers and workers. `database` is a connection of the benchmark's own.

    `pids` has the processes of each part, by its name.
    """

    servers: list[Process]
    workers: list[Process]
    database: Database
    pids: dict[str, list[int]]

    @property
    def ports(self) -> list[int]:
        return [int(each.url.rpartition(":")[2]) for each in self.servers if each.is_alive]

    def read_cpu(self) -> dict[str, float]:
        """Return the CPU seconds of each part so far."""
        return {name: sum(map(_read_cpu, pids)) for name, pids in self.pids.items()}

    async def read_stages(self) -> dict[str, float]:
        """Return the sum of the seconds in each histogram of the servers."""
        sums: defaultdict[str, float] = defaultdict(float)
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            for each in self.servers:
                for line in (await client.get(f"{each.url}/metrics")).text.splitlines():
                    name = line.partition("{")[0].partition(" ")[0]
                    if name.endswith("_seconds_sum"):
                        sums[name.removesuffix("_sum")] += float(line.rpartition(" ")[2])
        return sums

    async def watch(self) -> tuple[int, float]:
        """Return the most connections and the oldest heartbeat (seconds), when cancelled."""
        connections, heartbeat = 0, 0.0
        with suppress(asyncio.CancelledError):
            while True:
                async with self.database.read() as session:
                    row = (await session.execute(_WATCHED)).one()
                connections = max(connections, row.connections)
                heartbeat = max(heartbeat, float(row.heartbeat or 0))
                await asyncio.sleep(WATCH_SECONDS)
        return connections, heartbeat

    async def wait_until_idle(self) -> int:
        """Wait until all jobs have ended. Return the number of those that are left."""
        left = 0
        for _ in range(int(IDLE_WITHIN / 0.5)):
            async with self.database.read() as session:
                left = int(await session.scalar(_OPEN_WORK) or 0)
            if not left:
                break
            await asyncio.sleep(0.5)
        return left


@asynccontextmanager
async def run_installation(
    url: str, root_key: str, *, qdrant_url: str, model_port: int
) -> AsyncGenerator[ScaleInstallation]:
    """Run the processes until the block ends. Without a Qdrant server they share Qdrant Edge."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="bench-")))
        database = Database(url)
        stack.push_async_callback(database.dispose)
        launcher, pids = [str(TALEKEEPER)], defaultdict[str, list[int]](list)
        index_url = qdrant_url
        if not qdrant_url:
            command = (sys.executable, "-m", "scripts.torture.index_process", str(folder / "index"))
            pid, port = await stack.enter_async_context(start_process(*command))
            pids["index"].append(pid)
            index_url = f"http://127.0.0.1:{port}"
            launcher = [sys.executable, "-m", "scripts.bench.scale.process"]
        settings = {
            "database_url": url,
            "data_dir": folder / "data",
            "root_key": root_key,
            "embedder": "none",
            "openai_base_url": f"http://127.0.0.1:{model_port}/v1",
            "openai_models": "words",
            "default_model": "openai/words",
            "qdrant_url": index_url,
            "qdrant_collection_prefix": f"bench-{uuid4().hex[:8]}-",
        }
        if qdrant_url:
            own = {name: str(value) for name, value in settings.items() if "qdrant" in name}
            stack.push_async_callback(delete_collections, Settings.model_validate(own))
        servers = [
            _make_process(launcher, f"server {number + 1}", settings, folder)
            for number in range(SERVERS)
        ]
        workers = [
            _make_process(launcher, f"worker {number + 1}", settings, folder)
            for number in range(WORKERS)
        ]
        for each in servers:
            stack.push_async_callback(each.kill)
            each.start()
            try:
                await each.ready(READY_WITHIN)
            except BrokenPromiseError as error:
                raise SystemExit(str(error)) from error
        for each in workers:
            stack.push_async_callback(each.kill)
            each.start()
        pids["servers"] = [each.pid for each in servers]
        pids["workers"] = [each.pid for each in workers]
        with suppress(OSError):  # a database on another machine
            pids["PostgreSQL"].append(await find_postmaster(database))
        yield ScaleInstallation(servers, workers, database, dict(pids))


def _make_process(
    launcher: list[str], name: str, settings: Mapping[str, object], folder: Path
) -> Process:
    is_server, port = name.startswith("server"), free_port()
    arguments = ["serve", "--port", str(port)] if is_server else ["work"]
    environment = {**os.environ, **make_environment(**settings)}  # noqa: TID251  # handed on, not read
    # Processes run in a folder of their own, without the repository's `.env`.
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
    url = f"http://127.0.0.1:{port}" if is_server else ""
    return Process(name, [*launcher, *arguments], environment, folder / f"{name}.log", url)


def _read_cpu(pid: int) -> float:
    try:
        return read_cpu(pid)
    except psutil.NoSuchProcess:
        return 0.0
