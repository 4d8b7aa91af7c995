"""A Qdrant server, or a cluster of them.

The client is loaded when a server is configured, and not before: it takes more than a second, and
memory.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

import numpy as np

from backend.database.base import chunks
from backend.memory.index.protocol import (
    CONTAINER,
    OWNER,
    SOURCE,
    Floats,
    Hit,
    IndexUnavailableError,
    Payload,
    Point,
    Query,
    Sparse,
    check_dimensions,
)
from backend.settings import Settings

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient  # noqa: TID251  this is its adapter

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
        for batch in chunks(points, _BATCH):
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
    return importlib.import_module("backend.memory.index.server_mapping")


def _hits(points: Sequence[Any]) -> list[Hit]:
    return [Hit(UUID(str(each.id)), each.score, Payload.decoded(each.payload)) for each in points]
