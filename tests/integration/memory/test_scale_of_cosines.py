"""What a cosine says depends on the model: 0.6 is a lot with some, and nothing with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.database.engine import Database
from backend.memory.embedding.cache import CachedEmbedder, Retries
from backend.memory.embedding.protocol import MINILM
from backend.memory.embedding.remote import RemoteEmbedder
from tests.fakes.openai_server import OpenAIServer, error
from tests.support.memory import (
    embedding,
    link,
    new_book,
    preview,
    reasons,
    remembering,
    settled,
)

pytestmark = pytest.mark.anyio

COMMON = 1.5
ENTRIES = (
    {
        "title": "Astrolabe",
        "keys": ["sextant"],
        "content": "A captain buried that brass astrolabe.",
    },
    {"title": "Winter", "keys": ["frost"], "content": "Snow closes every mountain pass."},
    {"title": "Tax", "keys": ["toll"], "content": "Salt boilers pay one third."},
)


@pytest.mark.parametrize("common", [0.0, COMMON])
async def test_what_is_near_and_what_is_not_are_told_apart_whatever_the_model(
    database_url: str, tmp_path: Path, common: float
) -> None:
    async with OpenAIServer() as vectors:
        vectors.common = common
        async with (
            remembering(database_url, tmp_path, **embedding(vectors)) as server,
            server.account("Ada") as ada,
        ):
            chat = str((await ada.new_chat())["id"])
            await link(ada, chat, await new_book(ada, *ENTRIES))
            await settled(server)
            near = await preview(ada, chat, "Which brass astrolabe did that captain bury?")
            assert reasons(near).keys() == {"Astrolabe"}
            assert reasons(await preview(ada, chat, "Seven wolves howl outside.")) == {}


async def test_a_model_is_measured_once_it_answers(database: Database) -> None:
    async with OpenAIServer() as server:
        server.common = COMMON
        model = RemoteEmbedder("openai", server.config(), model="narrow", dimension=256)
        embedder = CachedEmbedder(database, model, retries=Retries(attempts=1))
        server.script(error(500))
        assert await embedder.cosines() == MINILM
        cosines = await embedder.cosines()
        asked = len(server.requests)
        assert await embedder.cosines() == cosines
        assert len(server.requests) == asked
        await embedder.aclose()
    assert cosines.unrelated == pytest.approx(0.69, abs=0.08)
    assert cosines.unrelated < cosines.dense < cosines.lore < 1
