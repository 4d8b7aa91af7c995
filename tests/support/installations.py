"""Data folders of embedded installations, made without a server, and processes that are killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from backend import cli
from backend.accounts.auth.names import load_database_root_keys, load_instance_keys
from backend.database.engine import Database
from backend.database.migrate import upgrade
from backend.vault.root import Wrapped, load_root_keys
from tests.support.server import settings_of


async def make_installation(folder: Path) -> bytes:
    """Make a data folder with tables and a root key. Return its wrapped instance key."""
    settings = settings_of(data_dir=folder)
    database = Database(settings.resolved_database_url)
    try:
        root = await load_database_root_keys(database, settings.resolved_root_key_file, create=True)
        await upgrade(database)
        await load_instance_keys(database, root)
    finally:
        await database.dispose()
    index = folder / "index" / "terms-v1.2"
    index.mkdir(parents=True)
    (index / "segment").write_bytes(b"points")
    (folder / "transfers").mkdir()
    return read_instance_key(folder)


def read_instance_key(folder: Path) -> bytes:
    """Return the wrapped instance key of a sound database that its root key opens."""
    with closing(sqlite3.connect(folder / "talekeeper.sqlite3")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        version, wrapped = database.execute("SELECT * FROM instance_keys").fetchone()[1:]
    load_root_keys(folder / "root.key").unwrap(Wrapped(version, wrapped), context=b"instance-key")
    return bytes(wrapped)


def fill_database(folder: Path, megabytes: int) -> None:
    """Add rows that do not compress."""
    with closing(sqlite3.connect(folder / "talekeeper.sqlite3")) as database, database:
        database.execute("CREATE TABLE filling (data BLOB)")
        rows = ((os.urandom(100_000),) for _ in range(10 * megabytes))
        database.executemany("INSERT INTO filling VALUES (?)", rows)


_WATCHED = frozenset(
    {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "sqlite3.connect"}
)


def die_before_step(number: int, folder: Path, steps: Path) -> None:
    """Let this process be killed before a file operation in a folder, or a report of progress.

    Args:
        number: The operation, from 1. With 0, the process is not killed.
        folder: Only operations on paths below it count.
        steps: A file outside the folder, which gets a byte for each operation.
    """
    steps_done, log = 0, os.open(steps, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def count() -> None:
        nonlocal steps_done
        steps_done += 1
        os.write(log, b".")
        if steps_done == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _WATCHED and str(folder) in os.fsdecode(str(arguments[0])):
            count()

    sys.addaudithook(audit)

    def report(done: int, total: int) -> None:
        count()

    cli.show_progress = report
