"""One user's reports change the budgets of no one else."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import UUID

import pytest

from backend.database.engine import Database
from backend.generation.model import ModelSpec
from backend.generation.registry import ModelRegistry
from backend.generation.tokens import SHARED_BOUNDS
from backend.llm import token_ratios as ratios
from backend.llm.token_ratios import TokenRatio
from tests.support.server import Running, running

pytestmark = pytest.mark.anyio

TOKENIZER = "o200k_base"
SPEC: ModelSpec = ModelRegistry(demo_tokens_per_second=0).spec("demo")


@pytest.fixture
async def server(sqlite_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(sqlite_url, tmp_path) as server:
        yield server


@pytest.fixture
async def users(server: Running) -> list[UUID]:
    found: list[UUID] = []
    for n in range(5):
        async with server.account(f"Person {n}") as account:
            found.append(UUID(account.user["id"]))
    return found


@pytest.fixture
def database(server: Running) -> Database:
    return server.parts.database


async def report(database: Database, user_id: UUID, ratio: float, *, times: int = 60) -> None:
    async with database.write() as session:
        for _ in range(times):
            await ratios.learn(
                session,
                user_id,
                SPEC,
                TOKENIZER,
                counted=10_000,
                reported=round(10_000 * ratio),
            )


async def seen_by(database: Database, user_id: UUID) -> float:
    async with database.read() as session:
        return await ratios.RatioCache().get(session, user_id, SPEC, TOKENIZER)


async def test_a_hostile_user_changes_their_own_ratio_alone(
    database: Database, users: list[UUID]
) -> None:
    ada, ben, hostile, new = users[:4]
    await report(database, ada, 1.1)
    before = await seen_by(database, ada), await seen_by(database, ben)
    await report(database, hostile, 100.0)
    await report(database, hostile, 0.001)
    await report(database, hostile, 100.0)
    assert (await seen_by(database, ada), await seen_by(database, ben)) == before
    assert await seen_by(database, new) == 1.0  # two users are too few to say what is usual
    assert await seen_by(database, hostile) > 2


async def test_who_has_no_ratio_gets_the_median_of_the_others_within_bounds(
    database: Database, users: list[UUID]
) -> None:
    ada, ben, cleo, hostile, new = users
    for user_id, ratio in ((ada, 1.1), (ben, 1.15), (cleo, 1.2)):
        await report(database, user_id, ratio)
    assert await seen_by(database, new) == pytest.approx(1.15, abs=0.01)
    for ratio in (100.0, 0.001):
        await report(database, hostile, ratio, times=300)
        # No further than half way to the next one.
        assert 1.12 < await seen_by(database, new) < 1.18
    async with database.write() as session:
        for user_id in (ada, ben, cleo):
            key = user_id, ratios.make_ratio_key(SPEC, TOKENIZER)
            (await session.get_one(TokenRatio, key)).ratio = 3.0
    assert await seen_by(database, new) == SHARED_BOUNDS[1]


async def test_ratios_go_with_their_user(database: Database, server: Running) -> None:
    async with server.account("Ada") as ada:
        user_id = UUID(ada.user["id"])
        await report(database, user_id, 1.1)
        await server.parts.accounts.delete(user_id)
    async with database.read() as session:
        key = user_id, ratios.make_ratio_key(SPEC, TOKENIZER)
        assert await session.get(TokenRatio, key) is None
