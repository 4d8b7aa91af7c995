"""What the index of memories is asked for, whatever engine keeps it.

A point stands for a chunk of a row (or for a scene): vectors by name, blinded before they get here,
and a payload of ids and numbers. No text, sealed or not, is ever in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID, uuid5

import msgspec
import numpy as np
from numpy.typing import NDArray

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

Floats = NDArray[np.float32]
_POINTS = UUID("0b0c6f5e-56a5-5b3c-9a3e-6f2f0c1f7a11")


def point_id(kind: Kind, source_id: UUID, chunk: int = 0) -> UUID:
    """The id of a point: indexing the same thing twice changes nothing."""
    return uuid5(_POINTS, f"{kind}/{source_id}/{chunk}")


@dataclass(frozen=True, slots=True)
class Sparse:
    """Terms and their weights, shape (n,) each: ids of 32 bits, each once."""

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
    """What is known of a point without opening any text; an engine keeps it under short names.

    Attributes:
        owner_id: Whose it is. Every query names it.
        container_id: The lorebook, chat, chronicle or campaign that it belongs to.
        source_id: The row; for a scene the message that opens it.
        chunk: Which part of the row's text.
        version: Fingerprint of what was indexed and how: points of other versions are stale.
        position: Of a message: its depth in the tree. Else 0.
        scene_id: Of a message: the message that opens its scene.
        said_at: Seconds since 1970; 0 where there is no time.
        speaker: Of a message: the keyed id of who speaks, a term's (`terms`); else 0.
        words: Length of the indexed text in words.
        is_question: It asks, and says little else.
        audience: Who may know it: `public`, `gm`, or ids of entities. Without one, the game
            master alone.
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

    def encoded(self) -> dict[str, Any]:
        """As the engine keeps it: ids are texts, and what is zero or absent is left out."""
        # But for the position: a range finds no point without one.
        return {POSITION: self.position, **msgspec.to_builtins(self)}

    @classmethod
    def decoded(cls, fields: Mapping[str, Any] | None) -> Payload:
        """What `encoded` made. Raises `IndexUnavailableError` for what is none of ours."""
        try:
            return msgspec.convert(fields or {}, cls)
        except msgspec.ValidationError as error:
            raise IndexUnavailableError(
                "A point in the index has an unknown payload. Rebuild the "
                "index with `talekeeper reindex`."
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point; vectors that it lacks are not in the mappings. Dense ones have unit length."""

    id: UUID
    payload: Payload
    dense: Mapping[DenseName, Floats]
    sparse: Mapping[SparseName, Sparse]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The nearest points to a vector, among those that have one of that name."""

    vector: VectorName
    near: Floats | Sparse
    scope: Scope
    limit: int

    @property
    def is_empty(self) -> bool:
        """Nothing can be found, so that the engine need not be asked.

        To the engines a list of no alternatives is no condition at all.
        """
        scope = self.scope
        if not scope.kinds or not any(part.containers for part in scope.parts):
            return True
        return isinstance(self.near, Sparse) and not len(self.near.ids)


class Hit(msgspec.Struct, frozen=True, gc=False):
    """A point that was found. `score` is the cosine, or the sum of weighted terms."""

    id: UUID
    score: float
    payload: Payload


class VectorIndex(Protocol):
    """One collection of points. Every failure to answer is an `IndexUnavailableError`."""

    @property
    def name(self) -> str:
        """The collection's name: another embedding model has another collection."""
        ...

    @property
    def is_new(self) -> bool:
        """It was made just now: whatever was in it before is to be indexed again."""
        ...

    async def upsert(self, points: Sequence[Point], *, instead_of: Sequence[UUID] = ()) -> None:
        """Store points, in place of those with their ids. Durable when it returns.

        And in place of all points of the rows `instead_of`, which are the user's whose points they
        are: there is one at least then.
        """
        ...

    async def search(self, queries: Sequence[Query]) -> list[list[Hit]]:
        """Answer all queries at once, each with its hits, best first."""
        ...

    async def dense_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Floats]:
        """The `dense` vectors of points, for those that have one. For MMR."""
        ...

    async def term_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Sparse]:
        """The `sparse` vectors of points, for those that have one."""
        ...

    async def delete_sources(self, owner_id: UUID, source_ids: Sequence[UUID]) -> None:
        """Delete every point of these rows."""
        ...

    async def delete_container(self, owner_id: UUID, container_id: UUID) -> None:
        """Delete every point of a container."""
        ...

    async def delete_owner(self, owner_id: UUID) -> None:
        """Delete every point of a user's."""
        ...

    def scan(
        self, owner_id: UUID, *, container_id: UUID | None = None
    ) -> AsyncIterator[Sequence[tuple[UUID, Payload]]]:
        """Every point of a user's, in pages, without vectors: for the comparison with SQL."""
        ...

    async def owners(self) -> set[UUID]:
        """Everybody who has points."""
        ...

    async def count(self, owner_id: UUID | None = None) -> int:
        """How many points there are, of one user or of all."""
        ...

    async def ping(self) -> None:
        """Raise `IndexUnavailableError` unless it answers."""
        ...

    async def aclose(self) -> None:
        """Write everything out and let go."""
        ...


def check_dimensions(points: Sequence[Point], dimension: int | None) -> None:
    """Raise `ValueError` for a dense vector that is not of the collection's length."""
    for point in points:
        for name, vector in point.dense.items():
            if vector.shape != (dimension,):
                raise ValueError(
                    f"`{name}` of shape {vector.shape}: the collection's vectors have {dimension} "
                    "numbers."
                )
