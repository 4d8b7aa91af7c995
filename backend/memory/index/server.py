"""A Qdrant server, or a cluster of them.

The client is loaded when a server is configured, and not before: it takes more than a second, and
memory.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import numpy as np

from backend.memory.index import payload as fields
from backend.memory.index.protocol import (
    Floats,
    Hit,
    IndexUnavailableError,
    Payload,
    Point,
    Query,
)
from backend.memory.index.scopes import check_dimensions, is_empty
from backend.memory.index.server_errors import reported
from backend.settings import Settings

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient  # noqa: TID251  this is its adapter

T = TypeVar("T")

NEWEST_NEEDED = (1, 19)
"""The first version that weighs terms by one user's points (the corpus of IDF)."""

_BATCH = 100
_PAGE = 500
_MOST_OWNERS = 1_000_000
_PROBE_SECONDS = 2.0


async def open_server(settings: Settings, name: str, dimension: int | None) -> ServerIndex:
    """Connect, and make the collection, or check that the one that is there fits.

    Args:
        settings: `qdrant_url` names the server.
        name: Of the collection, behind `qdrant_collection_prefix`.
        dimension: Of the dense vectors; None for a collection without any.

    Raises:
        IndexUnavailableError: When the server does not answer, refuses the key, is too old, or has
            a collection of that name that does not fit.
    """
    client = await asyncio.to_thread(_client, settings, grpc=await _has_grpc(settings))
    index = ServerIndex(client, settings, settings.qdrant_collection_prefix + name, dimension)
    try:
        await index.prepare()
    except BaseException:
        await index.aclose()
        raise
    return index


async def look_at_server(settings: Settings) -> str:
    """The version of the server; nothing is made there.

    Raises `IndexUnavailableError` as `open_server` does.
    """
    client = await asyncio.to_thread(_client, settings, grpc=False)
    index = ServerIndex(client, settings, "", None)
    try:
        return await index.check_version()
    finally:
        await index.aclose()


class ServerIndex:
    """A `VectorIndex` on a server. Made by `open_server`."""

    def __init__(
        self, client: AsyncQdrantClient, settings: Settings, name: str, dimension: int | None
    ) -> None:
        self.name = name
        self.is_new = False
        self._client = client
        self._settings = settings
        self._dimension = dimension
        self._is_quantized = settings.qdrant_quantization != "off"
        self._wire = _wire()

    async def prepare(self) -> None:
        """Make the collection with its indexes, or check it. Raises `IndexUnavailableError`."""
        await self.check_version()
        if not await self._asked(self._client.collection_exists(self.name)):
            await self._create()
        info = await self._asked(self._client.get_collection(self.name))
        if misfit := self._wire.misfit(info, self._dimension):
            raise IndexUnavailableError(
                f"The collection {self.name} on the Qdrant server does not fit: {misfit}. Delete "
                "it there, or set another TALEKEEPER_QDRANT_COLLECTION_PREFIX."
            )
        for field, schema in self._wire.payload_indexes().items():
            if field not in info.payload_schema:
                await self._asked(
                    self._client.create_payload_index(self.name, field, schema, wait=True)
                )

    async def upsert(self, points: Sequence[Point]) -> None:
        """Store points, in place of those with their ids. Durable when it returns."""
        check_dimensions(points, self._dimension)
        for start in range(0, len(points), _BATCH):
            batch = [self._wire.point(each) for each in points[start : start + _BATCH]]
            await self._asked(self._client.upsert(self.name, batch, wait=True))

    async def search(self, queries: Sequence[Query]) -> list[list[Hit]]:
        """Answer all queries at once, each with its hits, best first."""
        asked = [query for query in queries if not is_empty(query)]
        if not asked:
            return [[] for _ in queries]
        requests = [self._wire.request(query, is_quantized=self._is_quantized) for query in asked]
        answers = await self._asked(self._client.query_batch_points(self.name, requests))
        if len(answers) != len(asked):
            raise IndexUnavailableError("The Qdrant server left out answers.")
        found = iter(answers)
        return [[] if is_empty(query) else _hits(next(found).points) for query in queries]

    async def dense_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Floats]:
        """The `dense` vectors of points, for those that have one."""
        if self._dimension is None or not ids:
            return {}
        names = [str(each) for each in ids]
        records = await self._asked(
            self._client.retrieve(self.name, names, with_payload=False, with_vectors=["dense"])
        )
        return {
            UUID(str(each.id)): np.asarray(each.vector["dense"], dtype=np.float32)
            for each in records
            if isinstance(each.vector, dict) and "dense" in each.vector
        }

    async def delete_sources(self, owner_id: UUID, source_ids: Sequence[UUID]) -> None:
        """Delete every point of these rows."""
        if source_ids:
            await self._delete(owner_id, self._wire.among(fields.SOURCE, source_ids))

    async def delete_container(self, owner_id: UUID, container_id: UUID) -> None:
        """Delete every point of a container."""
        await self._delete(owner_id, self._wire.equal(fields.CONTAINER, container_id))

    async def delete_owner(self, owner_id: UUID) -> None:
        """Delete every point of a user's."""
        await self._delete(owner_id)

    async def scan(
        self, owner_id: UUID, *, container_id: UUID | None = None
    ) -> AsyncIterator[Sequence[tuple[UUID, Payload]]]:
        """Every point of a user's, in pages, without vectors."""
        within = () if container_id is None else (self._wire.equal(fields.CONTAINER, container_id),)
        owned = self._wire.owned(owner_id, *within)
        offset: Any = None
        while True:
            records, offset = await self._asked(
                self._client.scroll(self.name, owned, limit=_PAGE, offset=offset, with_payload=True)
            )
            if records:
                yield [(UUID(str(each.id)), fields.decode(each.payload)) for each in records]
            if offset is None:
                return

    async def owners(self) -> set[UUID]:
        """Everybody who has points."""
        answer = await self._asked(
            self._client.facet(self.name, fields.OWNER, limit=_MOST_OWNERS, exact=True)
        )
        return {UUID(str(hit.value)) for hit in answer.hits if hit.count}

    async def count(self, owner_id: UUID | None = None) -> int:
        """How many points there are, of one user or of all."""
        owned = None if owner_id is None else self._wire.owned(owner_id)
        answer = await self._asked(self._client.count(self.name, owned, exact=True))
        return answer.count

    async def ping(self) -> None:
        """Raise `IndexUnavailableError` unless it answers, with our collection in it."""
        await self._asked(self._client.get_collection(self.name))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _delete(self, owner_id: UUID, *conditions: Any) -> None:
        owned = self._wire.owned(owner_id, *conditions)
        await self._asked(self._client.delete(self.name, owned, wait=True))

    async def _create(self) -> None:
        made = self._wire.collection(self._settings, self._dimension)
        try:
            await self._asked(self._client.create_collection(self.name, **made))
        except IndexUnavailableError:
            # Another process that starts as well may have been faster.
            if not await self._asked(self._client.collection_exists(self.name)):
                raise
        else:
            self.is_new = True

    async def check_version(self) -> str:
        """The server's version. Raises `IndexUnavailableError` for one that is too old."""
        version = (await self._asked(self._client.info())).version
        numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
        if numbers < NEWEST_NEEDED:
            wanted = ".".join(map(str, NEWEST_NEEDED))
            raise IndexUnavailableError(
                f"The Qdrant server has version {'.'.join(map(str, numbers)) or 'unknown'}; "
                f"Talekeeper needs {wanted} or newer."
            )
        return version

    async def _asked(self, answer: Awaitable[T]) -> T:
        """Wait for an answer. Raises `IndexUnavailableError` whatever comes in its place."""
        with reported(self._settings.qdrant_timeout_seconds):
            return await answer


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
        raise IndexUnavailableError("TALEKEEPER_QDRANT_URL is no address.") from error


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


def _wire() -> ModuleType:
    return importlib.import_module("backend.memory.index.server_mapping")


def _hits(points: Sequence[Any]) -> list[Hit]:
    return [Hit(UUID(str(each.id)), each.score, fields.decode(each.payload)) for each in points]
