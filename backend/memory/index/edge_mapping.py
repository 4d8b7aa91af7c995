"""What Qdrant Edge is told, out of what an index is asked."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, get_args
from uuid import UUID, uuid5

import qdrant_edge as engine  # noqa: TID251  half of its adapter

from backend.memory.index.edge_messages import PointMessage, QueryMessage, SparseMessage
from backend.memory.index.scope import (
    AUDIENCE,
    CONTAINER,
    DENSE,
    KIND,
    OWNER,
    POSITION,
    SOURCE,
    SPARSE,
    Kind,
    Scope,
    ScopePart,
)

PLACE = "x"
"""The field of a point that only this engine has: its `place`."""

_PLACES = UUID("8d1f0c52-6a0e-5d8b-9a5c-3f6f4e0d7b21")

_PLACES_KEPT = 4096
"""Places that are kept, 1 MB: a turn's queries name the same ones several times."""

_OVERSAMPLING = 2.0
"""So many times the hits are taken by the copies of eight bits, and scored anew."""


def config(dimension: int | None) -> engine.EdgeConfig:
    """The collection: vectors of unit length, terms that are weighted when asked, no graph.

    Beside vectors stand copies of eight bits a number, once a segment has been put in order.
    """
    dense: dict[str, engine.EdgeVectorParams] = {}
    if dimension is not None:
        params = engine.EdgeVectorParams(
            size=dimension,
            distance=engine.Distance.Dot,
            quantization_config=engine.ScalarQuantizationConfig(
                engine.ScalarType.Int8, quantile=0.99, memory=engine.Memory.Cached
            ),
        )
        dense = dict.fromkeys(DENSE, params)
    return engine.EdgeConfig(
        vectors=dense or None,
        sparse_vectors=dict.fromkeys(
            SPARSE, engine.EdgeSparseVectorParams(modifier=engine.Modifier.Idf)
        ),
        hnsw_config=engine.HnswIndexConfig(
            m=0, payload_m=0, ef_construct=100, full_scan_threshold=10_000
        ),
    )


def payload_indexes() -> dict[str, Any]:
    """For every field that is filtered on. Ids are compared as numbers: half the time of texts."""
    return {
        OWNER: engine.UuidIndexParams(is_tenant=True),
        PLACE: engine.UuidIndexParams(),
        SOURCE: engine.UuidIndexParams(),
        AUDIENCE: engine.KeywordIndexParams(),
        POSITION: engine.IntegerIndexParams(lookup=False, range=True),
    }


@lru_cache(maxsize=_PLACES_KEPT)
def place(owner_id: UUID | str, container_id: UUID | str, kind: Kind) -> str:
    """One id for a point's owner, container and kind.

    The engine checks each condition of a query for every point of a user. Three conditions took as
    long as comparing the vectors; this is one. Points of different users never share a place.
    """
    return str(uuid5(_PLACES, f"{owner_id}/{container_id}/{kind}"))


def point(given: PointMessage) -> engine.Point:
    """A point with its vectors and its payload."""
    vectors: dict[str, Any] = {name: _floats(vector) for name, vector in given.dense.items()}
    vectors |= {name: sparse(vector) for name, vector in given.sparse.items()}
    payload = given.payload
    there = place(payload[OWNER], payload[CONTAINER], payload[KIND])
    return engine.Point(given.id, vectors, {PLACE: there, **payload})


def payload(stored: dict[str, Any]) -> dict[str, Any]:
    """A point's payload as it was given, of what the engine has, which is changed for it."""
    stored.pop(PLACE, None)
    return stored


def request(query: QueryMessage, *, is_sole_owner: bool = False) -> engine.QueryRequest:
    """A query, with the owner in its filter's places, and the owner's points as its corpus.

    Those of a sole owner are the whole collection, and need not be counted, which takes half of a
    query by terms.
    """
    near = query.near
    if isinstance(near, SparseMessage):
        vector: Any = sparse(near)
        params = None
        if not is_sole_owner:
            corpus = owned(query.scope.owner_id)
            params = engine.SearchParams(idf=engine.IdfParams(corpus=corpus))
    else:
        vector = _floats(near)
        again = engine.QuantizationSearchParams(rescore=True, oversampling=_OVERSAMPLING)
        params = engine.SearchParams(quantization=again)
    return engine.QueryRequest(
        limit=query.limit,
        query=engine.Query.Nearest(vector, using=query.vector),
        filter=_within(query.scope),
        with_payload=False,
        params=params,
    )


def sparse(vector: SparseMessage) -> engine.SparseVector:
    """Terms and their weights."""
    return engine.SparseVector(array("I", vector.ids).tolist(), _floats(vector.weights))


def terms(vector: engine.SparseVector) -> SparseMessage:
    """The message of a sparse vector that the engine has."""
    return SparseMessage(array("I", vector.indices).tobytes(), array("f", vector.values).tobytes())


def owned(owner_id: UUID | str, *conditions: Any) -> engine.Filter:
    """The owner's points that fulfil the conditions."""
    return engine.Filter(must=[among(OWNER, [owner_id]), *conditions])


def among(key: str, values: Sequence[object]) -> engine.FieldCondition:
    """The field is one of these ids or words."""
    texts = [str(each) for each in values]
    match = engine.MatchAny(texts) if len(texts) > 1 else engine.MatchValue(texts[0])
    return engine.FieldCondition(key=key, match=match)


def within(owner_id: UUID, container_id: UUID | None) -> engine.Filter:
    """The owner's points, of one container or all."""
    if container_id is None:
        return owned(owner_id)
    places = [place(owner_id, container_id, kind) for kind in get_args(Kind)]
    return engine.Filter(must=[among(PLACE, places)])


def _within(scope: Scope) -> engine.Filter:
    """The owner's points of these kinds that lie in one of the parts; at least one has containers.

    A single condition on their places where no part has a limit: the engine is fastest with that.
    """
    parts = [part for part in scope.parts if part.containers]
    known_to = [among(AUDIENCE, scope.audience)] if scope.audience else []
    if all(part.before_position is None for part in parts):
        places = [each for part in parts for each in _places(scope, part)]
        return engine.Filter(must=[among(PLACE, places), *known_to])
    if len(parts) == 1:
        return engine.Filter(must=[*_part(scope, parts[0]), *known_to])
    alternatives: list[Any] = [engine.Filter(must=_part(scope, part)) for part in parts]
    return engine.Filter(must=[engine.Filter(should=alternatives), *known_to])


def _part(scope: Scope, part: ScopePart) -> list[Any]:
    places = among(PLACE, list(_places(scope, part)))
    if part.before_position is None:
        return [places]
    before = engine.RangeFloat(lt=part.before_position)
    return [places, engine.FieldCondition(key=POSITION, range=before)]


def _places(scope: Scope, part: ScopePart) -> Iterator[str]:
    for container_id in part.containers:
        for kind in scope.kinds:
            yield place(scope.owner_id, container_id, kind)


def _floats(numbers: bytes) -> list[float]:
    return array("f", numbers).tolist()
