"""Tests of the limits by which a search decides that a text is near."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pytest

from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.memory.embedding.cache import CachedEmbedder, Retries
from backend.memory.embedding.protocol import MINILM, EmbedderSpec
from backend.memory.embedding.remote import RemoteEmbedder
from backend.memory.index.edge import open_edge
from backend.memory.index.protocol import ScopePart
from backend.memory.indexing.collections import UserEmbedders
from backend.memory.indexing.documents import Blinders
from backend.memory.search.ranking import DENSE_HITS
from backend.memory.search.request import SearchRequest
from backend.memory.search.search import MemorySearch
from backend.vault.sealing import Sealer
from scripts.bench.retrieval.search import OneIndex, UncachedEmbedder
from tests.fakes.openai_server import OpenAIServer, error
from tests.support.memory import Start, embedding, link, new_book, preview, reasons, settled
from tests.support.points import DIMENSION, point, unit

if TYPE_CHECKING:
    from backend.memory.embedding.protocol import Floats, Task

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
async def test_near_and_unrelated_texts_differ_with_every_model(
    start: Start, common: float
) -> None:
    async with OpenAIServer() as vectors:
        vectors.common = common
        async with start(**embedding(vectors)) as server, server.account("Ada") as ada:
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


class OneDirection:
    """An embedder that returns the same vector for every text."""

    spec = EmbedderSpec(provider="local", model="minilm-l6-v2", dimension=DIMENSION)

    async def ready(self) -> EmbedderSpec:
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        _ = task
        return np.stack([unit(1) for _ in texts])

    async def aclose(self) -> None:
        pass


async def test_an_answer_that_a_hundred_lines_are_nearer_than_is_found_where_there_is_room(
    tmp_path: Path,
) -> None:
    user, chat = uuid4(), uuid4()
    sealer = Sealer(user, {1: bytes(32)}, user_key=bytes(32))
    blinders, pool = Blinders(), CpuPool()
    index = await open_edge(tmp_path, "tales", DIMENSION)
    cosines = [0.7 - number / 1000 for number in range(DENSE_HITS + 50)]
    lines = [
        point(
            user,
            chat,
            position=number,
            dense={"dense": blinders.get(sealer).turn(unit(cosine, float(np.sqrt(1 - cosine**2))))},
        )
        for number, cosine in enumerate(cosines)
    ]
    await index.upsert(lines)
    embedders = UserEmbedders(UncachedEmbedder(OneDirection()))
    search = MemorySearch(OneIndex(index), [], embedders=embedders, blinders=blinders, pool=pool)

    async def found(room: int) -> tuple[set[int], set[int]]:
        request = SearchRequest(
            text="Who mended it?",
            parts=[ScopePart(containers=[chat])],
            kinds=["message"],
            room=room,
            most=1000,
            now=datetime(2026, 3, 4, tzinfo=UTC),
        )
        result = await search.find(sealer, request)
        assert not result.notes
        ranked = {each.payload.position for each in result.ranked}
        return ranked, {each.payload.position for each in result.near}

    assert await found(0) == (set(range(100)), set())
    assert await found(4000) == (set(range(100)), set(range(DENSE_HITS)))
    await index.aclose()
    await pool.aclose()
