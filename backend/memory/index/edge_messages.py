"""What goes through the pipe between the server's process and that of Qdrant Edge.

A message is its length, then a pickle. Numbers go as bytes, of numpy's types: the engine's process
does without numpy.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from uuid import UUID

from backend.memory.index.scope import DenseName, Scope, SparseName, VectorName

HEADER_BYTES = 8
"""Bytes before a message: its length."""

ID_BYTES = 16
"""Bytes of a point's id."""

CallOutcome = Literal["done", "unavailable", "failed"]
"""How a call ended: with a value, with a message for the administrator, or with an error."""

MAX_CACHED_PAYLOADS = 40_000
"""Payloads that the server keeps, 25 MB: the engine sends each once, until it has sent so many."""


class SparseMessage(NamedTuple):
    """Terms and their weights: ids as `uint32`, weights as `float32`, the same number of both."""

    ids: bytes
    weights: bytes


class PointMessage(NamedTuple):
    """A point. Dense vectors are `float32`; the payload is as the engine keeps it."""

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
    """A message as it goes through a pipe."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(HEADER_BYTES) + data
