"""The process of Qdrant Edge.

The engine holds Python's lock during a call. The queries of a turn take five milliseconds, and they
would block an event loop in the same process. So `edge` starts the engine in its own process, which
imports only a few modules of Talekeeper.

A call is one message on stdin and one on stdout (`edge_messages`). Writes have their own thread,
because waiting for the disk releases the lock. The process exits when stdin is closed.

A search is one call for ids and scores. A query takes 1 ms if a user has 10,000 points of 384
numbers. Writes are split into small batches. Optimizing segments takes seconds for 100,000 points
and can't be split, so it is done when a collection is opened, before the server accepts requests.

There is no graph (HNSW). The engine compares all vectors of the user, first as 8-bit copies and
then the best ones in full. This is fast enough, misses almost nothing and needs little maintenance.

When `update` returns, a write is in the engine's write-ahead log and survives the process. The
engine does not force the log to the disk; `_sync` does.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, get_args
from uuid import UUID, uuid5

import qdrant_edge as engine  # noqa: TID251  half of its adapter

from backend.core.operating_system import (
    FileLockedError,
    end_with_parent,
    ignore_stop_signals,
    lock_file,
)
from backend.memory.index.scope import (
    AUDIENCE,
    CONTAINER,
    DENSE,
    HEADER_BYTES,
    ID_BYTES,
    KIND,
    MAX_CACHED_PAYLOADS,
    OWNER,
    POSITION,
    SOURCE,
    SPARSE,
    CallOutcome,
    IndexUnavailableError,
    Kind,
    PointMessage,
    QueryMessage,
    Scope,
    ScopePart,
    SparseMessage,
    frame,
)

PLACE = "x"
"""The payload field of a point's place (`compute_place`), which only this engine has."""

_PLACES = UUID("8d1f0c52-6a0e-5d8b-9a5c-3f6f4e0d7b21")

_MAX_CACHED_PLACES = 4096
"""Cached places: 1 MB. The queries of a turn use the same ones several times."""

_OVERSAMPLING = 2.0
"""Factor for the hits that are found by 8-bit copies and then scored in full."""


def collection_config(dimension: int | None) -> engine.EdgeConfig:
    """Return the configuration of a collection: no graph, and IDF weights at query time.

    Vectors have unit length. Optimized segments also contain 8-bit copies of them.
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
    """Return the indexes of all filtered fields. Ids compare as integers, twice as fast as text."""
    return {
        OWNER: engine.UuidIndexParams(is_tenant=True),
        PLACE: engine.UuidIndexParams(),
        SOURCE: engine.UuidIndexParams(),
        AUDIENCE: engine.KeywordIndexParams(),
        POSITION: engine.IntegerIndexParams(lookup=False, range=True),
    }


@lru_cache(maxsize=_MAX_CACHED_PLACES)
def compute_place(owner_id: UUID | str, container_id: UUID | str, kind: Kind) -> str:
    """Return one id for a point's owner, container and kind.

    The engine checks each condition of a query for all points of a user. Three conditions took as
    long as comparing the vectors, so one replaces them. Users never share a place.
    """
    return str(uuid5(_PLACES, f"{owner_id}/{container_id}/{kind}"))


def build_point(given: PointMessage) -> engine.Point:
    vectors: dict[str, Any] = {name: _decode_floats(vector) for name, vector in given.dense.items()}
    vectors |= {name: build_sparse(vector) for name, vector in given.sparse.items()}
    payload = given.payload
    place = compute_place(payload[OWNER], payload[CONTAINER], payload[KIND])
    return engine.Point(given.id, vectors, {PLACE: place, **payload})


def build_request(query: QueryMessage, *, is_sole_owner: bool = False) -> engine.QueryRequest:
    """Convert a query. The filter's places limit it to the owner, whose points are the corpus.

    For a sole owner the corpus is the whole collection. Counting it takes half of a sparse query,
    so it is skipped.
    """
    near = query.near
    if isinstance(near, SparseMessage):
        vector: Any = build_sparse(near)
        params = None
        if not is_sole_owner:
            corpus = filter_owned(query.scope.owner_id)
            params = engine.SearchParams(idf=engine.IdfParams(corpus=corpus))
    else:
        vector = _decode_floats(near)
        again = engine.QuantizationSearchParams(rescore=True, oversampling=_OVERSAMPLING)
        params = engine.SearchParams(quantization=again)
    return engine.QueryRequest(
        limit=query.limit,
        query=engine.Query.Nearest(vector, using=query.vector),
        filter=_build_filter(query.scope),
        with_payload=False,
        params=params,
    )


def build_sparse(vector: SparseMessage) -> engine.SparseVector:
    return engine.SparseVector(array("I", vector.ids).tolist(), _decode_floats(vector.weights))


def encode_sparse(vector: engine.SparseVector) -> SparseMessage:
    return SparseMessage(array("I", vector.indices).tobytes(), array("f", vector.values).tobytes())


def filter_owned(owner_id: UUID | str, *conditions: Any) -> engine.Filter:
    return engine.Filter(must=[match_any(OWNER, [owner_id]), *conditions])


def match_any(key: str, values: Sequence[object]) -> engine.FieldCondition:
    texts = [str(each) for each in values]
    match = engine.MatchAny(texts) if len(texts) > 1 else engine.MatchValue(texts[0])
    return engine.FieldCondition(key=key, match=match)


def filter_container(owner_id: UUID, container_id: UUID | None) -> engine.Filter:
    if container_id is None:
        return filter_owned(owner_id)
    places = [compute_place(owner_id, container_id, kind) for kind in get_args(Kind)]
    return engine.Filter(must=[match_any(PLACE, places)])


def _build_filter(scope: Scope) -> engine.Filter:
    """Return the filter of a scope. At least one of its parts must have containers.

    If no part has a limit, it is a single condition on places, which is fastest.
    """
    parts = [part for part in scope.parts if part.containers]
    known_to = [match_any(AUDIENCE, scope.audience)] if scope.audience else []
    if not any(part.has_range or part.audience for part in parts):
        places = [each for part in parts for each in _list_places(scope, part)]
        return engine.Filter(must=[match_any(PLACE, places), *known_to])
    if len(parts) == 1:
        return engine.Filter(must=[*_build_conditions(scope, parts[0]), *known_to])
    alternatives: list[Any] = [engine.Filter(must=_build_conditions(scope, part)) for part in parts]
    return engine.Filter(must=[engine.Filter(should=alternatives), *known_to])


def _build_conditions(scope: Scope, part: ScopePart) -> list[Any]:
    conditions: list[Any] = [match_any(PLACE, list(_list_places(scope, part)))]
    if part.has_range:
        within = engine.RangeFloat(gte=part.from_position, lt=part.before_position)
        conditions.append(engine.FieldCondition(key=POSITION, range=within))
    if part.audience:
        conditions.append(match_any(AUDIENCE, part.audience))
    return conditions


def _list_places(scope: Scope, part: ScopePart) -> Iterator[str]:
    for container_id in part.containers:
        for kind in scope.kinds:
            yield compute_place(scope.owner_id, container_id, kind)


def _decode_floats(numbers: bytes) -> list[float]:
    return array("f", numbers).tolist()


WRITE_METHODS = frozenset({"upsert", "delete"})

FORMAT = 2
"""Increase it if the content of a folder changes. Folders of other formats are replaced."""

_LOCK_SECONDS = 2.0
"""Time to wait until another process, which is exiting, releases the lock."""

_MAX_OWNERS = 1_000_000
_POINTS_PER_FLUSH = 10_000
"""Points after which the write-ahead log is flushed: about 60 MB at 384 dimensions."""


_locks: list[BinaryIO] = []
"""Locks of this process. A lock without a reference would be released."""


class Engine:
    """An open collection. Two threads may use it: one to read and one to write."""

    def __init__(self) -> None:
        self._path = Path()
        self._shard: Any = None
        self._unflushed = 0
        self._sent: set[int] = set()
        self._owners: set[UUID] = set()

    def open(
        self, folder: Path, name: str, dimension: int | None, *, may_create: bool
    ) -> tuple[bool, bool]:
        """Open or create a collection. Return two booleans: it is new, it replaces a damaged one.

        It is created if `may_create` and it is missing, damaged, or has another format or
        dimension. `dimension` is None for a collection without dense vectors. Raises
        `IndexUnavailableError` if another process has it open, or if it may not be created.
        """
        self._path = folder / f"{name}.{FORMAT}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock(folder / f"{name}.lock")
        for other in folder.glob(f"{name}.*"):
            if other != self._path and other.suffix[1:].isdigit():
                _delete_folder(other)
        config = collection_config(dimension)
        is_damaged = False
        if self._path.is_dir():
            for small in self._path.glob("segments/*/*/quantized.data"):
                # Read at once, because the engine would page them in slowly, for seconds.
                small.read_bytes()
            try:
                self._shard = engine.EdgeShard.load(str(self._path), config)
            except Exception:  # noqa: BLE001  the engine raises nothing narrower
                # No other process has it open, so it is damaged or has another shape.
                is_damaged = True
        is_new = self._shard is None
        if is_new:
            if not may_create:
                raise IndexUnavailableError(
                    f"The index {name} in the data folder is damaged. Restart Talekeeper to "
                    "rebuild the index."
                )
            _delete_folder(self._path)
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
        """Store points. They replace points with the same ids, and those of rows of the same user.

        `syncs` waits for the disk.
        """
        self._owners |= {UUID(each.payload[OWNER]) for each in points}
        made = [build_point(each) for each in points]
        if instead_of:
            self._delete(filter_owned(points[0].payload[OWNER], match_any(SOURCE, instead_of)))
        self._shard.update(engine.UpdateOperation.upsert_points(made))
        self._unflushed += len(made)
        if self._unflushed >= _POINTS_PER_FLUSH:
            self._unflushed = 0
            self._shard.flush()
        if syncs:
            self._sync()

    def _sync(self) -> None:
        for path in (self._path / "wal").iterdir():
            try:
                descriptor = os.open(path, os.O_RDWR)  # Windows can't sync read-only files
            except FileNotFoundError:
                continue  # the engine has just renamed its next segment
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
        """Delete points of one user: all, those of some rows, or those of a container."""
        if sources is None:
            which = filter_container(owner_id, container_id)
        else:
            which = filter_owned(owner_id, match_any(SOURCE, sources))
        self._delete(which)
        self._sync()

    def _delete(self, which: engine.Filter) -> None:
        self._shard.update(engine.UpdateOperation.delete_points_by_filter(which))

    def search(
        self, queries: Sequence[QueryMessage]
    ) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, Any]]]:
        """Find the nearest points to each query.

        Returns:
            The hits of each query, best first: concatenated ids of 16 bytes, and scores as doubles.
            Then the payloads of hits that no result has contained before, because the caller
            caches them.
        """
        # An owner whose points were all deleted is included until the collection is reopened.
        sole = next(iter(self._owners)) if len(self._owners) == 1 else None
        batch = engine.QueryBatchRequest(
            [build_request(query, is_sole_owner=query.scope.owner_id == sole) for query in queries]
        )
        answers = self._shard.query_batch(batch)
        # Each access to `id` creates a UUID.
        ids = [[hit.id.int for hit in hits] for hits in answers]
        if len(self._sent) > MAX_CACHED_PAYLOADS:
            self._sent.clear()
        new = set[int]().union(*ids) - self._sent
        self._sent |= new
        hits = [
            (
                b"".join([number.to_bytes(ID_BYTES) for number in some]),
                array("d", [hit.score for hit in hits]).tobytes(),
            )
            for some, hits in zip(ids, answers, strict=True)
        ]
        return hits, self.payloads([UUID(int=number) for number in new]) if new else []

    def payloads(self, ids: Sequence[UUID]) -> list[tuple[bytes, Any]]:
        """Return the payloads of existing points, with the bytes of their ids."""
        return _encode_payloads(
            self._shard.retrieve(list(ids), with_payload=True, with_vector=False)
        )

    def vectors(self, ids: Sequence[UUID]) -> list[tuple[bytes, bytes]]:
        """Return the `dense` vectors (float32) that points have, by the bytes of their ids."""
        found = self._shard.retrieve(list(ids), with_payload=False, with_vector=["dense"])
        # Each access to `vector` creates a list.
        vectors = ((each.id.bytes, each.vector) for each in found)
        return [
            (point_id, array("f", vector["dense"]).tobytes())
            for point_id, vector in vectors
            if vector and "dense" in vector
        ]

    def term_vectors(self, ids: Sequence[UUID]) -> list[tuple[bytes, SparseMessage]]:
        """Return the `sparse` vectors of the points that have one, with the bytes of their ids."""
        found = self._shard.retrieve(list(ids), with_payload=False, with_vector=["sparse"])
        vectors = ((each.id.bytes, each.vector) for each in found)
        return [
            (point_id, encode_sparse(vector["sparse"]))
            for point_id, vector in vectors
            if vector and "sparse" in vector
        ]

    def page(
        self, owner_id: UUID, container_id: UUID | None, offset: Any, *, most: int, is_kept: bool
    ) -> tuple[list[tuple[bytes, Any]], Any]:
        """Return a page of points with their payloads, and the offset of the next page.

        The offset is None after the last page. If the caller caches the page (`is_kept`), searches
        do not send its payloads again.
        """
        records, following = self._shard.scroll(
            engine.ScrollRequest(
                offset=offset,
                limit=most,
                filter=filter_container(owner_id, container_id),
                with_payload=True,
                with_vector=False,
            )
        )
        if is_kept:
            self._sent |= {each.id.int for each in records}
        return _encode_payloads(records), following

    def owners(self, most: int = _MAX_OWNERS) -> list[str]:
        request = engine.FacetRequest(OWNER, limit=most, exact=True)
        # The engine still lists deleted users, with no points.
        return [str(hit.value) for hit in self._shard.facet(request).hits if hit.count]

    def count(self, owner_id: UUID | None) -> int:
        owned = None if owner_id is None else filter_owned(owner_id)
        count: int = self._shard.count(engine.CountRequest(exact=True, filter=owned))
        return count

    def ping(self) -> None:
        self._shard.info()

    def close(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.flush()
            shard.close()


def _delete_folder(path: Path) -> None:
    if path.exists():
        import shutil  # noqa: PLC0415  # seldom needed, and takes a tenth of the start

        shutil.rmtree(path)


def _encode_payloads(records: Sequence[Any]) -> list[tuple[bytes, Any]]:
    """Return payloads with the bytes of their ids. Pickling a UUID takes twice as long."""
    found: list[tuple[bytes, Any]] = []
    for each in records:
        payload = each.payload
        payload.pop(PLACE, None)
        found.append((each.id.bytes, payload))
    return found


def lock(path: Path) -> None:
    """Lock a file until this process exits. Raises `IndexUnavailableError`."""
    try:
        _locks.append(lock_file(path, wait_seconds=_LOCK_SECONDS))
    except FileLockedError as error:
        raise IndexUnavailableError(
            f"Another process has the index open ({path}). An index in the data folder can serve "
            "one process. For several, start a Qdrant server and set TALEKEEPER_QDRANT_URL."
        ) from error


def _run_call(opened: Engine, out: BinaryIO, out_lock: threading.Lock, call: Any) -> None:
    number, method, arguments, options = call
    outcome: CallOutcome = "done"
    try:
        value = getattr(opened, method)(*arguments, **options)
    except IndexUnavailableError as error:
        outcome, value = "unavailable", error.detail
    except BaseException as error:  # noqa: BLE001  a panic of the engine is no `Exception`
        outcome, value = "failed", f"{type(error).__name__}: {error}"
    message = frame((number, outcome, value))
    with out_lock:
        out.write(message)
        out.flush()


def main() -> None:
    ignore_stop_signals()
    end_with_parent()
    calls = sys.stdin.buffer
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output goes to the log
    opened, out_lock = Engine(), threading.Lock()
    writes = SimpleQueue[Callable[[], None] | None]()
    writer = threading.Thread(target=_run_writes, args=(writes,), name="index-write")
    writer.start()
    try:
        while len(head := calls.read(HEADER_BYTES)) == HEADER_BYTES:
            call = pickle.loads(calls.read(int.from_bytes(head)))  # noqa: S301  Talekeeper's own
            work = partial(_run_call, opened, out, out_lock, call)
            if call[1] in WRITE_METHODS:
                writes.put(work)
            else:
                work()
    finally:
        writes.put(None)
        writer.join()
    opened.close()


def _run_writes(writes: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := writes.get()) is not None:
        with suppress(OSError):  # the server has ended, and its other writes still count
            work()
