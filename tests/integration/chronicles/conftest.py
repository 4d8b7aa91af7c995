"""A Talekeeper on each database, shared by the tests of a module, and two who keep chronicles."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.integration.chronicles.chroniclers import Chronicler
from tests.support.server import Account, Running
from tests.support.shared import ada, chat, server, shared_url

__all__ = ["ada", "chat", "server", "shared_url"]


@pytest.fixture
def writer(ada: Account) -> Chronicler:
    """Ada, as the keeper of chronicles."""
    return Chronicler(ada)


@pytest.fixture
async def stranger(ada: Account, server: Running) -> AsyncGenerator[Chronicler]:
    """Somebody else."""
    async with server.account(f"ben-{ada.name}") as account:
        yield Chronicler(account)
