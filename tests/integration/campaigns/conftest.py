"""A Talekeeper on each database for a module's tests, and a campaign of an account."""

from __future__ import annotations

import pytest

from tests.integration.campaigns.seagate import Table
from tests.support.server import Account
from tests.support.shared import ada, server, shared_url

__all__ = ["ada", "server", "shared_url", "table"]


@pytest.fixture
async def table(ada: Account) -> Table:
    body = {"name": "Seagate", "day": 5, "time_of_day": "morning", "brief": {"city": "Seagate"}}
    return Table(ada, await ada.post("/campaigns", body, 201))
