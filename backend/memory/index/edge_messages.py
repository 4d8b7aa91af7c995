"""Messages between the server's process and the process of Qdrant Edge.

A message is its length and a pickle. Arrays are bytes in numpy's types, because the engine's
process does not import numpy.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from uuid import UUID

from backend.memory.index.scope import DenseName, Scope, SparseName, VectorName

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
