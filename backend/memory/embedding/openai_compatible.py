"""Embeddings of any server that speaks OpenAI's `/embeddings`."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from backend.generation.adapters.openai.server import (
    OpenAICompatibleConfig,
    OpenAICompatibleProvider,
)
from backend.memory.embedding.protocol import EmbedderError, EmbedderSpec, Floats, Task
from backend.memory.embedding.requests import answer, batches, prepared, unit_rows

WHO = "The embeddings server"
DEFAULT_BATCH = 100


class OpenAICompatibleEmbedder:
    """An `Embedder` on an OpenAI-compatible server, asked for `batch` texts a request.

    Without a `dimension` vectors are as long as those of the first answer, for many servers refuse
    to be asked for one; or of that `length`, where it is known. The configuration's
    `answer_timeout` is the longest wait for one request.
    """

    def __init__(
        self,
        config: OpenAICompatibleConfig,
        *,
        model: str,
        dimension: int | None = None,
        length: int | None = None,
        batch: int = DEFAULT_BATCH,
    ) -> None:
        self._provider = OpenAICompatibleProvider(config)
        self.model, self.server = model, f"openai {config.base_url}"
        self._asked_dimension = dimension
        self._dimension = dimension or length
        self._batch = batch

    @property
    def spec(self) -> EmbedderSpec:
        """See `Embedder`."""
        if self._dimension is None:
            raise EmbedderError(
                f"{WHO} has not responded yet, and the size of its vectors is not configured."
            )
        return EmbedderSpec(provider="openai", model=self.model, dimension=self._dimension)

    async def ready(self) -> EmbedderSpec:
        """See `Embedder`."""
        if self._dimension is None:
            await self.embed(["dimension"], "document")
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:  # noqa: ARG002  # the API knows no tasks
        """See `Embedder`."""
        parts = [
            await self._ask(batch) for batch in batches([*map(prepared, texts)], most=self._batch)
        ]
        if not parts:
            return np.empty((0, self._dimension or 0), np.float32)
        return np.concatenate(parts)

    async def _ask(self, texts: Sequence[str]) -> Floats:
        body: dict[str, Any] = {
            "model": self.model,
            "input": list(texts),
            "encoding_format": "base64",
        }
        if self._asked_dimension is not None:
            body["dimensions"] = self._asked_dimension
        address = self._provider.config.base_url.rstrip("/") + "/embeddings"
        data = await answer(
            self._provider,
            # Unparsed: the vectors are read into their own type.
            lambda connection: connection.post_raw(address, body),
            who=WHO,
        )
        vectors = _rows(data)
        rows = unit_rows(vectors, who=WHO, count=len(texts), dimension=self._dimension)
        self._dimension = rows.shape[1]
        return rows

    async def retire(self) -> None:
        """Close the connections as soon as no request uses them."""
        await self._provider.retire()

    async def aclose(self) -> None:
        """See `Embedder`."""
        await self._provider.aclose()


class _Embedding(msgspec.Struct):
    embedding: str | list[float]
    index: int | None = None


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


def _rows(answer: bytes) -> list[Any]:
    """The vectors in the texts' order. Some servers send numbers whatever form is asked for.

    Raises `EmbedderError` when the answer holds none, at the first place where it is something
    else: what a broken server sends may be large.
    """
    try:
        data = msgspec.json.decode(answer, type=_Embeddings).data
        if all(each.index is not None for each in data):
            data.sort(key=lambda each: each.index or 0)
        return [
            np.frombuffer(base64.b64decode(each.embedding, validate=True), "<f4")
            if isinstance(each.embedding, str)
            else each.embedding
            for each in data
        ]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise EmbedderError(f"{WHO} sent a response without embeddings.") from None
