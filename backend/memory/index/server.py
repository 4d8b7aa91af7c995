"""The index on a Qdrant server or cluster.

The client is imported at the first connection, because that takes more than a second and memory.
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

from backend.database.base import split_chunks
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

MIN_VERSION = (1, 19)
"""The first version that can weigh terms by the points of one user (the corpus of IDF)."""

RECONNECT_SECONDS = 5.0
"""Pause between two connection attempts, so that not every turn waits for one."""

_POINTS_PER_WRITE = 100
_PAGE_POINTS = 500
_MAX_OWNERS = 1_000_000
_PROBE_SECONDS = 2.0


async def open_server(settings: Settings, name: str, dimension: int | None) -> ServerIndex:
    """Return a collection of the server, which is connected on use, because it may start later."""
    return ServerIndex(settings, name, dimension)


async def fetch_server_version(settings: Settings) -> str:
    """Return the version of the server. Raises `IndexUnavailableError`."""
    client = await asyncio.to_thread(_build_client, settings, grpc=False)
    try:
        return await _check_version(client, settings)
    finally:
        await client.close()


async def list_server_collections(settings: Settings) -> set[str]:
    """Return the names of Talekeeper's collections there. Raises `IndexUnavailableError`."""
    prefix = settings.qdrant_collection_prefix
    client = await asyncio.to_thread(_build_client, settings, grpc=False)
    try:
        with _load_mapping().translate_errors(settings.qdrant_timeout_seconds):
            found = (await client.get_collections()).collections
    finally:
        await client.close()
    return {each.name.removeprefix(prefix) for each in found if each.name.startswith(prefix)}


class ServerIndex:
    """A `VectorIndex` on a server.

    The first call creates the collection or checks the existing one. It raises
    `IndexUnavailableError` if the server does not respond, refuses the key, is too old, or has a
    different collection of that name. `clock` returns seconds.
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

    async def get_client(self) -> AsyncQdrantClient:
        """Return the client, after the collection was created or checked.

        Raises `IndexUnavailableError`; immediately if the last attempt failed a moment ago.
        """
        async with self._connecting:
            if self._client is None:
                if self._failed and self._clock() - self._failed[0] < RECONNECT_SECONDS:
                    raise IndexUnavailableError(self._failed[1].detail)
                try:
                    self._client = await self._connect()
                except IndexUnavailableError as error:
                    self._failed = self._clock(), error
                    raise
            return self._client

    async def _connect(self) -> AsyncQdrantClient:
        settings = self._settings
        client = await asyncio.to_thread(_build_client, settings, grpc=await _has_grpc(settings))
        try:
            await _check_version(client, settings)
            with _load_mapping().translate_errors(settings.qdrant_timeout_seconds):
                await self._prepare(client)
        except BaseException:
            await client.close()
            raise
        return client

    async def _prepare(self, client: AsyncQdrantClient) -> None:
        mapping, name = _load_mapping(), self._collection
        if not await client.collection_exists(name):
            made = mapping.build_collection(self._settings, self._dimension)
            try:
                await client.create_collection(name, **made)
                self.is_new = True
            except Exception:
                # Another process may have created it at the same time.
                if not await client.collection_exists(name):
                    raise
        info = await client.get_collection(name)
        if mismatch := mapping.find_mismatch(info, self._dimension):
            raise IndexUnavailableError(
                f"The collection {name} on the Qdrant server does not match: {mismatch}. Delete it "
                "there, or set another TALEKEEPER_QDRANT_COLLECTION_PREFIX."
            )
        for field, schema in mapping.payload_indexes().items():
            if field not in info.payload_schema:
                await client.create_payload_index(name, field, schema, wait=True)

    async def upsert(self, points: Sequence[Point], *, instead_of: Sequence[UUID] = ()) -> None:
        check_dimensions(points, self._dimension)
        if instead_of:
            await self.delete_sources(points[0].payload.owner_id, instead_of)
        for batch in split_chunks(points, _POINTS_PER_WRITE):
            async with self._open_client() as (client, mapping):
                made = [mapping.build_point(each) for each in batch]
                await client.upsert(self._collection, made, wait=True)

    async def search(self, queries: Sequence[Query]) -> list[list[Hit]]:
        asked = [query for query in queries if not query.is_empty]
        if not asked:
            return [[] for _ in queries]
        async with self._open_client() as (client, mapping):
            requests = [
                mapping.build_request(each, is_quantized=self._is_quantized) for each in asked
            ]
            answers = await client.query_batch_points(self._collection, requests)
        if len(answers) != len(asked):
            raise IndexUnavailableError("The Qdrant server returned too few results.")
        found = iter(answers)
        return [[] if query.is_empty else _decode_hits(next(found).points) for query in queries]

    async def dense_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Floats]:
        if self._dimension is None or not ids:
            return {}
        names = [str(each) for each in ids]
        async with self._open_client() as (client, _):
            records = await client.retrieve(
                self._collection, names, with_payload=False, with_vectors=["dense"]
            )
        return {
            UUID(str(each.id)): np.asarray(each.vector["dense"], dtype=np.float32)
            for each in records
            if isinstance(each.vector, dict) and "dense" in each.vector
        }

    async def term_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Sparse]:
        if not ids:
            return {}
        names = [str(each) for each in ids]
        async with self._open_client() as (client, _):
            records = await client.retrieve(
                self._collection, names, with_payload=False, with_vectors=["sparse"]
            )
        return {
            UUID(str(each.id)): _load_mapping().decode_sparse(each.vector["sparse"])
            for each in records
            if isinstance(each.vector, dict) and "sparse" in each.vector
        }

    async def delete_sources(self, owner_id: UUID, source_ids: Sequence[UUID]) -> None:
        if source_ids:
            await self._delete(owner_id, SOURCE, source_ids)

    async def delete_container(self, owner_id: UUID, container_id: UUID) -> None:
        await self._delete(owner_id, CONTAINER, [container_id])

    async def delete_owner(self, owner_id: UUID) -> None:
        await self._delete(owner_id)

    async def scan(
        self, owner_id: UUID, *, container_id: UUID | None = None
    ) -> AsyncIterator[Sequence[tuple[UUID, Payload]]]:
        offset: Any = None
        while True:
            async with self._open_client() as (client, mapping):
                within = (
                    () if container_id is None else (mapping.match_value(CONTAINER, container_id),)
                )
                records, offset = await client.scroll(
                    self._collection,
                    mapping.filter_owned(owner_id, *within),
                    limit=_PAGE_POINTS,
                    offset=offset,
                    with_payload=True,
                )
            if records:
                yield [(UUID(str(each.id)), Payload.decode(each.payload)) for each in records]
            if offset is None:
                return

    async def owners(self) -> set[UUID]:
        async with self._open_client() as (client, _):
            answer = await client.facet(self._collection, OWNER, limit=_MAX_OWNERS, exact=True)
        return {UUID(str(hit.value)) for hit in answer.hits if hit.count}

    async def count(self, owner_id: UUID | None = None) -> int:
        async with self._open_client() as (client, mapping):
            owned = None if owner_id is None else mapping.filter_owned(owner_id)
            answer = await client.count(self._collection, owned, exact=True)
        return answer.count

    async def ping(self) -> None:
        """See `VectorIndex`. The collection must exist, too."""
        async with self._open_client() as (client, _):
            await client.get_collection(self._collection)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _delete(self, owner_id: UUID, field: str = "", ids: Sequence[UUID] = ()) -> None:
        async with self._open_client() as (client, mapping):
            within = (mapping.match_any(field, ids),) if field else ()
            await client.delete(
                self._collection, mapping.filter_owned(owner_id, *within), wait=True
            )

    @asynccontextmanager
    async def _open_client(self) -> AsyncGenerator[tuple[AsyncQdrantClient, ModuleType]]:
        """Yield the client and the mapping. Any failure becomes an `IndexUnavailableError`."""
        client, mapping = await self.get_client(), _load_mapping()
        with mapping.translate_errors(self._settings.qdrant_timeout_seconds):
            yield client, mapping


async def _check_version(client: AsyncQdrantClient, settings: Settings) -> str:
    """Return the server's version. Raises `IndexUnavailableError` if it is too old."""
    with _load_mapping().translate_errors(settings.qdrant_timeout_seconds):
        version = (await client.info()).version
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    if numbers < MIN_VERSION:
        wanted = ".".join(map(str, MIN_VERSION))
        raise IndexUnavailableError(
            f"The Qdrant server has version {'.'.join(map(str, numbers)) or 'unknown'}; "
            f"Talekeeper needs {wanted} or newer."
        )
    return version


def _build_client(settings: Settings, *, grpc: bool) -> AsyncQdrantClient:
    from qdrant_client import AsyncQdrantClient  # noqa: PLC0415, TID251  slow to load, its adapter

    key = settings.qdrant_api_key
    try:
        return AsyncQdrantClient(
            url=settings.qdrant_url,
            grpc_port=settings.qdrant_grpc_port,
            prefer_grpc=grpc,
            timeout=settings.qdrant_timeout_seconds,
            # A header, because the client's parameter warns without TLS, even on loopback.
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


def _load_mapping() -> ModuleType:
    return importlib.import_module("backend.memory.index.server_mapping")


def _decode_hits(points: Sequence[Any]) -> list[Hit]:
    return [Hit(UUID(str(each.id)), each.score, Payload.decode(each.payload)) for each in points]
