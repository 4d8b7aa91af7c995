"""One server for all tests of a module. Each test has a new account."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Generator
from itertools import count

import pytest

from backend.generation.registry import ModelRegistry
from tests.fakes.openai_server import MODEL_ID, OpenAIServer
from tests.support.databases import PostgresDatabases
from tests.support.server import Account, Running, running

_numbers = count(1)


@pytest.fixture(scope="module")
def shared_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[str]:
    """A migrated database. `pytest_generate_tests` chooses SQLite, PostgreSQL or both."""
    if request.param == "sqlite":
        template = request.getfixturevalue("sqlite_template")
        file = shutil.copy(template, tmp_path_factory.mktemp("shared") / "talekeeper.sqlite3")
        yield f"sqlite+aiosqlite:///{file}"
        return
    databases: PostgresDatabases = request.getfixturevalue("postgres_databases")
    with databases.lend() as url:
        yield url


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    async with running(shared_url, tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture(scope="module")
async def vendor() -> AsyncGenerator[OpenAIServer]:
    """A model server with scripted answers."""
    async with OpenAIServer() as vendor:
        yield vendor


@pytest.fixture(scope="module")
async def asking_server(
    shared_url: str, vendor: OpenAIServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    """A server with the model of `vendor` as its default."""
    registry = ModelRegistry(demo_tokens_per_second=0, openai=vendor.config(), default=MODEL_ID)
    async with running(shared_url, tmp_path_factory.mktemp("data"), registry=registry) as server:
        yield server


@pytest.fixture
async def ada(server: Running) -> AsyncGenerator[Account]:
    async with server.account(f"ada-{next(_numbers)}") as account:
        yield account


@pytest.fixture
async def chat(ada: Account) -> str:
    """A chat with one character that has two greetings."""
    character = await ada.new_character(alternate_greetings=["A knock at the window."])
    return str((await ada.new_chat(character_ids=[character["id"]]))["id"])
