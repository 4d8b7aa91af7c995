"""An embedding model of an account's own, where the index is a Qdrant server for all processes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import UUID

import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.fakes.qdrant_engine import QdrantEngine
from tests.integration.memory.test_failures import Moody
from tests.integration.memory.test_own_embedding import (
    FACT,
    OWN,
    choose,
    notes,
    own_index,
    problems,
    provide,
    rows_in,
    status,
)
from tests.support.memory import (
    API,
    embedding,
    reconcile,
    remembering,
    search,
    settled,
    stored_rows,
    tell,
)
from tests.support.server import PASSWORD, Running, ok

pytestmark = pytest.mark.anyio

PREFIX = "talekeeper-"


@pytest.fixture
async def qdrant() -> AsyncGenerator[QdrantEngine]:
    async with QdrantEngine() as running:
        yield running


@pytest.fixture
async def mine() -> AsyncGenerator[Moody]:
    async with Moody() as model:
        yield model


@contextlib.asynccontextmanager
async def served(
    url: str, folder: Path, qdrant: QdrantEngine, usual: OpenAIServer | None = None, **more: object
) -> AsyncGenerator[Running]:
    """A Talekeeper whose index is that server; of several they share the database as well."""
    chosen = embedding(usual) if usual else {"embedder": "none"}
    server = {"qdrant_url": qdrant.url, "qdrant_protocol": "http", "qdrant_timeout_seconds": 5}
    async with remembering(url, folder, **chosen, **server, **more) as running:
        yield running


async def test_texts_move_to_a_collection_made_on_demand_and_back_and_an_account_s_end_empties_it(
    database_url: str, tmp_path: Path, qdrant: QdrantEngine, mine: Moody
) -> None:
    async with (
        Moody() as usual,
        served(database_url, tmp_path, qdrant, usual) as server,
        server.account("Ada") as ada,
        server.account("Ben") as ben,
    ):
        for account in (ada, ben):
            chat = str((await account.new_chat())["id"])
            await tell(server, account, chat, [FACT, "I see."])
        current = server.parts.memory.collections.current
        assert PREFIX + OWN not in qdrant.collections
        await provide(ada, mine)
        await choose(ada, "mine/words")
        await settled(server)
        assert PREFIX + OWN in qdrant.collections
        stored = await stored_rows(server, UUID(ada.user["id"]))
        assert await rows_in(await own_index(server), ada) == stored
        assert (await notes(ada), await problems(ada)) == ([], [])
        assert (await status(ada))["points"] == 3
        assert await notes(ben) == []
        await reconcile(server)
        assert await rows_in(current, ada) == set()

        await choose(ada, None)
        await settled(server)
        assert await rows_in(current, ada) == stored
        assert await notes(ada) == []
        await choose(ada, "mine/words")
        await settled(server)
        assert await notes(ada) == []
        ok(await ada.client.request("DELETE", f"{API}/me", json={"password": PASSWORD}), 204)
        await settled(server)
        assert await (await own_index(server)).count() == 0
        assert await current.owners() == {UUID(ben.user["id"])}
        assert len(await search(ben, "astrolabe")) >= 1
