"""Embeddings on disk, so that a bench which is run again need not compute them again."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from backend.memory.embedding.protocol import Embedder, EmbedderSpec, Floats, Task


class VectorCache:
    """An `Embedder` that keeps what `model` computes in `folder`, one file a model and task."""

    def __init__(self, model: Embedder, folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._kept: dict[Task, dict[str, Floats]] = {}

    @property
    def spec(self) -> EmbedderSpec:
        """See `Embedder`."""
        return self._model.spec

    async def ready(self) -> EmbedderSpec:
        """See `Embedder`."""
        return await self._model.ready()

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        """See `Embedder`."""
        kept = self._kept.setdefault(task, {}) or self._read(task)
        keys = [sha256(text.encode()).hexdigest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in kept}
        if missing:
            vectors = await self._model.embed(list(missing.values()), task)
            kept |= dict(zip(missing, vectors, strict=True))
        return np.stack([kept[key] for key in keys])

    async def aclose(self) -> None:
        """Write what is kept."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for task, kept in self._kept.items():
            if kept:
                np.savez(self._file(task), keys=list(kept), vectors=np.stack(list(kept.values())))
        await self._model.aclose()

    def _read(self, task: Task) -> dict[str, Floats]:
        if self._file(task).exists():
            with np.load(self._file(task)) as found:
                self._kept[task] = dict(zip(found["keys"], found["vectors"], strict=True))
        return self._kept[task]

    def _file(self, task: Task) -> Path:
        return self._folder / f"{self.spec.collection}-{task}.npz"
