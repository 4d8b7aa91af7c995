"""A thread pool for CPU-bound work on users' texts.

Work that may take more than 10 ms goes through `CpuPool.run`: counting tokens, splitting texts,
parsing files, scanning lorebooks, sealing many rows. The default executor is reserved for work that
must not wait: storing replies, files, drivers.

Python cannot stop a thread. Long loops therefore call `check_stopped`, which ends work without a
waiting caller.

Work takes plain values or detached rows, which it only reads, and returns plain values. Sessions
and attached rows stay on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from backend.errors import BadRequestError, TooManyRequestsError, UnavailableError

T = TypeVar("T")

INLINE_CHARACTERS = 4_000
"""Texts up to this length are processed on the event loop. Counting their tokens takes 1 ms."""

SEALED_FACTOR = 250
"""Bytes that are sealed or opened in the time of counting one character's tokens."""

MAX_WAITING = 32
"""Requests of one user that may wait; more are refused."""

SLOW_SECONDS = 2.0
"""After this time, another user's work may start as well. The slow user's next work still waits."""

DEADLINE_SECONDS = 100.0
"""After this time, work is stopped and its caller gets an error, before a proxy's usual 120 seconds
are over. The largest import takes about 10 seconds on an idle machine."""

CLOSE_SECONDS = 5.0

_THREADS = range(2, 5)
"""At least two, so that one user's work never occupies them all. At most four, because they share
the interpreter lock with the event loop."""

_SPARE_THREADS = 4
"""Additional threads while slow work runs. Each busy thread can delay the event loop by 5 ms."""

_stop: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar(
    "cpu_pool_stop", default=None
)


client_gone: contextvars.ContextVar[asyncio.Future[None] | None] = contextvars.ContextVar(
    "client_gone", default=None
)
"""Done when the client of the request closes the connection. None if the work continues then."""


_is_background: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "cpu_pool_is_background", default=False
)


@contextlib.contextmanager
def background_work() -> Generator[None]:
    """Let all work of the block count as that of a background job, also work in services."""
    token = _is_background.set(True)
    try:
        yield
    finally:
        _is_background.reset(token)


class WorkStoppedError(Exception):
    """Ends work whose caller was cancelled or timed out. Do not catch it."""


def check_stopped() -> None:
    """Raise `WorkStoppedError` if the running work has no waiting caller.

    Call it in loops that can take more than a second. A call takes 0.1 µs.
    """
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise WorkStoppedError


def resolve_structs(base: type[msgspec.Struct] = msgspec.Struct) -> None:
    """Make msgspec resolve the fields of all imported structs before threads use them.

    msgspec 0.22 resolves a struct at its first use, and crashes if two threads do so at the same
    time. The first call takes 20 ms, later ones less than 1 ms.
    """
    for struct in base.__subclasses__():
        # A struct with a type that is not imported at run time is never decoded.
        with contextlib.suppress(NameError):
            msgspec.json.Decoder(struct)
        resolve_structs(struct)


class TooMuchWorkError(TooManyRequestsError):
    """One user has too much work waiting in the pool."""

    slug, title = "too-much-work", "Too many text operations in progress"

    def __init__(self) -> None:
        super().__init__(
            f"{MAX_WAITING} of your requests are waiting. Try again when some are answered.",
            extra={"limit": MAX_WAITING},
            headers={"Retry-After": "1"},
        )


class ClientGoneError(BadRequestError):
    """The client closed the connection before its work was done."""

    slug, title = "client-gone", "The client closed the connection"


class WorkTimeoutError(UnavailableError):
    """Work on a user's text took too long and was stopped."""

    slug, title = "work-timeout", "The work took too long"

    def __init__(self) -> None:
        super().__init__(
            f"Processing your text took more than {DEADLINE_SECONDS:.0f} seconds. "
            "Send less text at a time, or try again later.",
            extra={"seconds": DEADLINE_SECONDS},
        )


class _Share:
    """The waiting work of one user. Requests precede jobs."""

    def __init__(self) -> None:
        self.requests: deque[asyncio.Future[None]] = deque()
        self.jobs: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> deque[asyncio.Future[None]]:
        return self.requests or self.jobs


class CpuPool:
    """A bounded number of threads that runs one piece of work per user at a time.

    Waiting users take turns. While slow work runs, a few more threads serve the other users. Use
    the pool from one event loop. By default there are 2 to 4 threads, one for each processor.
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is None:
            threads = min(max(os.cpu_count() or 1, _THREADS.start), _THREADS.stop - 1)
        resolve_structs()
        self._executor = ThreadPoolExecutor(threads + _SPARE_THREADS, thread_name_prefix="cpu")
        self._threads = threads
        self._running: set[UUID] = set()
        self._slow: set[UUID] = set()
        # In the order of the users' turns.
        self._shares: OrderedDict[UUID, _Share] = OrderedDict()
        self._stops: dict[asyncio.Future[Any], threading.Event] = {}
        self._is_closed = False

    async def run(
        self,
        user_id: UUID,
        work: Callable[[], T],
        *,
        size: int | None = None,
        is_job: bool = False,
    ) -> T:
        """Run `work` in a thread when it is the user's turn, with the caller's context variables.

        If the caller is cancelled or its client disconnects, waiting work is dropped. Running work
        ends at its next `check_stopped`, and the user's next work waits until then.

        Args:
            user_id: The owner of the text.
            work: A call into C that keeps the interpreter lock may take 50 ms at most.
            size: Characters to process. Up to `INLINE_CHARACTERS`, `work` runs in this thread.
            is_job: True for background jobs. They wait until the user's requests are done, and are
                never refused, because the worker limits their number.

        Raises `TooMuchWorkError`, `WorkTimeoutError`, `ClientGoneError`, and `UnavailableError` if
        the pool is closed.
        """
        if size is not None and size <= INLINE_CHARACTERS:
            return work()
        running = self._run(user_id, work, is_job=is_job)
        gone = client_gone.get()
        if gone is None:
            return await running
        task = asyncio.create_task(running)
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGoneError
            return task.result()
        finally:
            task.cancel()

    async def _run(self, user_id: UUID, work: Callable[[], T], *, is_job: bool) -> T:
        await self._wait_for_thread(user_id, is_job=is_job or _is_background.get())
        stop = threading.Event()
        context = contextvars.copy_context()
        context.run(_stop.set, stop)
        loop = asyncio.get_running_loop()
        try:
            future = loop.run_in_executor(self._executor, context.run, work)
        except BaseException:
            self._release_thread(user_id)
            raise

        self._stops[future] = stop
        timer = loop.call_later(SLOW_SECONDS, self._mark_slow, user_id)

        def finish(future: asyncio.Future[Any]) -> None:
            timer.cancel()
            del self._stops[future]
            # Retrieved, because asyncio reports errors that are never retrieved.
            if not future.cancelled():
                future.exception()
            self._release_thread(user_id)

        future.add_done_callback(finish)
        try:
            await asyncio.wait((future,), timeout=DEADLINE_SECONDS)
            if not future.done():
                raise WorkTimeoutError
            return future.result()
        finally:
            stop.set()

    async def aclose(self) -> None:
        """Close the pool. Waiting work fails; running work is stopped after `CLOSE_SECONDS`."""
        self._is_closed = True
        for share in self._shares.values():
            for waiter in (*share.requests, *share.jobs):
                if not waiter.done():
                    waiter.set_exception(_make_closed_error())
        self._shares.clear()
        self._executor.shutdown(wait=False)
        if self._stops:
            await asyncio.wait(self._stops, timeout=CLOSE_SECONDS)
        for stop in self._stops.values():
            stop.set()

    @property
    def _free(self) -> int:
        return self._threads + min(len(self._slow), _SPARE_THREADS) - len(self._running)

    async def _wait_for_thread(self, user_id: UUID, *, is_job: bool) -> None:
        if self._is_closed:
            raise _make_closed_error()
        if self._free and user_id not in self._running:
            # If a thread is free, a user can only be waiting for their own work.
            self._running.add(user_id)
            return
        share = self._shares.setdefault(user_id, _Share())
        if not is_job and len(share.requests) >= MAX_WAITING:
            raise TooMuchWorkError
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = share.jobs if is_job else share.requests
        queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in queue:
                queue.remove(waiter)
            elif not waiter.cancelled() and waiter.exception() is None:
                self._release_thread(user_id)  # a thread became free at the same moment
            raise

    def _release_thread(self, user_id: UUID) -> None:
        self._running.discard(user_id)
        self._slow.discard(user_id)
        self._start_waiting()

    def _mark_slow(self, user_id: UUID) -> None:
        self._slow.add(user_id)
        self._start_waiting()

    def _start_waiting(self) -> None:
        for waiting_id in list(self._shares):
            if not self._free:
                return
            if waiting_id not in self._running:
                self._start_next(waiting_id, self._shares[waiting_id])

    def _start_next(self, user_id: UUID, share: _Share) -> None:
        while share.waiting:
            waiter = share.waiting.popleft()
            if not waiter.done():
                self._running.add(user_id)
                waiter.set_result(None)
                break
        if share.waiting:
            self._shares.move_to_end(user_id)
        else:
            del self._shares[user_id]


SLICE_ITEMS = 200
SLICE_BYTES = 1_000_000
"""Sealing or opening this many bytes takes about 2 ms."""


async def iterate_in_slices(
    items: Iterable[T], size: Callable[[T], int] = lambda _: 0
) -> AsyncIterator[T]:
    """Yield the items, and let the event loop run other tasks between slices.

    Use it inside a transaction, which must not wait for a thread, because all writers of SQLite
    would wait as well. `size` returns the bytes that are sealed or opened for an item.
    """
    count = total = 0
    for item in items:
        yield item
        count, total = count + 1, total + size(item)
        if count >= SLICE_ITEMS or total >= SLICE_BYTES:
            count = total = 0
            await asyncio.sleep(0)


def _make_closed_error() -> UnavailableError:
    return UnavailableError("The server is stopping. Send it again in a moment.")
