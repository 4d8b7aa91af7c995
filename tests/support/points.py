"""Points for an index, made up."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx
import numpy as np

from backend.memory.index.protocol import (
    DenseName,
    Floats,
    Kind,
    Payload,
    Point,
    Query,
    Scope,
    ScopePart,
    Sparse,
    SparseName,
    VectorIndex,
    VectorName,
    point_id,
)
from backend.memory.index.server import ServerIndex
from backend.settings import Settings

DIMENSION = 8

Open = Callable[[str, int | None], Awaitable[VectorIndex]]
"""Opens a collection by its name, with this dimension."""


def unit(*numbers: float) -> Floats:
    """A vector of unit length that begins with these numbers."""
    vector = np.zeros(DIMENSION)
    vector[: len(numbers)] = numbers
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def terms(weights: Mapping[int, float]) -> Sparse:
    """A vector of terms."""
    return Sparse(
        np.array(list(weights), dtype=np.uint32), np.array(list(weights.values()), dtype=np.float32)
    )


def point(
    owner: UUID,
    container: UUID,
    *,
    kind: Kind = "message",
    source: UUID | None = None,
    position: int = 0,
    dense: Mapping[DenseName, Floats] | None = None,
    sparse: Mapping[SparseName, Sparse] | None = None,
) -> Point:
    """A point; with a dense vector of no meaning where none is given."""
    source = source or uuid4()
    return Point(
        id=point_id(kind, source),
        payload=Payload(
            owner_id=owner, kind=kind, container_id=container, source_id=source, position=position
        ),
        dense={"dense": unit(1)} if dense is None else dense,
        sparse=sparse or {},
    )


def scope(
    owner: UUID, *containers: UUID, before: int | None = None, kinds: Sequence[Kind] = ("message",)
) -> Scope:
    """An owner's points in these containers."""
    return Scope(
        owner_id=owner,
        parts=[ScopePart(containers=containers, before_position=before)],
        kinds=kinds,
    )


def query(
    near: Floats | Sparse, within: Scope, *, vector: VectorName | None = None, limit: int = 10
) -> Query:
    """A query by the vector `dense` or `sparse`, unless another is named."""
    usual: VectorName = "sparse" if isinstance(near, Sparse) else "dense"
    return Query(vector=vector or usual, near=near, scope=within, limit=limit)


def server_settings(url: str, **more: Any) -> Settings:
    """Settings for a Qdrant server that is spoken to over HTTP."""
    given = {"qdrant_url": url, "qdrant_protocol": "http", "qdrant_timeout_seconds": 5}
    return Settings.model_validate(given | more)


async def connected(settings: Settings, name: str, dimension: int | None) -> ServerIndex:
    """An index on a server, with its collection. Raises `IndexUnavailableError`."""
    index = ServerIndex(settings, name, dimension)
    await index.prepare()
    return index


@asynccontextmanager
async def open_collections(settings: Settings) -> AsyncGenerator[Open]:
    """Open collections on a server. At the end they are closed, and deleted there."""
    opened: list[VectorIndex] = []
    names: set[str] = set()

    async def open_one(name: str, dimension: int | None) -> VectorIndex:
        names.add(settings.qdrant_collection_prefix + name)
        index = await connected(settings, name, dimension)
        opened.append(index)
        return index

    try:
        yield open_one
    finally:
        for index in opened:
            await index.aclose()
        # With a new client, because those of the indexes are closed.
        async with httpx.AsyncClient(base_url=settings.qdrant_urls[0], trust_env=False) as client:
            for name in names:
                (await client.delete(f"/collections/{name}")).raise_for_status()
