"""Two accounts and one application, on SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient

from backend.accounts.auth.identity import Identity
from backend.database.engine import Database
from tests.integration.characters.people import Person, make_app, sign_up


@pytest.fixture
async def identities(database: Database) -> dict[str, Identity]:
    return {name: await sign_up(database) for name in ("ada", "ben")}


@pytest.fixture
def app(database_url: str, identities: dict[str, Identity]) -> Litestar:
    return make_app(Database(database_url), identities)


@pytest.fixture
async def client(app: Litestar) -> AsyncGenerator[AsyncTestClient[Litestar]]:
    async with AsyncTestClient(app) as client:
        yield client


@pytest.fixture
def ada(client: AsyncTestClient[Litestar], identities: dict[str, Identity]) -> Person:
    return Person("ada", identities["ada"], client)


@pytest.fixture
def ben(client: AsyncTestClient[Litestar], identities: dict[str, Identity]) -> Person:
    return Person("ben", identities["ben"], client)
