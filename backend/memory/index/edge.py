"""Qdrant Edge: an index in the data folder, with one folder per collection.

The engine runs in its own process (`edge_engine`), because it holds Python's lock while it works.
Each collection has a process, which ends when the collection is closed. If a process was killed,
the next call starts a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Self
from uuid import UUID

import numpy as np
from msgspec.structs import replace

from backend.core.helpers import HelperStarts
from backend.core.logs import get_logger
from backend.core.operating_system import helper_command, helper_options
from backend.memory.index.protocol import (
    Floats,
    Hit,
    Payload,
    Point,
    Query,
    Sparse,
    check_dimensions,
)
from backend.memory.index.scope import (
    HEADER_BYTES,
    ID_BYTES,
    MAX_CACHED_PAYLOADS,
    CallOutcome,
    IndexUnavailableError,
    PointMessage,
    QueryMessage,
    SparseMessage,
    frame,
)

PointPayload = tuple[UUID, Payload]


class PayloadCache:
    """A cache of payloads by point, for a collection that only this process writes to.

    It contains ids and numbers, no text. A deleted point may stay in it for a while, which is
    harmless because the engine no longer finds it. `most` is an approximate limit.
    """

    def __init__(self, most: int = MAX_CACHED_PAYLOADS) -> None:
        self._half = max(1, most // 2)
        self.writes = 0
        # The keys are integers, because hashing a UUID takes ten times as long.
        self._young: dict[int, PointPayload] = {}
        self._old: dict[int, PointPayload] = {}
        self._ids: dict[int, UUID] = {}

    def has_room(self, count: int) -> bool:
        """True if `count` more payloads fit without dropping recently used ones."""
        return len(self._young) + count <= self._half

    def get(self, ids: Iterable[int]) -> dict[int, PointPayload]:
        found: dict[int, PointPayload] = {}
        for each in ids:
            known = self._young.get(each)
            if known is None and (known := self._old.get(each)) is not None:
                self._put(known)
            if known is not None:
                found[each] = known
        return found

    def add(self, points: Iterable[PointPayload], *, writes: int) -> None:
        """Cache payloads that were read, unless there was a write since `writes` was taken."""
        if writes == self.writes:
            for point_id, payload in points:
                self._put((point_id, self._share_ids(payload)))

    def write(self, points: Iterable[PointPayload]) -> None:
        """Update the cached payloads of points that were written. It adds no others."""
        self.writes += 1
        for point_id, payload in points:
            if point_id.int in self._young or point_id.int in self._old:
                self._put((point_id, self._share_ids(payload)))

    def forget(self, owner_id: UUID) -> None:
        self.writes += 1
        self._ids.pop(owner_id.int, None)
        for kept in (self._young, self._old):
            for each in [each for each, (_, known) in kept.items() if known.owner_id == owner_id]:
                del kept[each]

    def _put(self, known: PointPayload) -> None:
        if len(self._young) >= self._half:
            self._old, self._young, self._ids = self._young, {}, {}
        self._young[known[0].int] = known

    def _share_ids(self, payload: Payload) -> Payload:
        """Return the payload with shared id objects, which halves the memory of the cache."""
        share, scene_id = self._ids.setdefault, payload.scene_id
        return replace(
            payload,
            owner_id=share(payload.owner_id.int, payload.owner_id),
            container_id=share(payload.container_id.int, payload.container_id),
            scene_id=None if scene_id is None else share(scene_id.int, scene_id),
        )


log = get_logger(__name__)

_PROGRAM = "backend.memory.index.edge_engine"
_SHUTDOWN_SECONDS = 30.0
"""Time that the process has to flush before it is killed."""

_PIPE_BYTES = 1 << 20


class EngineError(Exception):
    """A call failed or the process ended. `kind` is the type of the engine's error, if any."""

    def __init__(self, text: str, *, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class EngineProcess:
    """A running engine. Calls may be concurrent, but only from one event loop."""

    _prepared: ClassVar[EngineProcess | None] = None

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("The process has no pipes.")
        self._process = process
        self._in, self._out = process.stdin, process.stdout
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def prepare(cls) -> None:
        """Start a process ahead of time. A failure is ignored, because `start` tries again."""
        with contextlib.suppress(OSError):
            EngineProcess._prepared = await cls._spawn()

    @classmethod
    async def start(cls) -> EngineProcess:
        """Return a running process: the prepared one or a new one."""
        prepared, EngineProcess._prepared = EngineProcess._prepared, None
        return prepared if prepared and not prepared.is_gone else await cls._spawn()

    @classmethod
    async def _spawn(cls) -> Self:
        """Start a process with an empty environment, so that it gets no keys or passwords."""
        return cls(
            await asyncio.create_subprocess_exec(
                *helper_command(_PROGRAM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_PIPE_BYTES,
                **helper_options(),
            )
        )

    @property
    def is_gone(self) -> bool:
        """True if it accepts no more calls. Its input closes shortly before its output."""
        return self._reading.done() or self._in.is_closing()

    async def call(self, method: str, *arguments: object, **options: object) -> Any:
        """Call a method of `Engine`. Raises `IndexUnavailableError` and `EngineError`."""
        if self.is_gone:
            raise EngineError("The engine's process is gone.")
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._in.write(frame((number, method, arguments, options)))
        try:
            outcome, value = await answer
        finally:
            self._waiting.pop(number, None)
        if outcome == "unavailable":
            raise IndexUnavailableError(value)
        if outcome == "failed":
            kind, colon, _ = value.partition(":")
            raise EngineError(value, kind=kind if colon else "")
        return value

    async def end(self) -> None:
        """Let the process finish its calls, flush and exit."""
        self._in.close()
        try:
            async with asyncio.timeout(_SHUTDOWN_SECONDS):
                await self._reading
        except TimeoutError:
            log.warning("index.engine_killed")
            self._process.kill()
        if code := await self._process.wait():
            log.warning("index.engine_ended", exit_code=code)

    async def _read(self) -> None:
        try:
            while True:
                head = await self._out.readexactly(HEADER_BYTES)
                message = await self._out.readexactly(int.from_bytes(head))
                number: int
                outcome: CallOutcome
                number, outcome, value = pickle.loads(message)  # noqa: S301  of our own process
                answer = self._waiting.get(number)
                if answer is not None and not answer.done():
                    answer.set_result((outcome, value))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_result(("failed", "The engine's process ended."))


async def can_start_engine() -> bool:
    """True if an engine can be started and responds. It opens no collection."""
    try:
        process = await EngineProcess.start()
    except OSError:
        return False
    try:
        await process.call("close")
    except EngineError:
        return False
    finally:
        await process.end()
    return True


_POINTS_PER_WRITE = 32
_PAGE_POINTS = 500
_PREFETCH_POINTS = 100
"""Points whose payloads are prefetched in one call: 2 ms that a search may have to wait."""

_MAX_PREFETCHES = 1_000
"""Users whose payloads are prefetched. The oldest are dropped first."""

_PREFETCH_PAUSE_SECONDS = 0.01


async def open_edge(folder: Path, name: str, dimension: int | None) -> EdgeIndex:
    """Open or create the collection `name` in `folder`.

    A collection that is damaged, or has another format or dimension, is replaced by an empty one,
    and `is_new` is true. Everything can be indexed again from the database. If the folder is
    faulty, every call raises `IndexUnavailableError` and tries to open it again. If another process
    has it open, this function raises that error.
    """
    index = EdgeIndex(folder, name, dimension)
    await index.open()
    return index


def list_collections(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.[0-9]*") if path.is_dir()}


class EdgeIndex:
    """A `VectorIndex` in the data folder. Use `open_edge` to create it, and one event loop."""

    def __init__(self, folder: Path, name: str, dimension: int | None) -> None:
        self.name = name
        self.is_new = False
        self._folder = folder
        self._dimension = dimension
        self._process: EngineProcess | None = None
        self._starting = asyncio.Lock()
        self._starts = HelperStarts("index")
        self._payloads = PayloadCache()
        self._writes: set[asyncio.Task[None]] = set()
        self._was_open = False
        self._is_closed = False
        self._searches = 0
        self._prefetches: dict[UUID, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Start the engine. Raises `IndexUnavailableError` if another process has it open."""
        try:
            await self._start()
        except EngineError as error:
            # The server runs without the index until a later call opens it.
            log.warning("index.not_opened", collection=self.name, error_type=error.kind)
        except BaseException:
            await self.aclose()
            raise

    async def upsert(self, points: Sequence[Point], *, instead_of: Sequence[UUID] = ()) -> None:
        check_dimensions(points, self._dimension)
        for start in range(0, len(points), _POINTS_PER_WRITE):
            batch, is_last = (
                points[start : start + _POINTS_PER_WRITE],
                start + _POINTS_PER_WRITE >= len(points),
            )
            gone = [] if start else list(instead_of)
            # Cancelling the caller does not stop the engine, so the cache must learn of the write.
            write = asyncio.create_task(self._write(batch, gone, is_last=is_last))
            self._writes.add(write)
            write.add_done_callback(self._writes.discard)
            await asyncio.shield(write)

    async def search(self, queries: Sequence[Query]) -> list[list[Hit]]:
        asked = [query for query in queries if not query.is_empty]
        if not asked:
            return [[] for _ in queries]
        writes = self._payloads.writes
        self._searches += 1
        try:
            found_hits, new = await self._call("search", [_encode_query(each) for each in asked])
        finally:
            self._searches -= 1
        self._payloads.add(_decode_points(new), writes=writes)
        self._prefetch(asked[0].scope.owner_id)
        answers = [(_split_ids(ids), memoryview(scores).cast("d")) for ids, scores in found_hits]
        known = await self._load_payloads(number for numbers, _ in answers for number in numbers)
        found = iter(
            [
                # A point that was deleted in between has no payload.
                Hit(known[number][0], score, known[number][1])
                for number, score in zip(numbers, scores, strict=True)
                if number in known
            ]
            for numbers, scores in answers
        )
        return [[] if query.is_empty else next(found) for query in queries]

    async def dense_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Floats]:
        if self._dimension is None or not ids:
            return {}
        found = await self._call("vectors", list(ids))
        return {UUID(bytes=each): np.frombuffer(vector, dtype=np.float32) for each, vector in found}

    async def term_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Sparse]:
        if not ids:
            return {}
        found = await self._call("term_vectors", list(ids))
        return {
            UUID(bytes=each): Sparse(
                np.frombuffer(vector.ids, dtype=np.uint32),
                np.frombuffer(vector.weights, dtype=np.float32),
            )
            for each, vector in found
        }

    async def delete_sources(self, owner_id: UUID, source_ids: Sequence[UUID]) -> None:
        if source_ids:
            await self._call("delete", owner_id, sources=list(source_ids))

    async def delete_container(self, owner_id: UUID, container_id: UUID) -> None:
        await self._call("delete", owner_id, container_id=container_id)

    async def delete_owner(self, owner_id: UUID) -> None:
        await self._call("delete", owner_id)
        self._payloads.forget(owner_id)
        if ahead := self._prefetches.pop(owner_id, None):
            ahead.cancel()

    async def scan(
        self, owner_id: UUID, *, container_id: UUID | None = None
    ) -> AsyncIterator[Sequence[tuple[UUID, Payload]]]:
        offset: Any = None
        while True:
            page, offset = await self._call(
                "page", owner_id, container_id, offset, most=_PAGE_POINTS, is_kept=False
            )
            if page:
                yield _decode_points(page)
            if offset is None:
                return

    async def owners(self) -> set[UUID]:
        return {UUID(each) for each in await self._call("owners")}

    async def count(self, owner_id: UUID | None = None) -> int:
        count: int = await self._call("count", owner_id)
        return count

    async def ping(self) -> None:
        await self._call("ping")

    async def aclose(self) -> None:
        self._is_closed = True
        for ahead in self._prefetches.values():
            ahead.cancel()
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    def _prefetch(self, owner_id: UUID) -> None:
        if owner_id in self._prefetches:
            return
        if len(self._prefetches) >= _MAX_PREFETCHES:
            self._prefetches.pop(next(iter(self._prefetches))).cancel()
        self._prefetches[owner_id] = asyncio.create_task(self._prefetch_pages(owner_id))

    async def _prefetch_pages(self, owner_id: UUID) -> None:
        """Read a user's payloads while there is no search and while the cache has room."""
        payloads, offset = self._payloads, None
        with contextlib.suppress(IndexUnavailableError):  # a search reads missing payloads
            while payloads is self._payloads and payloads.has_room(_PREFETCH_POINTS):
                await asyncio.sleep(_PREFETCH_PAUSE_SECONDS)
                if self._searches:
                    continue
                writes = payloads.writes
                page, offset = await self._call(
                    "page", owner_id, None, offset, most=_PREFETCH_POINTS, is_kept=True
                )
                payloads.add(_decode_points(page), writes=writes)
                if offset is None:
                    return

    async def _load_payloads(self, numbers: Iterable[int]) -> dict[int, PointPayload]:
        wanted = set(numbers)
        known, writes = self._payloads.get(wanted), self._payloads.writes
        missing = [UUID(int=number) for number in wanted - known.keys()]
        if missing:
            read = _decode_points(await self._call("payloads", missing))
            self._payloads.add(read, writes=writes)
            known |= {each[0].int: each for each in read}
        return known

    async def _write(
        self, points: Sequence[Point], instead_of: list[UUID], *, is_last: bool
    ) -> None:
        made = [_encode_point(each) for each in points]
        await self._call("upsert", made, instead_of=instead_of, syncs=is_last)
        self._payloads.write((each.id, each.payload) for each in points)

    async def _call(self, method: str, *arguments: object, **options: object) -> Any:
        """Call the engine, and start it if needed. Any failure is an `IndexUnavailableError`."""
        try:
            process = self._process
            if process is None or process.is_gone:
                process = await self._restart()
            return await process.call(method, *arguments, **options)
        except EngineError as error:
            raise IndexUnavailableError(self._failed) from error

    async def _restart(self) -> EngineProcess:
        """Replace a process that ended, unless it ended a moment ago."""
        async with self._starting:
            if self._is_closed:
                raise IndexUnavailableError("The index is closed.")
            if self._process is not None and self._process.is_gone:
                ended, self._process = self._process, None
                self._starts.note_failure()
                await ended.end()
            if self._process is None:
                if not self._starts.is_due():
                    raise EngineError("The index process ended a moment ago.")
                log.warning("index.engine_started_again")
                await self._start()
            if self._process is None:
                raise IndexUnavailableError("The index is closed.")
            return self._process

    async def _start(self) -> None:
        """Start the engine and open the collection. Only the first call may create it.

        Raises `EngineError` if the folder is faulty, otherwise `IndexUnavailableError`.
        """
        # It is unknown whether the last process completed its writes.
        self._payloads = PayloadCache()
        self._prefetches.clear()
        try:
            process = await EngineProcess.start()
        except OSError as error:
            self._starts.note_failure(error)
            raise EngineError(
                "The index process cannot be started.", kind=type(error).__name__
            ) from error
        try:
            is_new, was_damaged = await process.call(
                "open", self._folder, self.name, self._dimension, may_create=not self._was_open
            )
        except BaseException as error:
            self._starts.note_failure(error)
            await process.end()
            raise
        self._starts.note_success()
        if was_damaged:
            log.warning("index.made_anew")
        if not self._was_open:
            self._was_open, self.is_new = True, is_new
        self._process = process

    @property
    def _failed(self) -> str:
        return (
            f"The index {self.name} in the data folder failed. Run `talekeeper doctor` to check "
            "its folder and the disk. If both are fine, restart and rebuild the index with "
            "`talekeeper reindex`."
        )


def _encode_point(point: Point) -> PointMessage:
    return PointMessage(
        point.id,
        point.payload.encode(),
        {name: _encode_floats(vector) for name, vector in point.dense.items()},
        {name: _encode_sparse(terms) for name, terms in point.sparse.items()},
    )


def _encode_query(query: Query) -> QueryMessage:
    near = query.near
    sent = _encode_sparse(near) if isinstance(near, Sparse) else _encode_floats(near)
    return QueryMessage(query.vector, sent, query.scope, query.limit)


def _encode_sparse(terms: Sparse) -> SparseMessage:
    return SparseMessage(terms.ids.astype(np.uint32).tobytes(), _encode_floats(terms.weights))


def _encode_floats(numbers: Floats) -> bytes:
    return numbers.astype(np.float32).tobytes()


def _decode_points(points: Iterable[tuple[bytes, Any]]) -> list[PointPayload]:
    return [(UUID(bytes=each), Payload.decode(payload)) for each, payload in points]


def _split_ids(ids: bytes) -> list[int]:
    return [int.from_bytes(ids[at : at + ID_BYTES]) for at in range(0, len(ids), ID_BYTES)]
