"""Conversion between the index protocol and the models and errors of the Qdrant client.

Importing the client takes more than a second, so this module is imported at the first connection.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import grpc  # type: ignore[import-untyped]  # it has no types
import httpx
import numpy as np
from qdrant_client import models  # noqa: TID251  half of the server's adapter
from qdrant_client.common.client_exceptions import (  # noqa: TID251  likewise
    ResourceExhaustedResponse,
)
from qdrant_client.http.exceptions import (  # noqa: TID251  likewise
    ResponseHandlingException,
    UnexpectedResponse,
)

from backend.memory.index.protocol import (
    AUDIENCE,
    CONTAINER,
    DENSE,
    KIND,
    OWNER,
    POSITION,
    SOURCE,
    SPARSE,
    IndexUnavailableError,
    Point,
    Query,
    Scope,
    ScopePart,
    Sparse,
)
from backend.settings import Settings

_OVERSAMPLING = 2.0
"""Factor for the hits that are found by quantized copies and then scored in full."""


def build_collection(
    settings: Settings, dimension: int | None, replication_factor: int
) -> dict[str, Any]:
    """Return the options of a new collection. Each user has a graph; there is no common one."""
    on_disk = settings.qdrant_storage == "disk"
    dense = {
        name: models.VectorParams(
            size=dimension,
            distance=models.Distance.DOT,
            on_disk=on_disk,
            quantization_config=_quantization(settings),
        )
        for name in DENSE
        if dimension is not None
    }
    return {
        "vectors_config": dense,
        "sparse_vectors_config": {
            name: models.SparseVectorParams(
                modifier=models.Modifier.IDF, index=models.SparseIndexParams(on_disk=on_disk)
            )
            for name in SPARSE
        },
        "hnsw_config": models.HnswConfigDiff(
            m=0, payload_m=settings.qdrant_hnsw_m, on_disk=on_disk
        ),
        "shard_number": settings.qdrant_shard_number,
        "replication_factor": replication_factor,
        "on_disk_payload": True,
    }


def payload_indexes() -> dict[str, Any]:
    """Return the indexes of all filtered fields. The owner's stores a user's points together."""
    ids = models.UuidIndexType.UUID
    return {
        OWNER: models.UuidIndexParams(type=ids, is_tenant=True),
        CONTAINER: models.UuidIndexParams(type=ids, enable_hnsw=False),
        SOURCE: models.UuidIndexParams(type=ids, enable_hnsw=False),
        KIND: models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, enable_hnsw=False),
        AUDIENCE: models.KeywordIndexParams(
            type=models.KeywordIndexType.KEYWORD, enable_hnsw=False
        ),
        POSITION: models.IntegerIndexParams(
            type=models.IntegerIndexType.INTEGER, lookup=False, range=True, enable_hnsw=False
        ),
    }


def build_strict_mode() -> models.StrictModeConfig:
    """Return the rule that filters without an index are refused, because they read all points."""
    return models.StrictModeConfig(
        enabled=True, unindexed_filtering_retrieve=False, unindexed_filtering_update=False
    )


def is_strict(info: models.CollectionInfo) -> bool:
    found, wanted = info.config.strict_mode_config, build_strict_mode()
    return found is not None and all(
        getattr(found, name) == value for name, value in wanted if value is not None
    )


def build_replication(factor: int) -> models.CollectionParamsDiff:
    return models.CollectionParamsDiff(replication_factor=factor)


def build_transfer(
    *, is_move: bool, shard: int, source: int, target: int
) -> models.MoveShardOperation | models.ReplicateShardOperation:
    places: dict[str, Any] = {
        "shard_id": shard,
        "from_peer_id": source,
        "to_peer_id": target,
    }
    if is_move:
        return models.MoveShardOperation(move_shard=models.MoveShard(**places))
    return models.ReplicateShardOperation(replicate_shard=models.ReplicateShard(**places))


def find_mismatch(info: models.CollectionInfo, dimension: int | None) -> str | None:
    """Describe how an existing collection differs from the required one; None if it matches."""
    params = info.config.params
    vectors = params.vectors if isinstance(params.vectors, dict) else {}
    found = {name: (vector.size, vector.distance) for name, vector in vectors.items()}
    wanted = {} if dimension is None else dict.fromkeys(DENSE, (dimension, models.Distance.DOT))
    if found != wanted:
        return f"its dense vectors are {_describe(found)}, and must be {_describe(wanted)}"
    terms = params.sparse_vectors or {}
    if set(terms) != set(SPARSE):
        return f"its sparse vectors are {sorted(terms)}, and must be {sorted(SPARSE)}"
    if any(each.modifier is not models.Modifier.IDF for each in terms.values()):
        return "its sparse vectors lack the modifier `idf`"
    return None


def build_point(given: Point) -> models.PointStruct:
    vectors: dict[str, Any] = {name: vector.tolist() for name, vector in given.dense.items()}
    vectors |= {name: build_sparse(vector) for name, vector in given.sparse.items()}
    return models.PointStruct(id=str(given.id), vector=vectors, payload=given.payload.encode())


def build_request(query: Query, *, is_quantized: bool) -> models.QueryRequest:
    """Convert a query. The filter limits it to the owner, whose points are the corpus."""
    near, params = query.near, None
    if isinstance(near, Sparse):
        vector: Any = build_sparse(near)
        corpus = models.IdfCorpusParams(corpus=filter_owned(query.scope.owner_id))
        params = models.SearchParams(idf=corpus)
    else:
        vector = near.tolist()
        if is_quantized:
            params = models.SearchParams(
                quantization=models.QuantizationSearchParams(
                    rescore=True, oversampling=_OVERSAMPLING
                )
            )
    return models.QueryRequest(
        query=models.NearestQuery(nearest=vector),
        using=query.vector,
        filter=_build_filter(query.scope),
        params=params,
        limit=query.limit,
        with_payload=True,
    )


def build_sparse(vector: Sparse) -> models.SparseVector:
    return models.SparseVector(indices=vector.ids.tolist(), values=vector.weights.tolist())


def decode_sparse(vector: models.SparseVector) -> Sparse:
    return Sparse(
        np.array(vector.indices, dtype=np.uint32), np.array(vector.values, dtype=np.float32)
    )


def filter_owned(owner_id: UUID, *conditions: Any) -> models.Filter:
    return models.Filter(must=[match_value(OWNER, owner_id), *conditions])


def match_value(key: str, value: UUID) -> models.FieldCondition:
    return models.FieldCondition(key=key, match=models.MatchValue(value=str(value)))


def match_any(key: str, values: Sequence[object]) -> models.FieldCondition:
    return models.FieldCondition(
        key=key, match=models.MatchAny(any=[str(value) for value in values])
    )


def _build_filter(scope: Scope) -> models.Filter:
    """Return the filter of a scope. At least one of its parts must have containers."""
    parts = [_build_condition(part) for part in scope.parts if part.containers]
    conditions = [match_any(KIND, scope.kinds), models.Filter(should=parts)]
    if scope.audience:
        conditions.append(match_any(AUDIENCE, scope.audience))
    return filter_owned(scope.owner_id, *conditions)


def _build_condition(part: ScopePart) -> Any:
    conditions: list[Any] = [match_any(CONTAINER, part.containers)]
    if part.has_range:
        within = models.Range(gte=part.from_position, lt=part.before_position)
        conditions.append(models.FieldCondition(key=POSITION, range=within))
    if part.audience:
        conditions.append(match_any(AUDIENCE, part.audience))
    return conditions[0] if len(conditions) == 1 else models.Filter(must=conditions)


def _quantization(settings: Settings) -> Any:
    if settings.qdrant_quantization == "scalar":
        return models.ScalarQuantization(
            scalar=models.ScalarQuantizationConfig(
                type=models.ScalarType.INT8, quantile=0.99, always_ram=True
            )
        )
    if settings.qdrant_quantization == "binary":
        return models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True))
    return None


def _describe(vectors: Mapping[Any, tuple[int, models.Distance]]) -> str:
    parts = (f"{name} ({size}, {kind.value})" for name, (size, kind) in sorted(vectors.items()))
    return ", ".join(parts) or "none"


@contextmanager
def translate_errors(timeout: int) -> Generator[None]:
    """Convert any error to `IndexUnavailableError`, without its text, which may quote the query."""
    try:
        yield
    except IndexUnavailableError:
        raise
    except Exception as error:
        raise IndexUnavailableError(_detail(error, timeout)) from error


def _detail(error: Exception, timeout: int) -> str:
    match find_reason(error):
        case 401 | 403 | "UNAUTHENTICATED" | "PERMISSION_DENIED":
            detail = "The Qdrant server refuses the key. Check TALEKEEPER_QDRANT_API_KEY."
        case 404 | "NOT_FOUND":
            detail = (
                "The collection is missing on the Qdrant server, or the address is that of another "
                "server. Restart Talekeeper to create the collection and index everything again."
            )
        case 408 | 504 | "DEADLINE_EXCEEDED":
            detail = f"The Qdrant server did not respond within {timeout} s."
        case 429 | "RESOURCE_EXHAUSTED":
            detail = "The Qdrant server is overloaded. Try again later."
        case "UNREACHABLE":
            detail = "The Qdrant server cannot be reached at TALEKEEPER_QDRANT_URL. Is it running?"
        case None:
            detail = "The server at TALEKEEPER_QDRANT_URL does not respond like a Qdrant server."
        case reason:
            detail = f"The Qdrant server failed ({reason}). Its log contains the reason."
    return detail


def find_reason(error: BaseException | None) -> int | str | None:
    """Return an HTTP status, the name of a gRPC status or UNREACHABLE; None for other errors."""
    if isinstance(error, UnexpectedResponse):
        return error.status_code
    if isinstance(error, ResourceExhaustedResponse):
        return 429
    if isinstance(error, ResponseHandlingException):
        source = error.source
        if isinstance(source, httpx.TimeoutException) and not isinstance(
            source, httpx.ConnectTimeout
        ):
            return "DEADLINE_EXCEEDED"
        return "UNREACHABLE" if isinstance(source, httpx.TransportError) else None
    if isinstance(error, grpc.aio.AioRpcError):
        name: str = error.code().name
        return "UNREACHABLE" if name == "UNAVAILABLE" else name
    return None
