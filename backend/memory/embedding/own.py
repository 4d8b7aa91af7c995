"""A user's own embedding model: vectors as long as one of the collections that there are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from backend.memory.embedding.gemini import GeminiEmbedder
from backend.memory.embedding.openai_compatible import OpenAICompatibleEmbedder
from backend.memory.embedding.protocol import EmbedderError, EmbedderSpec, Floats, Task

DIMENSIONS = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Of the collections for users' own models. Servers that users name may say anything: without a
fixed set each answer of another length would be another collection."""


class OwnEmbedder:
    """An `Embedder` whose vectors are filled up with zeros, which changes no cosine.

    Args:
        embedder: What asks the provider.
        dimension: How long the filled vectors are; None for the shortest of `DIMENSIONS` that
            holds those of the first answer.
        length: How long they are before, where that is known: the embedder gives no others.
    """

    def __init__(
        self,
        embedder: GeminiEmbedder | OpenAICompatibleEmbedder,
        *,
        dimension: int | None = None,
        length: int | None = None,
    ) -> None:
        self._embedder = embedder
        self.dimension, self._length = dimension, length
        self.server = embedder.server
        self.model = embedder.model
        self._closing: asyncio.Task[None] | None = None

    @property
    def spec(self) -> EmbedderSpec:
        """See `Embedder`."""
        if self.dimension is None:
            raise EmbedderError("Your embedding model has not responded yet.")
        return EmbedderSpec(
            provider="own",
            model=self.model,
            dimension=self.dimension,
            server=self.server,
            length=self._length,
        )

    async def ready(self) -> EmbedderSpec:
        """See `Embedder`."""
        if self.dimension is None:
            given = (await self._embedder.ready()).dimension
            self.dimension = next((each for each in DIMENSIONS if each >= given), None)
            if self.dimension is None:
                raise EmbedderError(
                    f"Your embedding model returns vectors of {given:,} numbers. The limit is "
                    f"{DIMENSIONS[-1]:,}."
                )
            self._length = given
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        """See `Embedder`."""
        dimension = (await self.ready()).dimension
        made = await self._embedder.embed(texts, task)
        missing = dimension - made.shape[1]
        if missing < 0 and len(made):
            raise EmbedderError("Your embedding model returns longer vectors than before.")
        return np.pad(made, ((0, 0), (0, max(0, missing))))

    def retire_soon(self) -> None:
        """Close the connections as soon as no request uses them."""
        self._closing = asyncio.ensure_future(self._embedder.retire())

    async def aclose(self) -> None:
        """See `Embedder`."""
        await self._embedder.aclose()
