"""What turns texts into vectors: the protocol of all embedders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from backend.errors import UnavailableError
from backend.vault.sealing import Sealer

if TYPE_CHECKING:
    from backend.memory.embedding.cosines import ModelCosines

OWN = "own"
"""What the names of collections of users' own models begin with."""

Floats = NDArray[np.float32]
Task = Literal["document", "query"]
"""What a text is embedded for: models that tell the two apart are told."""


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
