"""Qdrant Edge: the engine inside this process, one folder a collection.

The engine is synchronous: each call is a thread's. It lets go of Python's lock while it searches,
but takes a core, so what counts is that each call is short. A search is one call for ids and scores
(1 ms a query where a user has 10,000 points of 384 numbers), writes go in small batches. Putting
segments in order takes seconds for 100,000 points and can't be cut up, so it is done when a
collection is opened, before anybody is served. There is no graph (HNSW): within one user's points a
look at every vector, at a copy of eight bits a number and then at the best of them as they are,
misses next to nothing, is fast enough, and costs little to keep up.

A write is in the engine's write-ahead log when `update` returns, and outlives the process. The
engine leaves it to the system when the log gets to the disk; `_sync` does not.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
import qdrant_edge as engine  # noqa: TID251  this is its adapter

from backend.database.base import chunks
from backend.logs import get_logger
from backend.memory.index import edge_mapping as mapping
from backend.memory.index.payload_cache import PayloadCache
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
    check_dimensions,
)

_PATIENCE = 2.0
"""Seconds that a process which is just ending gets to let go."""


def locked(path: Path) -> int:
    """Lock a file for as long as the returned descriptor is open.

    Waits in its thread. Raises `IndexUnavailableError`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() < until:
                time.sleep(0.05)
                continue
            os.close(descriptor)
            raise IndexUnavailableError(
                f"Another process has the index open ({path}). An index in the data folder serves "
                "one process. For several, start a Qdrant server and set TALEKEEPER_QDRANT_URL."
            ) from error
        return descriptor


log = get_logger(__name__)

T = TypeVar("T")

FORMAT = 1
"""Raised when what is kept in a folder changes: folders of other formats are made anew."""

_BATCH = 32
_PAGE = 500
_MOST_OWNERS = 1_000_000
_FLUSH_AFTER = 10_000
"""Points written after which the write-ahead log is emptied: 60 MB or so at 384 numbers."""


async def open_edge(folder: Path, name: str, dimension: int | None) -> EdgeIndex:
    """Open the collection `name` below `folder`, or make it.

    What is damaged, or of another format or dimension, is thrown away and made anew: everything in
    it can be made again from the database (`is_new` says so).

    Args:
        folder: Where collections live, each in a folder of its name.
        name: Letters, digits, `_` and `-`.
        dimension: Of the dense vectors; None for a collection without any.

    Raises:
        IndexUnavailableError: When another process has it open, or the disk is at fault.
    """
    index = EdgeIndex(folder, name, dimension)
    await index.open()
    return index


class EdgeIndex:
    """A `VectorIndex` in this process. Made by `open_edge`."""

    def __init__(self, folder: Path, name: str, dimension: int | None) -> None:
        self.name = name
        self.is_new = False
        self._dimension = dimension
        self._path = folder / f"{name}.{FORMAT}"
        self._shard: Any = None
        self._lock: int | None = None
        self._unflushed = 0
        self._payloads = PayloadCache()
        self._is_closed = False
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="index-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="index-write")

    async def open(self) -> None:
        """Open the engine. Raises `IndexUnavailableError`."""
        try:
            await self._in(self._writer, self._open)
        except BaseException:
            self._let_go()
            raise

    async def upsert(self, points: Sequence[Point]) -> None:
        """Store points, in place of those with their ids. Durable when it returns."""
        check_dimensions(points, self._dimension)
        for batch in chunks(points, _BATCH):
            await self._in(self._writer, partial(self._write, batch))
        await self._in(self._writer, self._sync)

    async def search(self, queries: Sequence[Query]) -> list[list[Hit]]:
        """Answer all queries, each with its hits, best first."""
        asked = [query for query in queries if not query.is_empty]

        def read() -> list[list[Hit]]:
            batch = engine.QueryBatchRequest([mapping.request(query) for query in asked])
            answers = [
                [(hit.id, hit.score) for hit in hits] for hits in self._shard.query_batch(batch)
            ]
            payloads = self._payloads_of({each.int: each for hits in answers for each, _ in hits})
            # What was deleted in between has no payload.
            return [
                [Hit(id_, score, payloads[id_.int]) for id_, score in hits if id_.int in payloads]
                for hits in answers
            ]

        answers = iter(await self._in(self._reader, read) if asked else ())
        return [[] if query.is_empty else next(answers) for query in queries]

    async def dense_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Floats]:
        """The `dense` vectors of points, for those that have one."""
        if self._dimension is None or not ids:
            return {}

        def read() -> dict[UUID, Floats]:
            found = self._shard.retrieve(list(ids), with_payload=False, with_vector=["dense"])
            # Each look at `vector` makes a list of it.
            vectors = ((each.id, each.vector) for each in found)
            return {
                point_id: np.asarray(vector["dense"], dtype=np.float32)
                for point_id, vector in vectors
                if vector and "dense" in vector
            }

        return await self._in(self._reader, read)

    async def delete_sources(self, owner_id: UUID, source_ids: Sequence[UUID]) -> None:
        """Delete every point of these rows."""
        if source_ids:
            await self._delete(mapping.owned(owner_id, mapping.among(SOURCE, source_ids)))

    async def delete_container(self, owner_id: UUID, container_id: UUID) -> None:
        """Delete every point of a container."""
        await self._delete(mapping.owned(owner_id, mapping.equal(CONTAINER, container_id)))

    async def delete_owner(self, owner_id: UUID) -> None:
        """Delete every point of a user's."""
        await self._delete(mapping.owned(owner_id))
        self._payloads.forget(owner_id)

    async def scan(
        self, owner_id: UUID, *, container_id: UUID | None = None
    ) -> AsyncIterator[Sequence[tuple[UUID, Payload]]]:
        """Every point of a user's, in pages, without vectors."""
        within = () if container_id is None else (mapping.equal(CONTAINER, container_id),)
        offset: Any = None
        while True:

            def read(start: Any = offset) -> tuple[list[tuple[UUID, Payload]], Any]:
                records, following = self._shard.scroll(
                    engine.ScrollRequest(
                        offset=start,
                        limit=_PAGE,
                        filter=mapping.owned(owner_id, *within),
                        with_payload=True,
                        with_vector=False,
                    )
                )
                page = [(each.id, Payload.decoded(each.payload)) for each in records]
                return page, following

            page, offset = await self._in(self._reader, read)
            if page:
                yield page
            if offset is None:
                return

    async def owners(self) -> set[UUID]:
        """Everybody who has points."""

        def read() -> set[UUID]:
            request = engine.FacetRequest(OWNER, limit=_MOST_OWNERS, exact=True)
            # Of those who are gone the engine still has the name, with no points.
            return {UUID(str(hit.value)) for hit in self._shard.facet(request).hits if hit.count}

        return await self._in(self._reader, read)

    async def count(self, owner_id: UUID | None = None) -> int:
        """How many points there are, of one user or of all."""

        def read() -> int:
            owned = None if owner_id is None else mapping.owned(owner_id)
            count: int = self._shard.count(engine.CountRequest(exact=True, filter=owned))
            return count

        return await self._in(self._reader, read)

    async def ping(self) -> None:
        """Raise `IndexUnavailableError` unless it answers."""
        await self._in(self._reader, lambda: self._shard.info())  # noqa: PLW0108  gone once closed

    async def aclose(self) -> None:
        """Write everything out and let go. Twice is as good as once."""
        if self._is_closed:
            return
        self._is_closed = True
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._reader, int)  # what is being read has been read
            await loop.run_in_executor(self._writer, self._close)
        except Exception as error:
            raise IndexUnavailableError(self._failed) from error
        finally:
            self._let_go()

    def _payloads_of(self, ids: Mapping[int, UUID]) -> dict[int, Payload]:
        """Payloads by the numbers of their points' ids."""
        payloads, writes = self._payloads.get(ids)
        missing = [point_id for number, point_id in ids.items() if number not in payloads]
        if missing:
            records = self._shard.retrieve(missing, with_payload=True, with_vector=False)
            read = [(each.id, Payload.decoded(each.payload)) for each in records]
            self._payloads.add(read, writes=writes)
            payloads |= {point_id.int: payload for point_id, payload in read}
        return payloads

    async def _delete(self, which: engine.Filter) -> None:
        def write() -> None:
            self._shard.update(engine.UpdateOperation.delete_points_by_filter(which))
            self._sync()

        await self._in(self._writer, write)

    def _open(self) -> None:
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = locked(folder / f"{self.name}.lock")
        for other in folder.glob(f"{self.name}.*"):
            if other != self._path and other.suffix[1:].isdigit():
                shutil.rmtree(other)
        config = mapping.config(self._dimension)
        if self._path.is_dir():
            for small in self._path.glob("segments/*/*/quantized.data"):
                small.read_bytes()  # at once: the engine pages them in bit by bit, for seconds
            try:
                self._shard = engine.EdgeShard.load(str(self._path), config)
            except Exception:  # noqa: BLE001  the engine raises nothing narrower
                # Nobody else has it open, so it is damaged or of another shape.
                log.warning("index.made_anew")
                shutil.rmtree(self._path)
        if self._shard is None:
            self.is_new = True
            self._path.mkdir(mode=0o700)
            self._shard = engine.EdgeShard.create(str(self._path), config)
        for name, schema in mapping.payload_indexes().items():
            self._shard.update(engine.UpdateOperation.create_field_index(name, schema))
        if self._shard.optimize():
            self._shard.flush()

    def _write(self, points: Sequence[Point]) -> None:
        made = [mapping.point(each) for each in points]
        self._shard.update(engine.UpdateOperation.upsert_points(made))
        self._payloads.write((each.id, each.payload) for each in points)
        self._unflushed += len(made)
        if self._unflushed >= _FLUSH_AFTER:
            self._unflushed = 0
            self._shard.flush()

    def _sync(self) -> None:
        """Wait until what was written is on the disk."""
        for path in (self._path / "wal").iterdir():
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue  # the engine's next segment, which just got its name
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _close(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.flush()
            shard.close()

    def _let_go(self) -> None:
        self._is_closed = True
        for pool in (self._reader, self._writer):
            pool.shutdown(wait=False)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def _failed(self) -> str:
        return (
            f"The index {self.name} in the data folder failed. Look whether the disk is full; "
            "otherwise restart, and rebuild it with `talekeeper reindex`."
        )

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        """Run in a thread. Raises `IndexUnavailableError` whatever goes wrong there."""
        if self._is_closed:
            raise IndexUnavailableError("The index is closed.")
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        except IndexUnavailableError:
            raise
        except Exception as error:
            raise IndexUnavailableError(self._failed) from error
