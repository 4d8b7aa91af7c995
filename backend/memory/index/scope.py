"""The scope of a query, the names of vectors and fields, and messages to the engine's process.

The process of Qdrant Edge imports this module instead of `protocol`. Numpy, which `protocol` needs,
would take half of its start time and 20 MiB. Named tuples are used because importing `dataclasses`
would take a quarter. A message is its length and a pickle. Arrays are bytes in numpy's types.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple
from uuid import UUID

from backend.errors import UnavailableError

DenseName = Literal["dense", "dense_window"]
SparseName = Literal["sparse", "sparse_window"]
VectorName = DenseName | SparseName
DENSE: tuple[DenseName, ...] = ("dense", "dense_window")
SPARSE: tuple[SparseName, ...] = ("sparse", "sparse_window")
Kind = Literal["lore", "message", "scene", "question", "event", "campaign"]
"""The kind of row that a point belongs to. `campaign` is an item of a campaign.

A `scene` and a `question` are leftovers of removed features. No query asks for them, and the next
comparison with SQL deletes them; until then the index must be able to read them."""

OWNER, KIND, CONTAINER, SOURCE, POSITION, AUDIENCE = "o", "k", "c", "s", "p", "u"
"""Names of the payload fields that queries filter by. Each has an index in the engine."""


class IndexUnavailableError(UnavailableError):
    """The index does not respond. Turns continue without it, and report this."""

    slug, title = "index-unavailable", "The memory index is unavailable"


class ScopePart(NamedTuple):
    """Points of some containers, only those of a range of positions if it is given.

    Attributes:
        containers: The containers.
        before_position: The position after the last one.
        kinds: The kinds in these containers. Queries for other kinds skip them. Empty means
            unknown.
        from_position: The first position.
        audience: If given, points need one of these words, in addition to one of the scope's.
    """

    containers: Sequence[UUID]
    before_position: int | None = None
    kinds: Sequence[Kind] = ()
    from_position: int | None = None
    audience: Sequence[str] = ()

    @property
    def has_range(self) -> bool:
        return self.before_position is not None or self.from_position is not None

    def contains(self, position: int) -> bool:
        return (self.before_position is None or position < self.before_position) and (
            self.from_position is None or position >= self.from_position
        )


class Scope(NamedTuple):
    """The points that a query searches: one owner's points of these kinds in any of these parts.

    The owner's points are also the corpus that terms are weighted by (IDF). With an `audience`, a
    query finds only points with one of its words, and no points without an audience.
    """

    owner_id: UUID
    parts: Sequence[ScopePart]
    kinds: Sequence[Kind]
    audience: Sequence[str] = ()


HEADER_BYTES = 8
"""Length of the header of a message, which is the length of the message."""

ID_BYTES = 16

CallOutcome = Literal["done", "unavailable", "failed"]
"""The result of a call: a value, a message for the administrator, or an error."""

MAX_CACHED_PAYLOADS = 40_000
"""Payloads that the server caches: 25 MB. The engine sends each one once per that many payloads."""


class SparseMessage(NamedTuple):
    """Terms and their weights: ids as `uint32` and as many weights as `float32`."""

    ids: bytes
    weights: bytes


class PointMessage(NamedTuple):
    """A point. Dense vectors are `float32`; the payload is encoded (`Payload.encode`)."""

    id: UUID
    payload: dict[str, Any]
    dense: Mapping[DenseName, bytes]
    sparse: Mapping[SparseName, SparseMessage]


class QueryMessage(NamedTuple):
    """A query. A dense vector is `float32`."""

    vector: VectorName
    near: bytes | SparseMessage
    scope: Scope
    limit: int


def frame(message: object) -> bytes:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(HEADER_BYTES) + data
