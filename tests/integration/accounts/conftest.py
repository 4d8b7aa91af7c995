"""A server on each database, and the work for passwords."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from backend.vault.slots import PasswordKdf
from tests.support.server import Running, running


@pytest.fixture
async def either(database_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    """A server on SQLite, and in tests marked `every_database` also on PostgreSQL."""
    async with running(database_url, tmp_path) as server:
        yield server


@pytest.fixture
def stretches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """The costs (memory, passes, lanes) of every run of Argon2id."""
    found: list[tuple[int, int, int]] = []
    stretch = PasswordKdf.stretch

    def count_stretch(kdf: PasswordKdf, password: str) -> bytes:
        found.append((kdf.memory_kib, kdf.passes, kdf.lanes))
        return stretch(kdf, password)

    monkeypatch.setattr(PasswordKdf, "stretch", count_stretch)
    return found
