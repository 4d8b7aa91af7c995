"""A server shared by the tests of a module, new accounts, and a server to be a provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import count

import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.support.server import Account, Running
from tests.support.shared import ada, server, shared_url

__all__ = ["ada", "server", "shared_url"]

_numbers = count(1)


@pytest.fixture
async def model() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as model:
        yield model


@pytest.fixture
async def ben(server: Running) -> AsyncGenerator[Account]:
    async with server.account(f"ben-{next(_numbers)}") as ben:
        yield ben
