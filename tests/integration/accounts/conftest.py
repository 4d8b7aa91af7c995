"""A server, and the accounts of people who use it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from backend.vault.slots import PasswordKdf
from tests.support.clock import Clock
from tests.support.logs import Logged, caught_logs
from tests.support.server import Running, running


@pytest.fixture
async def either(database_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    """The same on SQLite and on PostgreSQL, for what the database has a part in."""
    async with running(database_url, tmp_path) as server:
        yield server


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.hang_at_the_door(monkeypatch)
    return clock


@pytest.fixture
def stretches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """The costs (memory, passes, lanes) of every run of Argon2id."""
    found: list[tuple[int, int, int]] = []
    stretch = PasswordKdf.stretch

    def counted(kdf: PasswordKdf, password: str) -> bytes:
        found.append((kdf.memory_kib, kdf.passes, kdf.lanes))
        return stretch(kdf, password)

    monkeypatch.setattr(PasswordKdf, "stretch", counted)
    return found


@pytest.fixture
def logged() -> Generator[Logged]:
    """What is logged; it also spares the test the traceback that a terminal would show."""
    with caught_logs() as logged:
        yield logged
