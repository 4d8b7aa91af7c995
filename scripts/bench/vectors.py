"""Embedders of the benchmarks, and points of other users in the index."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID, uuid5

import numpy as np

from backend.memory.embedding.protocol import Embedder, EmbedderSpec, Floats, Task
from backend.memory.index.protocol import Payload, Point, Sparse, VectorIndex, point_id

DIMENSION = 384
STRANGERS = 9
IDS = UUID("6d1c6f0e-0a3f-5d39-8a51-2f1f6a1b0000")


class HashedWords:
    """An `Embedder` without a model: a text is the sum of the random vectors of its words."""

    def __init__(self) -> None:
        self.spec = EmbedderSpec(provider="bench", model="hashed-words", dimension=DIMENSION)
        self._words: dict[str, Floats] = {}

    async def ready(self) -> EmbedderSpec:
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:  # noqa: ARG002  # all texts are alike
        """Return unit vectors, shape (n, 384)."""
        vectors = np.empty((len(texts), DIMENSION), dtype=np.float32)
        for row, text in enumerate(texts):
            words = re.findall(r"\w+", text.lower()) or ["."]
            total = np.sum([self._embed_word(word) for word in words], axis=0)
            vectors[row] = total / np.linalg.norm(total)
        return vectors

    async def aclose(self) -> None:
        return

    def _embed_word(self, word: str) -> Floats:
        vector = self._words.get(word)
        if vector is None:
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
            vector = np.random.default_rng(seed).standard_normal(DIMENSION, dtype=np.float32)
            self._words[word] = vector
        return vector


class StoredVectors:
    """An `Embedder` that stores vectors in a folder, because embedding takes most of a run.

    The folder has one file for each model. It is written when the embedder is closed.
    """

    def __init__(self, embedder: Embedder, folder: Path) -> None:
        self._embedder = embedder
        self._folder = folder
        self._vectors: dict[bytes, Floats] | None = None
        self._count_before = 0

    @property
    def spec(self) -> EmbedderSpec:
        return self._embedder.spec

    async def ready(self) -> EmbedderSpec:
        return await self._embedder.ready()

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        """Return vectors, shape (n, d), and embed only those that are not stored."""
        await self.ready()
        vectors = self._load()
        digests = [hashlib.sha256(f"{task}\0{text}".encode()).digest() for text in texts]
        missing = {
            digest: text
            for digest, text in zip(digests, texts, strict=True)
            if digest not in vectors
        }
        if missing:
            made = await self._embedder.embed([*missing.values()], task)
            vectors |= zip(missing, made, strict=True)
        return np.stack([vectors[digest] for digest in digests])

    async def aclose(self) -> None:
        """Close the embedder, and write the file if there are new vectors."""
        await self._embedder.aclose()
        if self._vectors and len(self._vectors) > self._count_before:
            self._folder.mkdir(parents=True, exist_ok=True)
            keys = np.frombuffer(b"".join(self._vectors), np.uint8).reshape(-1, 32)
            # Another run may read the file at the same time.
            unfinished = self._file.with_suffix(f".{os.getpid()}.npz")
            np.savez(unfinished, keys=keys, rows=np.stack([*self._vectors.values()]))
            unfinished.replace(self._file)

    @property
    def _file(self) -> Path:
        return self._folder / f"{self.spec.collection}.npz"

    def _load(self) -> dict[bytes, Floats]:
        if self._vectors is None:
            self._vectors = {}
            if self._file.is_file():
                stored = np.load(self._file)
                self._vectors = dict(zip(map(bytes, stored["keys"]), stored["rows"], strict=True))
            self._count_before = len(self._vectors)
        return self._vectors


def get_stranger_id(number: int) -> UUID:
    """Return the id of another user with points in the index."""
    return uuid5(IDS, f"stranger/{number}")


def draw_vectors(count: int, *, seed: int) -> Floats:
    """Return random unit vectors, shape (count, 384)."""
    drawn = np.random.default_rng(seed).standard_normal((count, DIMENSION), dtype=np.float32)
    unit: Floats = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return unit


async def write_strangers(index: VectorIndex, count: int, *, page: int = 2_000) -> float:
    """Write points of messages of `STRANGERS` other users; return the engine's seconds.

    Vectors are random. Terms follow Zipf's law, as words do.
    """
    draw, seconds = np.random.default_rng(22), 0.0
    for start in range(0, count, page):
        size = min(page, count - start)
        dense = draw_vectors(size, seed=start)
        window = draw_vectors(size, seed=start + 1)
        points: list[Point] = []
        for row in range(size):
            number = start + row
            source_id, owner = uuid5(IDS, str(number)), number % STRANGERS
            payload = Payload(
                owner_id=get_stranger_id(owner),
                kind="message",
                container_id=uuid5(IDS, f"chat/{owner}"),
                source_id=source_id,
                version=1,
                position=number // STRANGERS,
                words=20,
            )
            points.append(
                Point(
                    id=point_id("message", source_id),
                    payload=payload,
                    dense={"dense": dense[row], "dense_window": window[row]},
                    sparse={
                        "sparse": _draw_terms(draw, 10),
                        "sparse_window": _draw_terms(draw, 50),
                    },
                )
            )
        began = time.perf_counter()
        await index.upsert(points)
        seconds += time.perf_counter() - began
    return seconds


def _draw_terms(draw: np.random.Generator, count: int) -> Sparse:
    ranks = np.unique(draw.zipf(1.3, count).astype(np.uint64) % 50_000)
    ids = (ranks * 85_899).astype(np.uint32)
    return Sparse(ids, draw.random(len(ids), dtype=np.float32))
