"""The index on a Qdrant server or cluster.

The client is imported at the first connection, because that takes more than a second and memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
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
from backend.memory.index.server_nodes import ServerNodes, choose_replication_factor, load_mapping
from backend.settings import Settings

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient  # noqa: TID251  this is its adapter

T = TypeVar("T")

RECONNECT_SECONDS = 5.0
"""Pause between two attempts to prepare the collection, so that not every turn waits for one."""

_NO_RESPONSE = frozenset({408, 504, "DEADLINE_EXCEEDED", "UNREACHABLE"})
"""Reasons of errors after which it is unknown whether the server carried out a request."""

_POINTS_PER_WRITE = 100
_PAGE_POINTS = 500
_MAX_OWNERS = 1_000_000


async def open_server(settings: Settings, name: str, dimension: int | None) -> ServerIndex:
    """Return a collection of the server, which is connected on use, because it may start later."""
    return ServerIndex(settings, name, dimension)


async def list_server_collections(settings: Settings) -> set[str]:
    """Return the names of Talekeeper's collections there. Raises `IndexUnavailableError`."""
    prefix = settings.qdrant_collection_prefix
    nodes = ServerNodes(settings)
    try:
        found = (await nodes.run(lambda client: client.get_collections())).collections
    finally:
        await nodes.aclose()
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
        self._nodes = ServerNodes(settings, clock=clock)
        self._is_prepared = False
        self._failed: tuple[float, IndexUnavailableError] | None = None
        self._preparing = asyncio.Lock()

    async def prepare(self) -> None:
        """Create or check the collection at the first call.

        Raises `IndexUnavailableError`; immediately if the last attempt failed a moment ago.
        """
        async with self._preparing:
            if self._is_prepared:
                return
            if self._failed and self._clock() - self._failed[0] < RECONNECT_SECONDS:
                raise IndexUnavailableError(self._failed[1].detail)
            try:
                await self._nodes.run(self._prepare)
            except IndexUnavailableError as error:
                self._failed = self._clock(), error
                raise
            self._is_prepared = True

    async def _prepare(self, client: AsyncQdrantClient) -> None:
        mapping, name = load_mapping(), self._collection
        if not await client.collection_exists(name):
            replicas = await choose_replication_factor(self._settings, client)
            made = mapping.build_collection(self._settings, self._dimension, replicas)
            try:
                await client.create_collection(name, **made)
                self.is_new = True
            except Exception as error:
                if mapping.find_reason(error) in _NO_RESPONSE:
                    self.is_new = True  # the server may have created it
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
        # After the indexes, because it refuses filters without one.
        if not mapping.is_strict(info):
            await client.update_collection(name, strict_mode_config=mapping.build_strict_mode())

    async def upsert(self, points: Sequence[Point], *, instead_of: Sequence[UUID] = ()) -> None:
        check_dimensions(points, self._dimension)
        if instead_of:
            await self.delete_sources(points[0].payload.owner_id, instead_of)
        for batch in split_chunks(points, _POINTS_PER_WRITE):
            mapping = await self._load_mapping()
            made = [mapping.build_point(each) for each in batch]
            await self._run(partial(_upsert, self._collection, made))

    async def search(self, queries: Sequence[Query]) -> list[list[Hit]]:
        asked = [query for query in queries if not query.is_empty]
        if not asked:
            return [[] for _ in queries]
        build = (await self._load_mapping()).build_request
        requests = [build(each, is_quantized=self._is_quantized) for each in asked]
        answers = await self._run(
            lambda client: client.query_batch_points(self._collection, requests)
        )
        if len(answers) != len(asked):
            raise IndexUnavailableError("The Qdrant server returned too few results.")
        found = iter(answers)
        return [[] if query.is_empty else _decode_hits(next(found).points) for query in queries]

    async def dense_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Floats]:
        if self._dimension is None or not ids:
            return {}
        names = [str(each) for each in ids]
        records = await self._run(
            lambda client: client.retrieve(
                self._collection, names, with_payload=False, with_vectors=["dense"]
            )
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
        records = await self._run(
            lambda client: client.retrieve(
                self._collection, names, with_payload=False, with_vectors=["sparse"]
            )
        )
        return {
            UUID(str(each.id)): load_mapping().decode_sparse(each.vector["sparse"])
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
        mapping = await self._load_mapping()
        within = () if container_id is None else (mapping.match_value(CONTAINER, container_id),)
        owned = mapping.filter_owned(owner_id, *within)
        offset: Any = None
        while True:
            page = partial(_scroll, self._collection, owned, offset)
            records, offset = await self._run(page)
            if records:
                yield [(UUID(str(each.id)), Payload.decode(each.payload)) for each in records]
            if offset is None:
                return

    async def owners(self) -> set[UUID]:
        answer = await self._run(
            lambda client: client.facet(self._collection, OWNER, limit=_MAX_OWNERS, exact=True)
        )
        return {UUID(str(hit.value)) for hit in answer.hits if hit.count}

    async def count(self, owner_id: UUID | None = None) -> int:
        mapping = await self._load_mapping()
        owned = None if owner_id is None else mapping.filter_owned(owner_id)
        answer = await self._run(lambda client: client.count(self._collection, owned, exact=True))
        return answer.count

    async def ping(self) -> None:
        """See `VectorIndex`. The collection must exist, too."""
        await self._run(lambda client: client.get_collection(self._collection))

    async def aclose(self) -> None:
        await self._nodes.aclose()

    async def _delete(self, owner_id: UUID, field: str = "", ids: Sequence[UUID] = ()) -> None:
        mapping = await self._load_mapping()
        within = (mapping.match_any(field, ids),) if field else ()
        owned = mapping.filter_owned(owner_id, *within)
        await self._run(lambda client: client.delete(self._collection, owned, wait=True))

    async def _load_mapping(self) -> ModuleType:
        """Return the mapping after the client was imported."""
        await self.prepare()
        return load_mapping()

    async def _run(self, call: Callable[[AsyncQdrantClient], Awaitable[T]]) -> T:
        """Return the result of a call. Any failure becomes an `IndexUnavailableError`."""
        await self.prepare()
        return await self._nodes.run(call)


async def _upsert(collection: str, points: list[Any], client: AsyncQdrantClient) -> None:
    await client.upsert(collection, points, wait=True)


async def _scroll(
    collection: str, owned: Any, offset: Any, client: AsyncQdrantClient
) -> tuple[list[Any], Any]:
    return await client.scroll(
        collection, owned, limit=_PAGE_POINTS, offset=offset, with_payload=True
    )


def _decode_hits(points: Sequence[Any]) -> list[Hit]:
    return [Hit(UUID(str(each.id)), each.score, Payload.decode(each.payload)) for each in points]
