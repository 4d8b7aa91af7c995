"""Fixtures of campaign tests: one server for each module, and a campaign."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from backend.database.engine import Database
from tests.integration.campaigns.seagate import Table
from tests.support.server import Account
from tests.support.shared import ada, server, shared_url

__all__ = ["ada", "server", "shared_url", "table"]


@pytest.fixture
async def sqlite(sqlite_url: str) -> AsyncGenerator[Database]:
    """A database for all examples of a Hypothesis test, because fixtures are made once per test."""
    database = Database(sqlite_url)
    yield database
    await database.dispose()


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncGenerator[Database]:
    database = Database(postgres_url)
    yield database
    await database.dispose()


@pytest.fixture
async def table(ada: Account) -> Table:
    body = {"name": "Seagate", "day": 5, "time_of_day": "morning", "brief": {"city": "Seagate"}}
    return Table(ada, await ada.post("/campaigns", body, 201))
