"""Vectors that a bench made before, kept in a file: embedding is most of what a run takes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from backend.memory.embedding.protocol import Embedder, EmbedderSpec, Floats, Task


class KeptVectors:
    """An `Embedder` that asks another one for what is not in its file yet.

    `folder` gets one file a model, written when it is closed.
    """

    def __init__(self, embedder: Embedder, folder: Path) -> None:
        self._embedder = embedder
        self._folder = folder
        self._kept: dict[bytes, Floats] | None = None
        self._before = 0

    @property
    def spec(self) -> EmbedderSpec:
        """See `Embedder`."""
        return self._embedder.spec

    async def ready(self) -> EmbedderSpec:
        """See `Embedder`."""
        return await self._embedder.ready()

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        """See `Embedder`."""
        await self.ready()
        kept = self._read()
        digests = [hashlib.sha256(f"{task}\0{text}".encode()).digest() for text in texts]
        wanted = dict(zip(digests, texts, strict=True))
        missing = {digest: text for digest, text in wanted.items() if digest not in kept}
        if missing:
            made = await self._embedder.embed([*missing.values()], task)
            kept |= zip(missing, made, strict=True)
        return np.stack([kept[digest] for digest in digests])

    async def aclose(self) -> None:
        """See `Embedder`. Writes the file."""
        await self._embedder.aclose()
        if self._kept and len(self._kept) > self._before:
            self._folder.mkdir(parents=True, exist_ok=True)
            keys = np.frombuffer(b"".join(self._kept), np.uint8).reshape(-1, 32)
            np.savez(self._file, keys=keys, rows=np.stack([*self._kept.values()]))

    @property
    def _file(self) -> Path:
        return self._folder / f"{self.spec.collection}.npz"

    def _read(self) -> dict[bytes, Floats]:
        if self._kept is None:
            self._kept = {}
            if self._file.is_file():
                found = np.load(self._file)
                self._kept = dict(zip(map(bytes, found["keys"]), found["rows"], strict=True))
            self._before = len(self._kept)
        return self._kept
