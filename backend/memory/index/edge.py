"""Qdrant Edge: an index in the data folder, one folder a collection.

The engine has a process of its own (`edge_engine`), because it holds Python's lock while it works.
A collection's process ends with it. One that was killed is started again by the next call.
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
from backend.memory.index.protocol import (
    Floats,
    Hit,
    Payload,
    Point,
    Query,
    Sparse,
    check_dimensions,
)
from backend.memory.index.scope import IndexUnavailableError

Known = tuple[UUID, Payload]
"""A point's id and its payload."""


class PayloadCache:
    """Payloads by point, of a collection that this process alone writes to.

    It holds ids and numbers, nothing of a text. A point that was deleted may stay in it for a
    while: the engine finds it no more.

    Args:
        most: How many are kept, about. Those that were not asked for the longest time go first.

    Attributes:
        writes: How often something was written.
    """

    def __init__(self, most: int = PAYLOADS_KEPT) -> None:
        self._half = max(1, most // 2)
        self.writes = 0
        # By the numbers of ids: a UUID computes its hash in Python, ten times as slowly.
        self._young: dict[int, Known] = {}
        self._old: dict[int, Known] = {}
        self._ids: dict[int, UUID] = {}

    def has_room(self, count: int) -> bool:
        """Whether so many more can be kept without any of them going that were found lately."""
        return len(self._young) + count <= self._half

    def get(self, ids: Iterable[int]) -> dict[int, Known]:
        """What is kept of these points."""
        found: dict[int, Known] = {}
        for each in ids:
            known = self._young.get(each)
            if known is None and (known := self._old.get(each)) is not None:
                self._put(known)
            if known is not None:
                found[each] = known
        return found

    def add(self, points: Iterable[Known], *, writes: int) -> None:
        """Keep what was read, unless something was written since there were so many `writes`."""
        if writes == self.writes:
            for point_id, payload in points:
                self._put((point_id, self._shared(payload)))

    def write(self, points: Iterable[Known]) -> None:
        """Take note of what was written. What was not found lately is not kept for it."""
        self.writes += 1
        for point_id, payload in points:
            if point_id.int in self._young or point_id.int in self._old:
                self._put((point_id, self._shared(payload)))

    def forget(self, owner_id: UUID) -> None:
        """Drop all of a user's."""
        self.writes += 1
        self._ids.pop(owner_id.int, None)
        for kept in (self._young, self._old):
            for each in [each for each, (_, known) in kept.items() if known.owner_id == owner_id]:
                del kept[each]

    def _put(self, known: Known) -> None:
        if len(self._young) >= self._half:
            self._old, self._young, self._ids = self._young, {}, {}
        self._young[known[0].int] = known

    def _shared(self, payload: Payload) -> Payload:
        """With one object for each id that many payloads name: half the memory."""
        share, scene_id = self._ids.setdefault, payload.scene_id
        return replace(
            payload,
            owner_id=share(payload.owner_id.int, payload.owner_id),
            container_id=share(payload.container_id.int, payload.container_id),
            scene_id=None if scene_id is None else share(scene_id.int, scene_id),
        )


log = get_logger(__name__)

_PROGRAM = "backend.memory.index.edge_engine"
_END_SECONDS = 30.0
"""How long it may take to write everything out before it is killed."""

_LIMIT = 1 << 20


class EngineError(Exception):
    """A call failed, or the process is gone. `kind` is the type of the engine's error, if any."""

    def __init__(self, text: str, *, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class EngineProcess:
    """One running engine. Calls may be made side by side, all of them from one event loop."""

    _prepared: ClassVar[EngineProcess | None] = None

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("Pipes were asked for.")
        self._process = process
        self._in, self._out = process.stdin, process.stdout
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def prepare(cls) -> None:
        """Start the one that the next `start` gives: it comes up while other things are done.

        A failure is left to `start`, which tries again.
        """
        with contextlib.suppress(OSError):
            EngineProcess._prepared = await cls._started()

    @classmethod
    async def start(cls) -> EngineProcess:
        """One that runs."""
        prepared, EngineProcess._prepared = EngineProcess._prepared, None
        return prepared if prepared and not prepared.is_gone else await cls._started()

    @classmethod
    async def _started(cls) -> Self:
        """A new one, with an empty environment: no key and no password gets there."""
        return cls(
            await asyncio.create_subprocess_exec(
                *helper_command(_PROGRAM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LIMIT,
                **helper_options(),
            )
        )

    @property
    def is_gone(self) -> bool:
        """True if it takes no more calls: its input closes a moment before its output does."""
        return self._reading.done() or self._in.is_closing()

    async def call(self, method: str, *arguments: object, **options: object) -> Any:
        """What a method of `Engine` gives back.

        Raises:
            IndexUnavailableError: As the method says.
            EngineError: Whatever else went wrong.
        """
        if self.is_gone:
            raise EngineError("The engine's process is gone.")
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._in.write(framed((number, method, arguments, options)))
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
        """Let it finish its calls, write everything out, and end."""
        self._in.close()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._reading
        except TimeoutError:
            log.warning("index.engine_killed")
            self._process.kill()
        if code := await self._process.wait():
            log.warning("index.engine_ended", exit_code=code)

    async def _read(self) -> None:
        try:
            while True:
                head = await self._out.readexactly(HEAD)
                message = await self._out.readexactly(int.from_bytes(head))
                number: int
                outcome: Outcome
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


async def engine_starts() -> bool:
    """True if an engine can be started, and answers. It opens no collection."""
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


_BATCH = 32
_PAGE = 500
_PAGE_AHEAD = 100
"""Points whose payloads are read ahead at a time: 2 ms that a search may have to wait."""

_MAX_AHEAD = 1_000
"""Largest number of users with payloads that are read ahead; above it the oldest are dropped."""

_PAUSE_AHEAD = 0.01
"""Seconds between two of these pages."""


async def open_edge(folder: Path, name: str, dimension: int | None) -> EdgeIndex:
    """Open the collection `name` below `folder`, or make it.

    A damaged collection, or one of another format or dimension, is deleted and made again, empty:
    `is_new` says so, and everything in it can be indexed again from the database. While the folder
    is at fault, every call raises `IndexUnavailableError` and tries to open it again.

    Args:
        folder: Where collections live, each in a folder of its name.
        name: Letters, digits, `_` and `-`.
        dimension: Of the dense vectors; None for a collection without any.

    Raises:
        IndexUnavailableError: When another process has it open.
    """
    index = EdgeIndex(folder, name, dimension)
    await index.open()
    return index


def folders_in(folder: Path) -> set[str]:
    """The names of the collections in a folder."""
    return {path.stem for path in folder.glob("*.[0-9]*") if path.is_dir()}


class EdgeIndex:
    """A `VectorIndex` in the data folder. Made by `open_edge`, and used from one event loop."""

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
        self._ahead: dict[UUID, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Start the engine. Raises `IndexUnavailableError` if another process has it open."""
        try:
            await self._start()
        except EngineError as error:
            # The server runs without the index until a later call can open it.
            log.warning("index.not_opened", collection=self.name, error_type=error.kind)
        except BaseException:
            await self.aclose()
            raise

    async def upsert(self, points: Sequence[Point], *, instead_of: Sequence[UUID] = ()) -> None:
        """Store points, in place of those with their ids and those of rows; see `VectorIndex`."""
        check_dimensions(points, self._dimension)
        for start in range(0, len(points), _BATCH):
            batch, is_last = points[start : start + _BATCH], start + _BATCH >= len(points)
            gone = [] if start else list(instead_of)
            # Who gives up waiting does not stop the engine: what it writes is taken note of.
            write = asyncio.create_task(self._write(batch, gone, is_last=is_last))
            self._writes.add(write)
            write.add_done_callback(self._writes.discard)
            await asyncio.shield(write)

    async def search(self, queries: Sequence[Query]) -> list[list[Hit]]:
        """Answer all queries, each with its hits, best first."""
        asked = [query for query in queries if not query.is_empty]
        if not asked:
            return [[] for _ in queries]
        writes = self._payloads.writes
        self._searches += 1
        try:
            found_hits, new = await self._call("search", [_query_message(each) for each in asked])
        finally:
            self._searches -= 1
        self._payloads.add(_decoded(new), writes=writes)
        self._read_ahead(asked[0].scope.owner_id)
        answers = [(_numbers(ids), memoryview(scores).cast("d")) for ids, scores in found_hits]
        known = await self._known(number for numbers, _ in answers for number in numbers)
        found = iter(
            [
                # What was deleted in between has no payload.
                Hit(known[number][0], score, known[number][1])
                for number, score in zip(numbers, scores, strict=True)
                if number in known
            ]
            for numbers, scores in answers
        )
        return [[] if query.is_empty else next(found) for query in queries]

    async def dense_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Floats]:
        """The `dense` vectors of points, for those that have one."""
        if self._dimension is None or not ids:
            return {}
        found = await self._call("vectors", list(ids))
        return {UUID(bytes=each): np.frombuffer(vector, dtype=np.float32) for each, vector in found}

    async def term_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Sparse]:
        """The `sparse` vectors of points, for those that have one."""
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
        """Delete every point of these rows."""
        if source_ids:
            await self._call("delete", owner_id, sources=list(source_ids))

    async def delete_container(self, owner_id: UUID, container_id: UUID) -> None:
        """Delete every point of a container."""
        await self._call("delete", owner_id, container_id=container_id)

    async def delete_owner(self, owner_id: UUID) -> None:
        """Delete every point of a user's."""
        await self._call("delete", owner_id)
        self._payloads.forget(owner_id)
        if ahead := self._ahead.pop(owner_id, None):
            ahead.cancel()

    async def scan(
        self, owner_id: UUID, *, container_id: UUID | None = None
    ) -> AsyncIterator[Sequence[tuple[UUID, Payload]]]:
        """Every point of a user's, in pages, without vectors."""
        offset: Any = None
        while True:
            page, offset = await self._call(
                "page", owner_id, container_id, offset, most=_PAGE, is_kept=False
            )
            if page:
                yield _decoded(page)
            if offset is None:
                return

    async def owners(self) -> set[UUID]:
        """Everybody who has points."""
        return {UUID(each) for each in await self._call("owners")}

    async def count(self, owner_id: UUID | None = None) -> int:
        """How many points there are, of one user or of all."""
        count: int = await self._call("count", owner_id)
        return count

    async def ping(self) -> None:
        """Raise `IndexUnavailableError` unless it answers."""
        await self._call("ping")

    async def aclose(self) -> None:
        """Write everything out and let go. Twice is as good as once."""
        self._is_closed = True
        for ahead in self._ahead.values():
            ahead.cancel()
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    def _read_ahead(self, owner_id: UUID) -> None:
        """Have the payloads of a user who searches come before they are found."""
        if owner_id in self._ahead:
            return
        if len(self._ahead) >= _MAX_AHEAD:
            self._ahead.pop(next(iter(self._ahead))).cancel()
        self._ahead[owner_id] = asyncio.create_task(self._pages_ahead(owner_id))

    async def _pages_ahead(self, owner_id: UUID) -> None:
        """Read a user's payloads while nothing is searched for, and while there is room."""
        payloads, offset = self._payloads, None
        with contextlib.suppress(IndexUnavailableError):  # they are read when they are found
            while payloads is self._payloads and payloads.has_room(_PAGE_AHEAD):
                await asyncio.sleep(_PAUSE_AHEAD)
                if self._searches:
                    continue
                writes = payloads.writes
                page, offset = await self._call(
                    "page", owner_id, None, offset, most=_PAGE_AHEAD, is_kept=True
                )
                payloads.add(_decoded(page), writes=writes)
                if offset is None:
                    return

    async def _known(self, numbers: Iterable[int]) -> dict[int, Known]:
        """Points with their payloads, by the numbers of their ids."""
        wanted = set(numbers)
        known, writes = self._payloads.get(wanted), self._payloads.writes
        missing = [UUID(int=number) for number in wanted - known.keys()]
        if missing:
            read = _decoded(await self._call("payloads", missing))
            self._payloads.add(read, writes=writes)
            known |= {each[0].int: each for each in read}
        return known

    async def _write(
        self, points: Sequence[Point], instead_of: list[UUID], *, is_last: bool
    ) -> None:
        made = [_point_message(each) for each in points]
        await self._call("upsert", made, instead_of=instead_of, syncs=is_last)
        self._payloads.write((each.id, each.payload) for each in points)

    async def _call(self, method: str, *arguments: object, **options: object) -> Any:
        """Have the engine do something. Raises `IndexUnavailableError` whatever goes wrong."""
        try:
            process = self._process
            if process is None or process.is_gone:
                process = await self._started_again()
            return await process.call(method, *arguments, **options)
        except EngineError as error:
            raise IndexUnavailableError(self._failed) from error

    async def _started_again(self) -> EngineProcess:
        """The process, in place of one that is gone."""
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
        """Start the engine and open the collection, which only the first opening may make.

        Raises:
            EngineError: The folder is at fault.
            IndexUnavailableError: Another process has it open, or it may not be made.
        """
        # Of what was being written when the last one ended nothing is known.
        self._payloads = PayloadCache()
        self._ahead.clear()
        try:
            process = await EngineProcess.start()
        except OSError as error:
            self._starts.note_failure(error)
            raise EngineError(
                "The index process cannot be started.", kind=type(error).__name__
            ) from error
        try:
            is_new, was_damaged = await process.call(
                "open", self._folder, self.name, self._dimension, may_make=not self._was_open
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
            f"The index {self.name} in the data folder failed. `talekeeper doctor` says if "
            "its folder or the disk is at fault; otherwise restart, and rebuild it with "
            "`talekeeper reindex`."
        )


def _point_message(point: Point) -> PointMessage:
    return PointMessage(
        point.id,
        point.payload.encoded(),
        {name: _float_bytes(vector) for name, vector in point.dense.items()},
        {name: _sparse_message(terms) for name, terms in point.sparse.items()},
    )


def _query_message(query: Query) -> QueryMessage:
    near = query.near
    sent = _sparse_message(near) if isinstance(near, Sparse) else _float_bytes(near)
    return QueryMessage(query.vector, sent, query.scope, query.limit)


def _sparse_message(terms: Sparse) -> SparseMessage:
    return SparseMessage(terms.ids.astype(np.uint32).tobytes(), _float_bytes(terms.weights))


def _float_bytes(numbers: Floats) -> bytes:
    return numbers.astype(np.float32).tobytes()


def _decoded(points: Iterable[tuple[bytes, Any]]) -> list[Known]:
    return [(UUID(bytes=each), Payload.decoded(payload)) for each, payload in points]


def _numbers(ids: bytes) -> list[int]:
    """The numbers of ids, which stand one behind the other."""
    return [int.from_bytes(ids[at : at + ID]) for at in range(0, len(ids), ID)]
