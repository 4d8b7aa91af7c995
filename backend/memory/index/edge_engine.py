"""Qdrant Edge, in a process that does nothing else.

The engine holds Python's lock from the beginning of a call to its end. A turn's queries take five
milliseconds, and an event loop in the same process stops for all of them. So the engine has its own
process: `edge_process` starts it, and it imports only what it needs of Talekeeper.

Each call is one message on stdin and one on stdout (`edge_messages`). Writes have their own thread,
because waiting for the disk releases the lock. The process ends when stdin does.

A search is one call for ids and scores (1 ms a query where a user has 10,000 points of 384
numbers), writes go in small batches. Putting segments in order takes seconds for 100,000 points and
can't be split, so it is done when a collection is opened, before the server answers. There is no
graph (HNSW): every vector of one user is compared, first as a copy of eight bits a number, then the
best ones as they are. That misses next to nothing, is fast enough, and costs little to maintain.

A write is in the engine's write-ahead log when `update` returns, and outlives the process. The
engine leaves it to the system when the log gets to the disk; `_sync` does not.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, get_args
from uuid import UUID, uuid5

import qdrant_edge as engine  # noqa: TID251  half of its adapter
from filelock import BaseFileLock, FileLock, Timeout

from backend.core.operating_system import end_with_parent, ignore_stop_signals
from backend.memory.index.edge_messages import (
    HEAD,
    ID,
    PAYLOADS_KEPT,
    Outcome,
    PointMessage,
    QueryMessage,
    SparseMessage,
    framed,
)
from backend.memory.index.scope import (
    AUDIENCE,
    CONTAINER,
    DENSE,
    KIND,
    OWNER,
    POSITION,
    SOURCE,
    SPARSE,
    IndexUnavailableError,
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


def collection_config(dimension: int | None) -> engine.EdgeConfig:
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
            corpus = filter_owned(query.scope.owner_id)
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


def filter_owned(owner_id: UUID | str, *conditions: Any) -> engine.Filter:
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
        return filter_owned(owner_id)
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


WRITES = frozenset({"upsert", "delete"})

FORMAT = 2
"""Raised when what a folder holds changes. Folders of other formats are deleted and made again."""

_PATIENCE = 2.0
"""Seconds to wait for a process that is ending to release the lock."""

_MOST_OWNERS = 1_000_000
_FLUSH_AFTER = 10_000
"""Points written after which the write-ahead log is emptied: 60 MB or so at 384 numbers."""


_locks: list[BaseFileLock] = []
"""Kept as long as this process lives: a lock that nothing refers to is released."""


class Engine:
    """One collection, open in this process. Two threads may use it, one to read, one to write."""

    def __init__(self) -> None:
        self._path = Path()
        self._shard: Any = None
        self._unflushed = 0
        self._told: set[int] = set()
        self._owners: set[UUID] = set()

    def open(
        self, folder: Path, name: str, dimension: int | None, *, may_make: bool
    ) -> tuple[bool, bool]:
        """Open a collection, or make it.

        Args:
            folder: Where collections live, each in a folder of its name.
            name: Letters, digits, `_` and `-`.
            dimension: Of the dense vectors; None for a collection without any.
            may_make: Whether to make the collection if it is missing, damaged, or of another format
                or dimension.

        Returns:
            Whether it is new, and whether it replaces a damaged one.

        Raises:
            IndexUnavailableError: When another process has it open, or it may not be made.
        """
        self._path = folder / f"{name}.{FORMAT}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock(folder / f"{name}.lock")
        for other in folder.glob(f"{name}.*"):
            if other != self._path and other.suffix[1:].isdigit():
                shutil.rmtree(other)
        config = collection_config(dimension)
        is_damaged = False
        if self._path.is_dir():
            for small in self._path.glob("segments/*/*/quantized.data"):
                small.read_bytes()  # at once: the engine pages them in bit by bit, for seconds
            try:
                self._shard = engine.EdgeShard.load(str(self._path), config)
            except Exception:  # noqa: BLE001  the engine raises nothing narrower
                # Nobody else has it open, so it is damaged or of another shape.
                is_damaged = True
        is_new = self._shard is None
        if is_new:
            if not may_make:
                raise IndexUnavailableError(
                    f"The index {name} in the data folder is damaged. Restart to rebuild the index."
                )
            shutil.rmtree(self._path, ignore_errors=True)
            self._path.mkdir(mode=0o700)
            self._shard = engine.EdgeShard.create(str(self._path), config)
        for field, schema in payload_indexes().items():
            self._shard.update(engine.UpdateOperation.create_field_index(field, schema))
        if self._shard.optimize():
            self._shard.flush()
        self._owners = {UUID(each) for each in self.owners(most=2)}
        return is_new, is_damaged

    def upsert(
        self, points: Sequence[PointMessage], *, instead_of: Sequence[UUID], syncs: bool
    ) -> None:
        """Store points, in place of those with their ids and those of rows of the same user.

        `syncs` waits for the disk.
        """
        self._owners |= {UUID(each.payload[OWNER]) for each in points}
        made = [point(each) for each in points]
        if instead_of:
            self._delete(filter_owned(points[0].payload[OWNER], among(SOURCE, instead_of)))
        self._shard.update(engine.UpdateOperation.upsert_points(made))
        self._unflushed += len(made)
        if self._unflushed >= _FLUSH_AFTER:
            self._unflushed = 0
            self._shard.flush()
        if syncs:
            self._sync()

    def _sync(self) -> None:
        """Wait until what was written is on the disk."""
        for path in (self._path / "wal").iterdir():
            try:
                descriptor = os.open(path, os.O_RDWR)  # Windows syncs no other
            except FileNotFoundError:
                continue  # the engine's next segment, which just got its name
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def delete(
        self,
        owner_id: UUID,
        *,
        sources: Sequence[UUID] | None = None,
        container_id: UUID | None = None,
    ) -> None:
        """Delete points of one user: all, or those of some rows, or those of a container."""
        if sources is None:
            which = within(owner_id, container_id)
        else:
            which = filter_owned(owner_id, among(SOURCE, sources))
        self._delete(which)
        self._sync()

    def _delete(self, which: engine.Filter) -> None:
        self._shard.update(engine.UpdateOperation.delete_points_by_filter(which))

    def search(
        self, queries: Sequence[QueryMessage]
    ) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, Any]]]:
        """What is nearest to each of some queries.

        Returns:
            Of each query its hits, best first: 16 bytes of ids each, and scores as doubles. And the
            payloads of hits that no answer had before: the caller keeps them.
        """
        # Owners whose points were all deleted count until the collection is opened again.
        sole = next(iter(self._owners)) if len(self._owners) == 1 else None
        batch = engine.QueryBatchRequest(
            [request(query, is_sole_owner=query.scope.owner_id == sole) for query in queries]
        )
        answers = self._shard.query_batch(batch)
        # Each look at an `id` makes a UUID of it.
        ids = [[hit.id.int for hit in hits] for hits in answers]
        if len(self._told) > PAYLOADS_KEPT:
            self._told.clear()
        new = set[int]().union(*ids) - self._told
        self._told |= new
        hits = [
            (
                b"".join([number.to_bytes(ID) for number in some]),
                array("d", [hit.score for hit in hits]).tobytes(),
            )
            for some, hits in zip(ids, answers, strict=True)
        ]
        return hits, self.payloads([UUID(int=number) for number in new]) if new else []

    def payloads(self, ids: Sequence[UUID]) -> list[tuple[bytes, Any]]:
        """The payloads of points, of those that are there, by the bytes of their ids."""
        return _payloads(self._shard.retrieve(list(ids), with_payload=True, with_vector=False))

    def vectors(self, ids: Sequence[UUID]) -> list[tuple[bytes, bytes]]:
        """The `dense` vectors of points as floats of 32 bits, of those that have one.

        By the bytes of their ids.
        """
        found = self._shard.retrieve(list(ids), with_payload=False, with_vector=["dense"])
        # Each look at `vector` makes a list of it.
        vectors = ((each.id.bytes, each.vector) for each in found)
        return [
            (point_id, array("f", vector["dense"]).tobytes())
            for point_id, vector in vectors
            if vector and "dense" in vector
        ]

    def term_vectors(self, ids: Sequence[UUID]) -> list[tuple[bytes, SparseMessage]]:
        """The `sparse` vectors of points, of those that have one, by the bytes of their ids."""
        found = self._shard.retrieve(list(ids), with_payload=False, with_vector=["sparse"])
        vectors = ((each.id.bytes, each.vector) for each in found)
        return [
            (point_id, terms(vector["sparse"]))
            for point_id, vector in vectors
            if vector and "sparse" in vector
        ]

    def page(
        self, owner_id: UUID, container_id: UUID | None, offset: Any, *, most: int, is_kept: bool
    ) -> tuple[list[tuple[bytes, Any]], Any]:
        """At most so many points with their payloads, and where the next page begins.

        None after the last. What the caller keeps no search tells again.
        """
        records, following = self._shard.scroll(
            engine.ScrollRequest(
                offset=offset,
                limit=most,
                filter=within(owner_id, container_id),
                with_payload=True,
                with_vector=False,
            )
        )
        if is_kept:
            self._told |= {each.id.int for each in records}
        return _payloads(records), following

    def owners(self, most: int = _MOST_OWNERS) -> list[str]:
        """Those who have points, so many at most."""
        request = engine.FacetRequest(OWNER, limit=most, exact=True)
        # Of those who are gone the engine still has the name, with no points.
        return [str(hit.value) for hit in self._shard.facet(request).hits if hit.count]

    def count(self, owner_id: UUID | None) -> int:
        """How many points there are, of one user or of all."""
        owned = None if owner_id is None else filter_owned(owner_id)
        count: int = self._shard.count(engine.CountRequest(exact=True, filter=owned))
        return count

    def ping(self) -> None:
        """Fail where the engine does."""
        self._shard.info()

    def close(self) -> None:
        """Write everything out and let go."""
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.flush()
            shard.close()


def _payloads(records: Sequence[Any]) -> list[tuple[bytes, Any]]:
    """Records' payloads by the bytes of their ids: a UUID goes through a pipe twice as slowly."""
    return [(each.id.bytes, payload(each.payload)) for each in records]


def lock(path: Path) -> None:
    """Lock a file for as long as this process lives. Raises `IndexUnavailableError`."""
    held = FileLock(path, mode=0o600)
    try:
        held.acquire(timeout=_PATIENCE)
    except Timeout as error:
        raise IndexUnavailableError(
            f"Another process has the index open ({path}). An index in the data folder can serve "
            "one process. For several, start a Qdrant server and set TALEKEEPER_QDRANT_URL."
        ) from error
    _locks.append(held)


def _answer(opened: Engine, out: BinaryIO, out_lock: threading.Lock, call: Any) -> None:
    number, method, arguments, options = call
    outcome: Outcome = "done"
    try:
        value = getattr(opened, method)(*arguments, **options)
    except IndexUnavailableError as error:
        outcome, value = "unavailable", error.detail
    except BaseException as error:  # noqa: BLE001  a panic of the engine's is no `Exception`
        outcome, value = "failed", f"{type(error).__name__}: {error}"
    message = framed((number, outcome, value))
    with out_lock:
        out.write(message)
        out.flush()


def main() -> None:
    """Answer calls until stdin ends."""
    ignore_stop_signals()
    end_with_parent()
    calls = sys.stdin.buffer
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed goes to the log
    opened, out_lock = Engine(), threading.Lock()
    with ThreadPoolExecutor(1, thread_name_prefix="index-write") as writer:
        while len(head := calls.read(HEAD)) == HEAD:
            call = pickle.loads(calls.read(int.from_bytes(head)))  # noqa: S301  Talekeeper's own
            work = partial(_answer, opened, out, out_lock, call)
            if call[1] in WRITES:
                writer.submit(work)
            else:
                work()
    opened.close()
