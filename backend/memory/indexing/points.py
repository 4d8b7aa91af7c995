"""From documents to points: embedded, counted, blinded."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from uuid import UUID

import numpy as np

from backend.core.audience import make_keywords
from backend.core.cpu_pool import CpuPool
from backend.memory.embedding.protocol import EmbedderError, Floats
from backend.memory.index.protocol import DenseName, Payload, Point, Sparse, SparseName, point_id
from backend.memory.indexing.documents import Document
from backend.memory.search.terms import sparse_vector
from backend.vault.blinding import Blinder
from backend.vault.sealing import Sealer

BLINDERS_KEPT = 500
BLINDER_SECONDS = 900.0


class DocumentEmbedder(Protocol):
    """Turns a user's texts into vectors; each text once, for it keeps them."""

    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:
        """Vectors, shape (n, d), of unit length. Raises `EmbedderError`."""
        ...


class Blinders:
    """The blinders of users who were here lately: they hold keys, and terms in the clear."""

    def __init__(self) -> None:
        self._kept: OrderedDict[UUID, tuple[float, Blinder]] = OrderedDict()

    def get(self, sealer: Sealer) -> Blinder:
        """A user's blinder, made where it is not at hand."""
        self.sweep()
        found = self._kept.pop(sealer.user_id, None)
        blinder = found[1] if found else Blinder(sealer)
        self._kept[sealer.user_id] = time.monotonic(), blinder
        return blinder

    def sweep(self) -> None:
        """Drop those that were not used for a while, and the oldest of too many."""
        at = time.monotonic()
        while self._kept:
            oldest = next(iter(self._kept))
            if len(self._kept) <= BLINDERS_KEPT and at - self._kept[oldest][0] < BLINDER_SECONDS:
                return
            del self._kept[oldest]

    def forget(self, user_id: UUID) -> None:
        """Drop a user's."""
        self._kept.pop(user_id, None)


@dataclass(slots=True)
class Attempt:
    """One user's texts on their way into the index.

    `failure` is why dense vectors are missing, once they are: they are not asked for again. The
    rest goes in without them, and is found by its terms until then.
    """

    sealer: Sealer
    failure: EmbedderError | None = None


@dataclass(frozen=True, slots=True)
class Vectors:
    """What gives points their dense vectors.

    `are_missed`: the points lack them only for now, where there is no embedder.
    """

    embedder: DocumentEmbedder | None
    are_missed: bool = False


class PointMaker:
    """Makes points of documents. Without an embedder they have terms alone."""

    def __init__(
        self,
        embedder: DocumentEmbedder | None,
        *,
        blinders: Blinders,
        pool: CpuPool,
    ) -> None:
        self.embedder = embedder
        self._blinders = blinders
        self._pool = pool

    async def make(
        self, attempt: Attempt, documents: Sequence[Document], *, vectors: Vectors | None = None
    ) -> list[Point]:
        """Points of one user's documents, in order; without `vectors` by the usual embedder."""
        owner_id = attempt.sealer.user_id
        blinder = self._blinders.get(attempt.sealer)
        wanted = vectors or Vectors(self.embedder)
        dense: list[dict[DenseName, Floats]] = [{} for _ in documents]
        if wanted.embedder is not None and attempt.failure is None:
            try:
                dense = await self._dense(attempt.sealer, wanted.embedder, blinder, documents)
            except EmbedderError as error:
                attempt.failure = error
        has_failed = wanted.embedder is not None and attempt.failure is not None
        is_incomplete = has_failed or wanted.are_missed
        return await self._pool.run(
            owner_id,
            partial(self._points, owner_id, blinder, documents, dense, is_incomplete),
            size=sum(len(each.text) + len(each.sparse_window or "") for each in documents),
            is_job=True,
        )

    def _points(
        self,
        owner_id: UUID,
        blinder: Blinder,
        documents: Sequence[Document],
        dense: Sequence[dict[DenseName, Floats]],
        is_incomplete: bool,  # noqa: FBT001  # called by `partial` alone
    ) -> list[Point]:
        points: list[Point] = []
        for document, vectors in zip(documents, dense, strict=True):
            sparse: dict[SparseName, Sparse] = {"sparse": sparse_vector(document.text, blinder)}
            if document.sparse_window:
                sparse["sparse_window"] = sparse_vector(document.sparse_window, blinder)
            payload = Payload(
                owner_id=owner_id,
                kind=document.kind,
                container_id=document.container_id,
                source_id=document.source_id,
                chunk=document.chunk,
                # Without its vectors a point is stale from the start: the next look mends it.
                version=0 if is_incomplete else document.version,
                position=document.position,
                scene_id=document.scene_id,
                said_at=document.said_at,
                speaker=speaker_id(document.speaker, blinder),
                words=document.words,
                is_question=document.is_question,
                audience=make_keywords(document.audience),
            )
            name = point_id(document.kind, document.source_id, document.chunk)
            points.append(Point(id=name, payload=payload, dense=vectors, sparse=sparse))
        return points

    async def _dense(
        self,
        sealer: Sealer,
        embedder: DocumentEmbedder,
        blinder: Blinder,
        documents: Sequence[Document],
    ) -> list[dict[DenseName, Floats]]:
        wanted: list[tuple[int, DenseName, str]] = []
        for place, document in enumerate(documents):
            text = document.text if document.dense_text is None else document.dense_text
            if text:
                wanted.append((place, "dense", text))
            if document.dense_window:
                wanted.append((place, "dense_window", document.dense_window))
        found: list[dict[DenseName, Floats]] = [{} for _ in documents]
        if not wanted:
            return found
        vectors = await embedder.embed_documents(sealer, [text for *_, text in wanted])
        turned = await self._pool.run(
            sealer.user_id, partial(blinder.turn, np.ascontiguousarray(vectors)), is_job=True
        )
        for (place, name, _), vector in zip(wanted, turned, strict=True):
            found[place][name] = vector
        return found


def speaker_id(name: str, blinder: Blinder) -> int:
    """The keyed id of who speaks; 0 for nobody."""
    return blinder.term_id(f"speaker/{name.casefold()}") if name else 0
