"""An embedding model of a provider for everybody: used without a restart, and taken back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from backend.memory.embedding.protocol import MINILM
from backend.memory.runtime import MemoryRuntime
from tests.fakes.openai_server import API_KEY, OWN_DIMENSION, OpenAIServer, error
from tests.support.memory import API, remembering, search, settled, tell
from tests.support.server import Account, Running, ok

pytestmark = pytest.mark.anyio

FACT = "The captain buried the astrolabe under the chapel bell."
QUESTION = "Where is the astrolabe of the captain?"


@pytest.fixture
async def model() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as model:
        yield model


async def add(account: Account, model: OpenAIServer) -> str:
    """The path of a provider for everybody that embeds."""
    body = {"kind": "openai", "scope": "installation", "embedding_model": "words"}
    wanted = {**body, "base_url": model.url, "api_key": API_KEY}
    made = ok(await account.client.post(f"{API}/providers", json=wanted), 201)
    return f"{API}/providers/{made['id']}"


async def follow(server: Running) -> MemoryRuntime:
    """What happens every 15 seconds, and before each piece of work on the index."""
    await server.parts.memory.follow_model()
    await settled(server)
    return server.parts.memory


async def told(account: Account) -> dict[str, Any]:
    offers: dict[str, Any] = ok(await account.client.get(f"{API}/admin/embedding-models"))
    return {name: offers[name] for name in ("embedder", "model", "is_used")}


async def found(server: Running, account: Account) -> bool:
    await settled(server)
    return FACT in str(await search(account, QUESTION))


@pytest.mark.every_database
async def test_texts_move_to_its_collection_and_back(
    database_url: str, tmp_path: Path, model: OpenAIServer
) -> None:
    async with remembering(database_url, tmp_path) as server, server.account("Ada") as ada:
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, "I see.", "A gannet dives."])
        path, model.common = await add(ada, model), 0.5
        model.script(error(500))
        await server.parts.memory.follow_model()
        assert server.parts.memory.embedder is None  # what does not work is not gone over to
        memory = await follow(server)
        assert memory.embedder is not None
        assert (memory.embedder.spec.model, memory.embedder.spec.dimension) == (
            "words",
            OWN_DIMENSION,
        )
        assert model.requests[-1].headers["authorization"] == f"Bearer {API_KEY}"
        assert await told(ada) == {"embedder": "provider", "model": "words", "is_used": False}
        assert await found(server, ada)
        assert await memory.embedder.cosines() != MINILM
        ok(await ada.client.patch(path, json={"embedding_model": None}))
        assert (await follow(server)).embedder is None
        assert (await told(ada))["embedder"] == "none"
        assert await found(server, ada)


async def test_a_start_goes_on_with_it_and_does_not_wait_for_one_that_is_down(
    database_url: str, tmp_path: Path
) -> None:
    async with OpenAIServer() as model:
        async with remembering(database_url, tmp_path) as server, server.account("Ada") as ada:
            await add(ada, model)
        async with remembering(database_url, tmp_path) as server:
            embedder = server.parts.memory.embedder
            assert embedder is not None
            assert embedder.spec.model == "words"
        async with remembering(database_url, tmp_path, embedder="none") as server:
            await server.parts.memory.follow_model()
            assert server.parts.memory.embedder is None  # the settings say so
    async with remembering(database_url, tmp_path) as server:
        assert server.parts.memory.embedder is None
