"""What turns texts into vectors: the protocol of all embedders."""

from __future__ import annotations

import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from backend.errors import UnavailableError
from backend.vault.sealing import Sealer

if TYPE_CHECKING:
    pass


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
    return tomllib.loads(Path(__file__).with_name("cosines.toml").read_text(encoding="utf-8"))


OWN = "own"
"""What the names of collections of users' own models begin with."""

Floats = NDArray[np.float32]
Task = Literal["document", "query"]
"""What a text is embedded for: models that tell the two apart are told."""
Embed = Callable[[Sequence[str], Task], Awaitable[Floats]]
"""See `Embedder.embed`."""


class EmbedderError(UnavailableError):
    """The embedding model does not respond, or rejects the request.

    Search continues with words only.

    `retry_after` is in seconds, where the provider said so. `retryable`: the same request may
    succeed later.
    """

    slug, title = "embedder-unavailable", "The embedding model is unavailable"

    def __init__(
        self, detail: str, *, retry_after: float | None = None, retryable: bool = False
    ) -> None:
        super().__init__(detail)
        self.retry_after = retry_after
        self.retryable = retryable


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderSpec:
    """Which model. Vectors of two models can't be compared.

    The installation's model has a collection of its own. Those of users' own models are shared by
    all of the same dimension, since no search reads the points of two users; `server` is where
    such a model is, which tells two of one name apart, and `length` how many numbers it gives: the
    rest of the dimension is filled up.
    """

    provider: str
    model: str
    dimension: int
    server: str | None = None
    length: int | None = None

    @property
    def identity(self) -> str:
        """What tells this model from every other one."""
        if self.server is None:
            return self.collection
        length = f"/{self.length}" if self.length else ""
        return f"{self.provider} {self.server} {self.model} {self.dimension}{length}"

    @property
    def collection(self) -> str:
        """Name of the collection for this model's vectors: letters, digits, `_` and `-`."""
        if self.server is not None:
            return f"{OWN}-{self.dimension}"
        plain = "".join(each if each.isalnum() else "-" for each in self.model).strip("-").lower()
        return f"{self.provider}-{plain}-{self.dimension}"


class Embedder(Protocol):
    """A model that turns texts into vectors. Every failure it raises is an `EmbedderError`."""

    @property
    def spec(self) -> EmbedderSpec:
        """Which model this is.

        Raises `EmbedderError` while that is not known: see `ready`.
        """
        ...

    async def ready(self) -> EmbedderSpec:
        """Find out what `spec` needs. Asks a server once, where it alone knows the dimension."""
        ...

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        """Vectors of texts, shape (n, dimension), each row of unit length.

        Splits what is too much for one request, and cuts texts that are too long for the model.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections or of the model."""
        ...


class QueryEmbedder(Protocol):
    """Turns what is looked for into a vector, quickly or not at all."""

    async def cosines(self) -> ModelCosines:
        """What the model's cosines say. Never fails."""
        ...

    async def embed_query(self, sealer: Sealer, text: str) -> Floats:
        """The vector, shape (d,), of unit length. Raises `EmbedderError`."""
        ...
