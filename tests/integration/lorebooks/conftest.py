"""A server, and two people with lorebooks of their own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.integration.lorebooks.readers import Reader
from tests.support.server import Running, running


@pytest.fixture
async def server(database_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(database_url, tmp_path) as server:
        yield server


@pytest.fixture
async def ada(server: Running) -> AsyncGenerator[Reader]:
    async with server.account("Ada") as account:
        yield Reader(account)


@pytest.fixture
async def ben(ada: Reader, server: Running) -> AsyncGenerator[Reader]:
    assert ada.account.name == "Ada"
    async with server.account("Ben") as account:
        yield Reader(account)
