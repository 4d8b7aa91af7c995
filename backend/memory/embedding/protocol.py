"""The protocol of embedders, which turn texts into vectors, and the scale of their cosines."""

from __future__ import annotations

import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from backend.errors import UnavailableError
from backend.vault.sealing import Sealer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosines:
    """The scale of a model's cosines. The defaults are those of MiniLM.

    Attributes:
        unrelated: The mean cosine of unrelated texts.
        dense: The cosine from which a memory is relevant without shared words.
        lore: The cosine from which a lorebook entry is relevant.
    """

    unrelated: float = 0.0
    dense: float = 0.29
    lore: float = 0.30


MINILM = ModelCosines()


_MIN_SCALE = 0.001
"""The scale of a model that returns the same vector for all texts."""


def find_cosines(model: str) -> ModelCosines | None:
    """Return the scale of a model from the table; None for an unknown model.

    A part of the name is enough: `sentence-transformers/all-MiniLM-L6-v2-int8` contains
    `minilm-l6-v2`.
    """
    name = model.lower()
    table = _load_table()["models"]
    known = [part for part in table if part in name]
    return ModelCosines(**table[max(known, key=len)]) if known else None


async def measure_cosines(embed: Embed) -> ModelCosines:
    """Measure the scale of a model by the cosines of unrelated texts.

    Many models add a component that all their vectors share, which raises all cosines. The scale
    below 1 is compressed by that amount, but never stretched. It takes two requests. Raises
    `EmbedderError`.
    """
    texts = _load_table()["unrelated"]
    queries = await embed(texts["lines"], "query")
    documents = await embed(texts["texts"], "document")
    return scale_cosines(float((queries @ documents.T).mean()))


def scale_cosines(mean: float) -> ModelCosines:
    """Return the scale of a model with this mean cosine of the unrelated texts in the table."""
    usual: float = _load_table()["unrelated"]["minilm"]
    if mean <= usual:
        return MINILM
    scale = max(_MIN_SCALE, (1 - mean) / (1 - usual))
    return ModelCosines(
        unrelated=1 - scale,
        dense=1 - scale * (1 - MINILM.dense),
        lore=1 - scale * (1 - MINILM.lore),
    )


@cache
def _load_table() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("cosines.toml").read_text(encoding="utf-8"))


OWN_PREFIX = "own"
"""Prefix of the names of collections for users' own models."""

Floats = NDArray[np.float32]
Task = Literal["document", "query"]
"""The purpose of an embedding. Some models make different vectors for the two."""
Embed = Callable[[Sequence[str], Task], Awaitable[Floats]]


class EmbedderError(UnavailableError):
    """The embedding model does not respond, or rejects the request.

    Search continues with words only.

    `retry_after` is in seconds, if the provider gave a time. If `retryable`, the same request may
    succeed later.
    """

    slug, title = "embedder-unavailable", "The embedding model is unavailable"

    def __init__(
        self, detail: str, *, retry_after: float | None = None, retryable: bool = False
    ) -> None:
        super().__init__(detail)
        self.retry_after = retry_after
        self.retryable = retryable


class EmbedderRequestError(EmbedderError):
    """The embedding model rejects the form of the request, or returns vectors of another length.

    Its slug is that of `EmbedderError`, because memory treats both alike.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderSpec:
    """The identity of an embedding model. Vectors of different models can't be compared.

    The installation's model has its own collection. Users' own models share one collection per
    dimension, because a search reads the points of one user.

    Attributes:
        server: The server of a user's own model; None for the installation's model.
        length: Length of the vectors that a user's own model returns. They are padded to the
            dimension.
    """

    provider: str
    model: str
    dimension: int
    server: str | None = None
    length: int | None = None

    @property
    def identity(self) -> str:
        if self.server is None:
            return self.collection
        length = f"/{self.length}" if self.length else ""
        return f"{self.provider} {self.server} {self.model} {self.dimension}{length}"

    @property
    def collection(self) -> str:
        """The name of the model's collection: letters, digits, `_` and `-`."""
        if self.server is not None:
            return f"{OWN_PREFIX}-{self.dimension}"
        plain = "".join(each if each.isalnum() else "-" for each in self.model).strip("-").lower()
        return f"{self.provider}-{plain}-{self.dimension}"


class Embedder(Protocol):
    """A model that turns texts into vectors. Every failure raises `EmbedderError`."""

    @property
    def spec(self) -> EmbedderSpec:
        """The identity of the model. Raises `EmbedderError` before `ready` if it is unknown."""
        ...

    async def ready(self) -> EmbedderSpec:
        """Return `spec`. If only the server knows the dimension, the first call asks it."""
        ...

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        """Return vectors of texts, shape (n, dimension), each row of unit length.

        It splits large requests and truncates texts that are too long for the model.
        """
        ...

    async def aclose(self) -> None: ...


class DocumentEmbedder(Protocol):
    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:
        """Return vectors, shape (n, d), of unit length. Raises `EmbedderError`."""
        ...


class TextEmbedder(DocumentEmbedder, Protocol):
    """Embeds a user's texts, and queries within a time limit."""

    async def cosines(self) -> ModelCosines:
        """Return the scale of the model's cosines. It never fails."""
        ...

    async def embed_query(self, sealer: Sealer, text: str) -> Floats:
        """Return the vector, shape (d,), of unit length. Raises `EmbedderError`."""
        ...
