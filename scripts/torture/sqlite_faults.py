"""Faults of SQLite: a full disk, a folder that can't be written to, a file that others hold."""

from __future__ import annotations

import os
import resource  # noqa: TID251  Linux runs this test
import sqlite3
from functools import partial
from pathlib import Path

from scripts.torture.campaign import Campaign, Options, campaign
from scripts.torture.faults import Step, try_all, try_fault
from scripts.torture.report import Row

LITTLE = 16 * 1024
"""Bytes by which the log may still grow on a disk that is all but full."""
UNLIMITED = resource.RLIM_INFINITY


async def run(options: Options) -> list[Row]:
    """One row for each fault."""
    if options.kind != "sqlite":
        return []
    async with campaign(options) as made:
        holder = Holder(made.made.data / "talekeeper.sqlite3")
        faults: dict[str, tuple[Step, Step]] = {
            "disk full": (partial(_limit, made, little=True), partial(_limit, made, little=False)),
            "locked by another process": (holder.hold, holder.release),
        }
        rows = [await _read_only(made)]
        return [*rows, *await try_all(made, options, "sqlite", faults)]


async def _limit(made: Campaign, *, little: bool) -> None:
    """Let no file of the server's grow over the size of SQLite's log, or let them."""
    written = (made.made.data / "talekeeper.sqlite3-wal").stat().st_size
    most = written + LITTLE if little else UNLIMITED
    for server in made.made.servers:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (most, UNLIMITED))


class Holder:
    """Another program that has begun to write and does not come to an end."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None

    async def hold(self) -> None:
        """Begin."""
        self._connection = sqlite3.connect(self._file, isolation_level=None, timeout=10)
        self._connection.execute("BEGIN IMMEDIATE")

    async def release(self) -> None:
        """Come to an end."""
        if self._connection is not None:
            self._connection.execute("ROLLBACK")
            self._connection.close()


async def _read_only(made: Campaign) -> Row:
    name = "read-only folder"
    if os.geteuid() == 0:
        return Row("sqlite", name, skipped="root may write everywhere: run it as somebody else")
    data = made.made.data

    async def become(mode: int, *, stopped: bool) -> None:
        # Open files stay open, so the server has to be started again.
        if stopped:
            await made.pause()
            await made.made.stop()
        for path in (*data.rglob("*"), data):
            path.chmod(mode | 0o111 if path.is_dir() else mode)

    async def end() -> None:
        await become(0o600, stopped=False)
        await made.made.open()

    return await try_fault(
        made, "sqlite", name, partial(become, 0o400, stopped=True), end, lasts=0.5
    )
