"""A server, and the first account on it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from tests.support.clock import Clock
from tests.support.logs import Logged, caught_logs
from tests.support.server import Account, Running, running


@pytest.fixture
async def server(sqlite_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(sqlite_url, tmp_path) as server:
        yield server


@pytest.fixture
async def ada(server: Running) -> AsyncGenerator[Account]:
    """The first account, and so the administrator's."""
    async with server.account("Ada") as account:
        yield account


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.hang_at_the_door(monkeypatch)
    return clock


@pytest.fixture
def logged() -> Generator[Logged]:
    """What is logged; it also spares the test the traceback that a terminal would show."""
    with caught_logs() as logged:
        yield logged
