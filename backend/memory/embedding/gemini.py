"""Gemini's embeddings, over the same connection to Google as its chat models use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backend.generation.adapters.gemini import WHO, GeminiConfig, GeminiProvider
from backend.memory.embedding.protocol import EmbedderSpec, Floats, Task
from backend.memory.embedding.requests import answer, batches, prepared, unit_rows

DEFAULT_MODEL = "gemini-embedding-001"
DEFAULT_DIMENSION = 768

MOST_TEXTS = 100
"""In one request. Source: https://ai.google.dev/api/embeddings#method:-models.batchembedcontents"""

_TASK_TYPES: dict[Task, str] = {"document": "RETRIEVAL_DOCUMENT", "query": "RETRIEVAL_QUERY"}


class GeminiEmbedder:
    """An `Embedder` of Google's, asked for vectors of `dimension` and `batch` texts a request.

    The configuration's `answer_timeout` is the longest wait for one request.
    """

    def __init__(
        self,
        config: GeminiConfig,
        *,
        model: str = DEFAULT_MODEL,
        dimension: int = DEFAULT_DIMENSION,
        batch: int = MOST_TEXTS,
    ) -> None:
        self._provider = GeminiProvider(config)
        self.spec = EmbedderSpec(provider="gemini", model=model, dimension=dimension)
        self._batch = min(batch, MOST_TEXTS)
        self.model, self.server = model, f"gemini {config.base_url or ''}"

    async def ready(self) -> EmbedderSpec:
        """See `Embedder`."""
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        """See `Embedder`."""
        parts = [
            await self._ask(batch, task)
            for batch in batches([*map(prepared, texts)], most=self._batch)
        ]
        return np.concatenate([np.empty((0, self.spec.dimension), np.float32), *parts])

    async def _ask(self, texts: Sequence[str], task: Task) -> Floats:
        # Of bare texts the SDK makes one single content for models that it takes to be multimodal:
        # one vector for all of them.
        contents: Any = [{"parts": [{"text": text}]} for text in texts]
        config = {
            "task_type": _TASK_TYPES[task],
            "output_dimensionality": self.spec.dimension,
        }
        response = await answer(
            self._provider,
            lambda connection: connection.sdk.aio.models.embed_content(
                model=self.spec.model, contents=contents, config=config
            ),
            who=WHO,
        )
        rows: list[list[float]] = [each.values or [] for each in response.embeddings or ()]
        # Below 3,072 dimensions Gemini cuts its vectors off and does not scale them again.
        return unit_rows(rows, who=WHO, count=len(texts), dimension=self.spec.dimension)

    async def retire(self) -> None:
        """Close the connections as soon as no request uses them."""
        await self._provider.retire()

    async def aclose(self) -> None:
        """See `Embedder`."""
        await self._provider.aclose()
