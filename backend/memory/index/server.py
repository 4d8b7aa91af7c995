"""A Qdrant server, or a cluster of them.

The client is loaded when a server is configured, and not before: it takes more than a second, and
memory.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
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

from backend.database.base import split_chunks
from backend.memory.index.protocol import (
    AUDIENCE,
    CONTAINER,
    DENSE,
    KIND,
    OWNER,
    POSITION,
    SOURCE,
    SPARSE,
    Floats,
    Hit,
    IndexUnavailableError,
    Payload,
    Point,
    Query,
    Scope,
    ScopePart,
    Sparse,
    check_dimensions,
)
from backend.settings import Settings

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient  # noqa: TID251  this is its adapter

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


NEWEST_NEEDED = (1, 19)
"""The first version that weighs terms by one user's points (the corpus of IDF)."""

AGAIN_AFTER = 5.0
"""Seconds between two attempts to connect: a turn must not wait for each."""

_BATCH = 100
_PAGE = 500
_MOST_OWNERS = 1_000_000
_PROBE_SECONDS = 2.0


async def open_server(settings: Settings, name: str, dimension: int | None) -> ServerIndex:
    """A collection on the server that `qdrant_url` names.

    It is connected to when it is first needed, and again while that fails: the server may come up
    later than this process.
    """
    return ServerIndex(settings, name, dimension)


async def server_version(settings: Settings) -> str:
    """The version of the server; nothing is made there. Raises `IndexUnavailableError`."""
    client = await asyncio.to_thread(_client, settings, grpc=False)
    try:
        return await _check_version(client, settings)
    finally:
        await client.close()


async def server_collections(settings: Settings) -> set[str]:
    """The names of Talekeeper's collections there. Raises `IndexUnavailableError`."""
    prefix = settings.qdrant_collection_prefix
    client = await asyncio.to_thread(_client, settings, grpc=False)
    try:
        with _mapping().reported(settings.qdrant_timeout_seconds):
            found = (await client.get_collections()).collections
    finally:
        await client.close()
    return {each.name.removeprefix(prefix) for each in found if each.name.startswith(prefix)}


class ServerIndex:
    """A `VectorIndex` on a server.

    Whatever is asked first makes the collection, or checks that the one that is there fits. It
    raises `IndexUnavailableError` when the server does not answer, refuses the key, is too old, or
    has a collection of that name that does not fit.

    Args:
        settings: Which server, and how collections are made there.
        name: Of the collection, behind `qdrant_collection_prefix`.
        dimension: Of the dense vectors; None for a collection without any.
        clock: Seconds, for the time between two attempts to connect.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        dimension: int | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.is_new = False
        self._settings = settings
        self._collection = settings.qdrant_collection_prefix + name
        self._dimension = dimension
        self._is_quantized = settings.qdrant_quantization != "off"
        self._clock = clock
        self._client: AsyncQdrantClient | None = None
        self._failed: tuple[float, IndexUnavailableError] | None = None
        self._connecting = asyncio.Lock()

    async def connected(self) -> AsyncQdrantClient:
        """The client, once the collection is there.

        Raises `IndexUnavailableError`, at once while the last attempt is only just over.
        """
        async with self._connecting:
            if self._client is None:
                if self._failed and self._clock() - self._failed[0] < AGAIN_AFTER:
                    raise IndexUnavailableError(self._failed[1].detail)
                try:
                    self._client = await self._connect()
                except IndexUnavailableError as error:
                    self._failed = self._clock(), error
                    raise
            return self._client

    async def _connect(self) -> AsyncQdrantClient:
        settings = self._settings
        client = await asyncio.to_thread(_client, settings, grpc=await _has_grpc(settings))
        try:
            await _check_version(client, settings)
            with _mapping().reported(settings.qdrant_timeout_seconds):
                await self._prepare(client)
        except BaseException:
            await client.close()
            raise
        return client

    async def _prepare(self, client: AsyncQdrantClient) -> None:
        """Make the collection with its indexes, or check it."""
        mapping, name = _mapping(), self._collection
        if not await client.collection_exists(name):
            made = mapping.collection(self._settings, self._dimension)
            try:
                await client.create_collection(name, **made)
                self.is_new = True
            except Exception:
                # Another process that starts as well may have been faster.
                if not await client.collection_exists(name):
                    raise
        info = await client.get_collection(name)
        if misfit := mapping.misfit(info, self._dimension):
            raise IndexUnavailableError(
                f"The collection {name} on the Qdrant server does not fit: {misfit}. Delete it "
                "there, or set another TALEKEEPER_QDRANT_COLLECTION_PREFIX."
            )
        for field, schema in mapping.payload_indexes().items():
            if field not in info.payload_schema:
                await client.create_payload_index(name, field, schema, wait=True)

    async def upsert(self, points: Sequence[Point], *, instead_of: Sequence[UUID] = ()) -> None:
        """Store points, in place of those with their ids and those of rows; see `VectorIndex`."""
        check_dimensions(points, self._dimension)
        if instead_of:
            await self.delete_sources(points[0].payload.owner_id, instead_of)
        for batch in split_chunks(points, _BATCH):
            async with self._asked() as (client, mapping):
                made = [mapping.point(each) for each in batch]
                await client.upsert(self._collection, made, wait=True)

    async def search(self, queries: Sequence[Query]) -> list[list[Hit]]:
        """Answer all queries, each with its hits, best first."""
        asked = [query for query in queries if not query.is_empty]
        if not asked:
            return [[] for _ in queries]
        async with self._asked() as (client, mapping):
            requests = [mapping.request(each, is_quantized=self._is_quantized) for each in asked]
            answers = await client.query_batch_points(self._collection, requests)
        if len(answers) != len(asked):
            raise IndexUnavailableError("The Qdrant server returned too few results.")
        found = iter(answers)
        return [[] if query.is_empty else _hits(next(found).points) for query in queries]

    async def dense_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Floats]:
        """The `dense` vectors of points, for those that have one."""
        if self._dimension is None or not ids:
            return {}
        names = [str(each) for each in ids]
        async with self._asked() as (client, _):
            records = await client.retrieve(
                self._collection, names, with_payload=False, with_vectors=["dense"]
            )
        return {
            UUID(str(each.id)): np.asarray(each.vector["dense"], dtype=np.float32)
            for each in records
            if isinstance(each.vector, dict) and "dense" in each.vector
        }

    async def term_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Sparse]:
        """The `sparse` vectors of points, for those that have one."""
        if not ids:
            return {}
        names = [str(each) for each in ids]
        async with self._asked() as (client, _):
            records = await client.retrieve(
                self._collection, names, with_payload=False, with_vectors=["sparse"]
            )
        return {
            UUID(str(each.id)): _mapping().terms(each.vector["sparse"])
            for each in records
            if isinstance(each.vector, dict) and "sparse" in each.vector
        }

    async def delete_sources(self, owner_id: UUID, source_ids: Sequence[UUID]) -> None:
        """Delete every point of these rows."""
        if source_ids:
            await self._delete(owner_id, SOURCE, source_ids)

    async def delete_container(self, owner_id: UUID, container_id: UUID) -> None:
        """Delete every point of a container."""
        await self._delete(owner_id, CONTAINER, [container_id])

    async def delete_owner(self, owner_id: UUID) -> None:
        """Delete every point of a user's."""
        await self._delete(owner_id)

    async def scan(
        self, owner_id: UUID, *, container_id: UUID | None = None
    ) -> AsyncIterator[Sequence[tuple[UUID, Payload]]]:
        """Every point of a user's, in pages, without vectors."""
        offset: Any = None
        while True:
            async with self._asked() as (client, mapping):
                within = () if container_id is None else (mapping.equal(CONTAINER, container_id),)
                records, offset = await client.scroll(
                    self._collection,
                    mapping.owned(owner_id, *within),
                    limit=_PAGE,
                    offset=offset,
                    with_payload=True,
                )
            if records:
                yield [(UUID(str(each.id)), Payload.decoded(each.payload)) for each in records]
            if offset is None:
                return

    async def owners(self) -> set[UUID]:
        """Everybody who has points."""
        async with self._asked() as (client, _):
            answer = await client.facet(self._collection, OWNER, limit=_MOST_OWNERS, exact=True)
        return {UUID(str(hit.value)) for hit in answer.hits if hit.count}

    async def count(self, owner_id: UUID | None = None) -> int:
        """How many points there are, of one user or of all."""
        async with self._asked() as (client, mapping):
            owned = None if owner_id is None else mapping.owned(owner_id)
            answer = await client.count(self._collection, owned, exact=True)
        return answer.count

    async def ping(self) -> None:
        """Raise `IndexUnavailableError` unless it answers, with our collection in it."""
        async with self._asked() as (client, _):
            await client.get_collection(self._collection)

    async def aclose(self) -> None:
        """Close the connections, where there are any."""
        if self._client is not None:
            await self._client.close()

    async def _delete(self, owner_id: UUID, field: str = "", ids: Sequence[UUID] = ()) -> None:
        async with self._asked() as (client, mapping):
            within = (mapping.among(field, ids),) if field else ()
            await client.delete(self._collection, mapping.owned(owner_id, *within), wait=True)

    @asynccontextmanager
    async def _asked(self) -> AsyncGenerator[tuple[AsyncQdrantClient, ModuleType]]:
        """The client, and its models. Raises `IndexUnavailableError` whatever goes wrong inside."""
        client, mapping = await self.connected(), _mapping()
        with mapping.reported(self._settings.qdrant_timeout_seconds):
            yield client, mapping


async def _check_version(client: AsyncQdrantClient, settings: Settings) -> str:
    """The server's version. Raises `IndexUnavailableError` for one that is too old."""
    with _mapping().reported(settings.qdrant_timeout_seconds):
        version = (await client.info()).version
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    if numbers < NEWEST_NEEDED:
        wanted = ".".join(map(str, NEWEST_NEEDED))
        raise IndexUnavailableError(
            f"The Qdrant server has version {'.'.join(map(str, numbers)) or 'unknown'}; "
            f"Talekeeper needs {wanted} or newer."
        )
    return version


def _client(settings: Settings, *, grpc: bool) -> AsyncQdrantClient:
    from qdrant_client import AsyncQdrantClient  # noqa: PLC0415, TID251  slow to load, its adapter

    key = settings.qdrant_api_key
    try:
        return AsyncQdrantClient(
            url=settings.qdrant_url,
            grpc_port=settings.qdrant_grpc_port,
            prefer_grpc=grpc,
            timeout=settings.qdrant_timeout_seconds,
            # As a header: the client's own parameter warns where there is no TLS, on loopback too.
            headers=None if key is None else {"api-key": key.get_secret_value()},
            check_compatibility=False,
        )
    except ValueError as error:
        raise IndexUnavailableError("TALEKEEPER_QDRANT_URL is not an address.") from error


async def _has_grpc(settings: Settings) -> bool:
    if settings.qdrant_protocol != "grpc":
        return False
    host = urlsplit(settings.qdrant_url).hostname
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host, settings.qdrant_grpc_port)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True
    return False


def _mapping() -> ModuleType:
    return importlib.import_module("backend.memory.index.server")


def _hits(points: Sequence[Any]) -> list[Hit]:
    return [Hit(UUID(str(each.id)), each.score, Payload.decoded(each.payload)) for each in points]
