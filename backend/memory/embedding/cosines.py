"""What a cosine says: texts without anything in common have 0 with one model, 0.7 with another."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path


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


def cosines_of(model: str) -> ModelCosines:
    """What the cosines of a model say, by its name; MiniLM's for one that is not in the table.

    Whose the model is does not matter, nor what stands after its name: `minilm-l6-v2` is found in
    `sentence-transformers/all-MiniLM-L6-v2-int8`.
    """
    name = model.lower()
    known = [part for part in _table() if part in name]
    return _table()[max(known, key=len)] if known else MINILM


@cache
def _table() -> Mapping[str, ModelCosines]:
    content = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {part: ModelCosines(**values) for part, values in tomllib.loads(content).items()}
