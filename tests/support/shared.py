"""One Talekeeper for all tests of a module, where each test signs up an account of its own."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Generator
from itertools import count

import pytest

from tests.support.postgres import copied
from tests.support.server import Account, Running, running

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
    with copied(request.getfixturevalue("postgres_template")) as url:
        yield url


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
