"""Thresholds that are chosen for a model follow the scale of its cosines."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from backend.memory.embedding.protocol import (
    MINILM,
    EmbedderSpec,
    Floats,
    Task,
    find_cosines,
    scale_cosines,
)
from scripts.bench.retrieval.lore import BOOKS
from scripts.bench.retrieval.thresholds import fit
from tests.fakes.word_vectors import word_vector

pytestmark = pytest.mark.anyio


class Words:
    """An `Embedder` whose texts have a given part in common."""

    def __init__(self, common: float) -> None:
        self.spec = EmbedderSpec(provider="test", model="words", dimension=1024)
        self._common = common

    async def ready(self) -> EmbedderSpec:
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:  # noqa: ARG002  # it knows none
        rows = [word_vector(each, self.spec.dimension, common=self._common) for each in texts]
        return np.array(rows, dtype=np.float32)

    async def aclose(self) -> None:
        return


async def test_a_narrower_range_of_cosines_has_higher_thresholds() -> None:
    data = json.loads(BOOKS.read_text(encoding="utf-8"))
    wide, _ = await fit(Words(0.0), data)
    narrow, lines = await fit(Words(1.5), data)
    assert wide.unrelated == 0
    assert 0.6 < narrow.unrelated < narrow.dense < 1
    assert narrow.dense > wide.dense
    assert narrow.lore > wide.lore
    assert any("found" in line for line in lines)


def test_an_unknown_model_is_scaled_by_its_unrelated_texts() -> None:
    assert find_cosines("text-embedding-nobody-knows") is None
    assert scale_cosines(-0.1) == scale_cosines(0.0) == MINILM
    near = scale_cosines(0.2)
    assert near.unrelated == pytest.approx((0.2 - 0.075) / 0.925)
    assert near.dense == pytest.approx(1 - 0.8 / 0.925 * (1 - MINILM.dense))
    narrow = scale_cosines(0.7)
    assert narrow.unrelated < 0.7 < narrow.dense < narrow.lore < 1
    same = scale_cosines(1.0)
    assert same.unrelated < same.dense
