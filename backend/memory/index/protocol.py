"""The protocol of the vector index, which is the same for all engines.

A point represents a chunk of a row. It has named vectors, which are blinded before they get here,
and a payload of ids and numbers. It never contains text, neither plain nor sealed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID, uuid5

import msgspec
import numpy as np
from numpy.typing import NDArray
from prometheus_client import Histogram

from backend.memory.index.scope import (
    AUDIENCE,
    CONTAINER,
    DENSE,
    KIND,
    OWNER,
    POSITION,
    SOURCE,
    SPARSE,
    DenseName,
    IndexUnavailableError,
    Kind,
    Scope,
    ScopePart,
    SparseName,
    VectorName,
)

__all__ = [
    "AUDIENCE",
    "CONTAINER",
    "DENSE",
    "KIND",
    "OWNER",
    "POSITION",
    "SOURCE",
    "SPARSE",
    "DenseName",
    "Floats",
    "Hit",
    "IndexUnavailableError",
    "Kind",
    "Payload",
    "Point",
    "Query",
    "Scope",
    "ScopePart",
    "Sparse",
    "SparseName",
    "VectorIndex",
    "VectorName",
    "check_dimensions",
    "point_id",
]

INDEX_SECONDS = Histogram(
    "talekeeper_index_seconds", "Time of searches and writes of the vector index", ["operation"]
)

Floats = NDArray[np.float32]
_POINTS = UUID("0b0c6f5e-56a5-5b3c-9a3e-6f2f0c1f7a11")


def point_id(kind: Kind, source_id: UUID, chunk: int = 0) -> UUID:
    """Return the id of a point. It is deterministic, so indexing a row twice changes nothing."""
    return uuid5(_POINTS, f"{kind}/{source_id}/{chunk}")


@dataclass(frozen=True, slots=True)
class Sparse:
    """Terms and their weights, shape (n,) each. The ids have 32 bits and are unique."""

    ids: NDArray[np.uint32]
    weights: Floats


class Payload(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
    rename={
        "owner_id": OWNER,
        "kind": KIND,
        "container_id": CONTAINER,
        "source_id": SOURCE,
        "position": POSITION,
        "scene_id": "e",
        "chunk": "h",
        "version": "v",
        "said_at": "t",
        "speaker": "a",
        "words": "w",
        "is_question": "q",
        "audience": AUDIENCE,
    },
):
    """The data of a point that is known without decrypting text. Engines store it by short names.

    Attributes:
        owner_id: The user. Every query filters by it.
        container_id: The lorebook, chat, chronicle or campaign.
        source_id: The row.
        chunk: Index of the part of the row's text.
        version: The version of the row. Points with another version are stale.
        position: The depth of a message in its tree, or else 0.
        scene_id: The first message of a message's scene.
        said_at: Seconds since 1970; 0 if there is no time.
        speaker: The keyed id of a message's author, computed like that of a term; or else 0.
        words: Length of the indexed text in words.
        is_question: True if the text is a bare question.
        audience: Who may know it: `public`, `gm`, or ids of entities. If it is empty, only the game
            master may.
    """

    owner_id: UUID
    kind: Kind
    container_id: UUID
    source_id: UUID
    chunk: int = 0
    version: int = 0
    position: int = 0
    scene_id: UUID | None = None
    said_at: int = 0
    speaker: int = 0
    words: int = 0
    is_question: bool = False
    audience: tuple[str, ...] = ()

    def encode(self) -> dict[str, Any]:
        """Return the form that engines store: ids as strings, without default values."""
        # The position is always included, because a range finds no point without one.
        return {POSITION: self.position, **msgspec.to_builtins(self)}

    @classmethod
    def decode(cls, fields: Mapping[str, Any] | None) -> Payload:
        """Reverse `encode`. Raises `IndexUnavailableError` if the fields are invalid."""
        try:
            return msgspec.convert(fields or {}, cls)
        except msgspec.ValidationError as error:
            raise IndexUnavailableError(
                "A point in the index has an unknown payload. Rebuild the index with `talekeeper "
                "reindex`."
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point with the vectors that it has, by name. Dense vectors have unit length."""

    id: UUID
    payload: Payload
    dense: Mapping[DenseName, Floats]
    sparse: Mapping[SparseName, Sparse]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query for the nearest points to a vector, among points that have one of that name."""

    vector: VectorName
    near: Floats | Sparse
    scope: Scope
    limit: int

    @property
    def is_empty(self) -> bool:
        """True if it can find nothing. Such a query must not reach an engine.

        Engines treat an empty list of alternatives as no condition.
        """
        scope = self.scope
        if not scope.kinds or not any(part.containers for part in scope.parts):
            return True
        return isinstance(self.near, Sparse) and not len(self.near.ids)


class Hit(msgspec.Struct, frozen=True, gc=False):
    """A point that a query found. `score` is the cosine, or the sum of weighted terms."""

    id: UUID
    score: float
    payload: Payload


class VectorIndex(Protocol):
    """A collection of points. Every failure raises `IndexUnavailableError`."""

    @property
    def name(self) -> str:
        """The name of the collection. Each embedding model has its own."""
        ...

    @property
    def is_new(self) -> bool:
        """True if it was created by this process, so that everything must be indexed again."""
        ...

    async def upsert(self, points: Sequence[Point], *, instead_of: Sequence[UUID] = ()) -> None:
        """Store points, replacing those with the same ids. They are durable when it returns.

        Also replace all points of the rows `instead_of`. If there are any, `points` must not be
        empty, and the rows belong to the same user.
        """
        ...

    async def search(self, queries: Sequence[Query]) -> list[list[Hit]]:
        """Return the hits of each query, best first."""
        ...

    async def dense_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Floats]: ...

    async def term_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Sparse]: ...

    async def delete_sources(self, owner_id: UUID, source_ids: Sequence[UUID]) -> None: ...

    async def delete_container(self, owner_id: UUID, container_id: UUID) -> None: ...

    async def delete_owner(self, owner_id: UUID) -> None: ...

    def scan(
        self, owner_id: UUID, *, container_id: UUID | None = None
    ) -> AsyncIterator[Sequence[tuple[UUID, Payload]]]:
        """Yield pages of a user's points, without vectors. For the comparison with SQL."""
        ...

    async def owners(self) -> set[UUID]: ...

    async def count(self, owner_id: UUID | None = None) -> int: ...

    async def ping(self) -> None:
        """Raise `IndexUnavailableError` unless it responds."""
        ...

    async def aclose(self) -> None: ...


def check_dimensions(points: Sequence[Point], dimension: int | None) -> None:
    """Raise `ValueError` if a dense vector does not have the collection's length."""
    for point in points:
        for name, vector in point.dense.items():
            if vector.shape != (dimension,):
                raise ValueError(
                    f"`{name}` of shape {vector.shape}: the collection's vectors have {dimension} "
                    "numbers."
                )
