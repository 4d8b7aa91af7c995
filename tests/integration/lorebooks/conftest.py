"""A server for the tests of a module, and two users who keep lorebooks."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.integration.lorebooks.readers import Reader
from tests.support.server import Account, Running
from tests.support.shared import ada as account
from tests.support.shared import server, shared_url

__all__ = ["account", "server", "shared_url"]


@pytest.fixture
def ada(account: Account) -> Reader:
    return Reader(account)


@pytest.fixture
async def ben(ada: Reader, server: Running) -> AsyncGenerator[Reader]:
    async with server.account(f"ben-{ada.account.name}") as other:
        yield Reader(other)
