"""What a cosine says: texts without anything in common have 0 with one model, 0.7 with another."""

from __future__ import annotations

import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from backend.memory.embedding.protocol import Floats, Task

Embed = Callable[[Sequence[str], Task], Awaitable[Floats]]
"""See `Embedder.embed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosines:
    """What cosines of a model say. The defaults are MiniLM's.

    Attributes:
        unrelated: That of texts which have nothing to do with each other: it says nothing.
        dense: From which on a memory is near enough by itself.
        lore: From which on an entry of a lorebook is what a line is about. Words alone never are.
    """

    unrelated: float = 0.0
    dense: float = 0.29
    lore: float = 0.30


MINILM = ModelCosines()


NOTICEABLE = 0.15
"""So much further up than MiniLM's the cosines of unrelated texts have to be, for it not to be
chance: there are few texts."""

_NARROWEST = 0.001
"""Of a model whose vectors are all the same, which tells nothing apart."""


def cosines_of(model: str) -> ModelCosines | None:
    """What the cosines of a model say, by its name; None for one that is not in the table.

    Whose the model is does not matter, nor what stands after its name: `minilm-l6-v2` is found in
    `sentence-transformers/all-MiniLM-L6-v2-int8`.
    """
    name = model.lower()
    table = _file()["models"]
    known = [part for part in table if part in name]
    return ModelCosines(**table[max(known, key=len)]) if known else None


async def measured_cosines(embed: Embed) -> ModelCosines:
    """What the cosines of a model say, by those of texts without anything in common.

    As much as theirs are above MiniLM's, everything below 1 is taken to be narrower: many models
    add a part that all their vectors share. Two requests. Raises `EmbedderError`.
    """
    texts = _file()["unrelated"]
    asked, told = await embed(texts["lines"], "query"), await embed(texts["texts"], "document")
    return scaled_cosines(float((asked @ told.T).mean()))


def scaled_cosines(mean: float) -> ModelCosines:
    """What cosines say where those of the shipped unrelated texts are `mean` on average."""
    usual: float = _file()["unrelated"]["minilm"]
    if mean - usual < NOTICEABLE:
        return MINILM
    narrower = max(_NARROWEST, (1 - mean) / (1 - usual))
    return ModelCosines(
        unrelated=1 - narrower,
        dense=1 - narrower * (1 - MINILM.dense),
        lore=1 - narrower * (1 - MINILM.lore),
    )


@cache
def _file() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
