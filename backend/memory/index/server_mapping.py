"""What a Qdrant server is told, out of what an index is asked, and what its failures mean.

Imported only where there is a server: the client's models take more than a second to load.
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
"""With quantisation: how many times as many are taken out of the small copies and scored anew."""


def collection(settings: Settings, dimension: int | None) -> dict[str, Any]:
    """What a collection is made with. The graph is one a user, never one over all of them."""
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
        "replication_factor": settings.qdrant_replication_factor,
        "on_disk_payload": True,
    }


def payload_indexes() -> dict[str, Any]:
    """For every field that is filtered on; the owner's keeps a user's points together."""
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


def misfit(info: models.CollectionInfo, dimension: int | None) -> str | None:
    """In what a collection that is there is not the one that is needed."""
    params = info.config.params
    vectors = params.vectors if isinstance(params.vectors, dict) else {}
    found = {name: (vector.size, vector.distance) for name, vector in vectors.items()}
    wanted = {} if dimension is None else dict.fromkeys(DENSE, (dimension, models.Distance.DOT))
    if found != wanted:
        return f"its dense vectors are {_listed(found)}, and must be {_listed(wanted)}"
    terms = params.sparse_vectors or {}
    if set(terms) != set(SPARSE):
        return f"its sparse vectors are {sorted(terms)}, and must be {sorted(SPARSE)}"
    if any(each.modifier is not models.Modifier.IDF for each in terms.values()):
        return "its sparse vectors lack the modifier `idf`"
    return None


def point(given: Point) -> models.PointStruct:
    """A point with its vectors and its payload."""
    vectors: dict[str, Any] = {name: vector.tolist() for name, vector in given.dense.items()}
    vectors |= {name: sparse(vector) for name, vector in given.sparse.items()}
    return models.PointStruct(id=str(given.id), vector=vectors, payload=given.payload.encoded())


def request(query: Query, *, is_quantized: bool) -> models.QueryRequest:
    """A query, with the owner in its filter, and the owner's points as its corpus."""
    near, params = query.near, None
    if isinstance(near, Sparse):
        vector: Any = sparse(near)
        corpus = models.IdfCorpusParams(corpus=owned(query.scope.owner_id))
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
        filter=_within(query.scope),
        params=params,
        limit=query.limit,
        with_payload=True,
    )


def sparse(vector: Sparse) -> models.SparseVector:
    """Terms and their weights."""
    return models.SparseVector(indices=vector.ids.tolist(), values=vector.weights.tolist())


def terms(vector: models.SparseVector) -> Sparse:
    """The terms and weights of a sparse vector that the server has."""
    return Sparse(
        np.array(vector.indices, dtype=np.uint32), np.array(vector.values, dtype=np.float32)
    )


def owned(owner_id: UUID, *conditions: Any) -> models.Filter:
    """The owner's points that fulfil the conditions."""
    return models.Filter(must=[equal(OWNER, owner_id), *conditions])


def equal(key: str, value: UUID) -> models.FieldCondition:
    """The field is this id."""
    return models.FieldCondition(key=key, match=models.MatchValue(value=str(value)))


def among(key: str, values: Sequence[object]) -> models.FieldCondition:
    """The field is one of these ids or words."""
    return models.FieldCondition(
        key=key, match=models.MatchAny(any=[str(value) for value in values])
    )


def _within(scope: Scope) -> models.Filter:
    """The owner's points of these kinds that lie in one of the parts; one has containers."""
    parts = [_part(part) for part in scope.parts if part.containers]
    conditions = [among(KIND, scope.kinds), models.Filter(should=parts)]
    if scope.audience:
        conditions.append(among(AUDIENCE, scope.audience))
    return owned(scope.owner_id, *conditions)


def _part(part: ScopePart) -> Any:
    containers = among(CONTAINER, part.containers)
    if part.before_position is None:
        return containers
    before = models.Range(lt=part.before_position)
    return models.Filter(must=[containers, models.FieldCondition(key=POSITION, range=before)])


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


def _listed(vectors: Mapping[Any, tuple[int, models.Distance]]) -> str:
    parts = (f"{name} ({size}, {kind.value})" for name, (size, kind) in sorted(vectors.items()))
    return ", ".join(parts) or "none"


@contextmanager
def reported(timeout: int) -> Generator[None]:
    """Raise `IndexUnavailableError` for whatever is raised inside, but for a cancellation.

    The server's own texts stay out: they may quote what was asked.
    """
    try:
        yield
    except IndexUnavailableError:
        raise
    except Exception as error:
        raise IndexUnavailableError(_detail(error, timeout)) from error


def _detail(error: Exception, timeout: int) -> str:
    match _reason(error):
        case 401 | 403 | "UNAUTHENTICATED" | "PERMISSION_DENIED":
            detail = "The Qdrant server refuses the key: look at TALEKEEPER_QDRANT_API_KEY."
        case 404 | "NOT_FOUND":
            detail = (
                "The collection is gone from the Qdrant server, or its address is another one's. "
                "Restart: a collection is made then, and filled again."
            )
        case 408 | 504 | "DEADLINE_EXCEEDED":
            detail = f"The Qdrant server did not answer within {timeout} s."
        case 429 | "RESOURCE_EXHAUSTED":
            detail = "The Qdrant server has too much to do. Try again later."
        case "UNREACHABLE":
            detail = "The Qdrant server cannot be reached at TALEKEEPER_QDRANT_URL. Is it running?"
        case None:
            detail = "What is at TALEKEEPER_QDRANT_URL does not answer as a Qdrant server does."
        case reason:
            detail = f"The Qdrant server failed ({reason}). Its own log says why."
    return detail


def _reason(error: Exception) -> int | str | None:
    """An HTTP status, a gRPC status by name, or UNREACHABLE; None for an answer without sense."""
    if isinstance(error, UnexpectedResponse):
        return error.status_code
    if isinstance(error, ResourceExhaustedResponse):
        return 429
    if isinstance(error, ResponseHandlingException):
        source = error.source
        if isinstance(source, httpx.TimeoutException):
            return "DEADLINE_EXCEEDED"
        return "UNREACHABLE" if isinstance(source, httpx.TransportError) else None
    if isinstance(error, grpc.aio.AioRpcError):
        name: str = error.code().name
        return "UNREACHABLE" if name == "UNAVAILABLE" else name
    return None
