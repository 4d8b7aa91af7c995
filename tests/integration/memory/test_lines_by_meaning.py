from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pytest

from backend.core.cpu_pool import CpuPool
from backend.memory.embedding.protocol import EmbedderSpec
from backend.memory.index.edge import open_edge
from backend.memory.index.protocol import ScopePart
from backend.memory.indexing.collections import UserEmbedders
from backend.memory.indexing.documents import Blinders
from backend.memory.search.ranking import DENSE_HITS
from backend.memory.search.request import SearchRequest
from backend.memory.search.search import MemorySearch
from backend.vault.sealing import Sealer
from scripts.bench.retrieval.search import OneIndex, UncachedEmbedder
from tests.support.points import DIMENSION, point, unit

if TYPE_CHECKING:
    from backend.memory.embedding.protocol import Floats, Task

pytestmark = pytest.mark.anyio


class OneDirection:
    """An embedder to whom every text means the same."""

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
