"""A Talekeeper with a memory index, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.support.memory import Moody, Start, embedding, remembering
from tests.support.models import asking
from tests.support.server import Running
from tests.support.shared import ada, chat, shared_url

__all__ = ["ada", "chat", "shared_url"]


@pytest.fixture(scope="module")
async def vectors() -> AsyncGenerator[OpenAIServer]:
    """A server of embeddings. Texts with common words are similar."""
    async with OpenAIServer() as vectors:
        yield vectors


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str,
    tmp_path_factory: pytest.TempPathFactory,
    vectors: OpenAIServer,
    model: OpenAIServer,
) -> AsyncGenerator[Running]:
    folder = tmp_path_factory.mktemp("data")
    async with remembering(shared_url, folder, **asking(model), **embedding(vectors)) as server:
        yield server


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Start:
    """Start a Talekeeper with these settings. Each start has the same database and folder."""
    return partial(remembering, database_url, tmp_path)


@pytest.fixture
async def usual() -> AsyncGenerator[Moody]:
    async with Moody() as model:
        yield model


@pytest.fixture
async def mine() -> AsyncGenerator[Moody]:
    async with Moody() as model:
        yield model
