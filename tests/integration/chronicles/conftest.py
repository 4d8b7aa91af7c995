"""A server for the tests of a module, and two users who keep chronicles."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.integration.chronicles.chroniclers import Chronicler
from tests.support.server import Account, Running, running
from tests.support.shared import ada, chat, server, shared_url

__all__ = ["ada", "chat", "server", "shared_url"]


@pytest.fixture
def writer(ada: Account) -> Chronicler:
    return Chronicler(ada)


@pytest.fixture
async def stranger(ada: Account, server: Running) -> AsyncGenerator[Chronicler]:
    """Another user."""
    async with server.account(f"ben-{ada.name}") as account:
        yield Chronicler(account)


@pytest.fixture
async def idle(database_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    """A server without job workers."""
    async with running(database_url, tmp_path, job_workers=0) as server:
        yield server
