"""What Qdrant Edge is told, out of what an index is asked."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any
from uuid import UUID

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
    Scope,
    ScopePart,
)

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
        CONTAINER: engine.UuidIndexParams(),
        SOURCE: engine.UuidIndexParams(),
        KIND: engine.KeywordIndexParams(),
        AUDIENCE: engine.KeywordIndexParams(),
        POSITION: engine.IntegerIndexParams(lookup=False, range=True),
    }


def point(given: PointMessage) -> engine.Point:
    """A point with its vectors and its payload."""
    vectors: dict[str, Any] = {name: _floats(vector) for name, vector in given.dense.items()}
    vectors |= {name: sparse(vector) for name, vector in given.sparse.items()}
    return engine.Point(given.id, vectors, given.payload)


def request(query: QueryMessage) -> engine.QueryRequest:
    """A query, with the owner in its filter, and the owner's points as its corpus."""
    near = query.near
    if isinstance(near, SparseMessage):
        vector: Any = sparse(near)
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


def owned(owner_id: UUID, *conditions: Any) -> engine.Filter:
    """The owner's points that fulfil the conditions."""
    return engine.Filter(must=[equal(OWNER, owner_id), *conditions])


def equal(key: str, value: UUID) -> engine.FieldCondition:
    """The field is this id."""
    return engine.FieldCondition(key=key, match=engine.MatchValue(str(value)))


def among(key: str, values: Sequence[object]) -> engine.FieldCondition:
    """The field is one of these ids or words."""
    texts = [str(each) for each in values]
    match = engine.MatchAny(texts) if len(texts) > 1 else engine.MatchValue(texts[0])
    return engine.FieldCondition(key=key, match=match)


def _within(scope: Scope) -> engine.Filter:
    """The owner's points of these kinds that lie in one of the parts; at least one has containers.

    A single condition on the containers where no part has a limit: the engine is fastest with that.
    """
    parts = [part for part in scope.parts if part.containers]
    kinds = [among(KIND, scope.kinds)]
    if scope.audience:
        kinds.append(among(AUDIENCE, scope.audience))
    if all(part.before_position is None for part in parts):
        containers = [each for part in parts for each in part.containers]
        return owned(scope.owner_id, among(CONTAINER, containers), *kinds)
    if len(parts) == 1:
        return owned(scope.owner_id, *kinds, *_part(parts[0]))
    alternatives: list[Any] = [engine.Filter(must=_part(part)) for part in parts]
    return owned(scope.owner_id, *kinds, engine.Filter(should=alternatives))


def _part(part: ScopePart) -> list[Any]:
    containers = among(CONTAINER, part.containers)
    if part.before_position is None:
        return [containers]
    before = engine.RangeFloat(lt=part.before_position)
    return [containers, engine.FieldCondition(key=POSITION, range=before)]


def _floats(numbers: bytes) -> list[float]:
    return array("f", numbers).tolist()
