"""Threads for work over users' texts, beside the event loop that serves everybody.

Work that may take more than 10 ms of a processor goes through `CpuPool.run`: counting tokens,
cutting texts, reading files, making terms, scanning lorebooks, sealing many rows. The default
executor is left to work that must not wait: storing replies, files, drivers.

Python cannot stop a thread. So long loops call `check_stopped`, which ends work that no one waits
for any more.

The work gets plain values, or rows that no session holds any more, which it only reads, and gives
plain values back. Sessions, and rows that belong to one, stay on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from backend.errors import BadRequestError, TooManyRequestsError, UnavailableError

T = TypeVar("T")

INLINE_CHARACTERS = 4_000
"""Characters that are worked on at once, on the loop: a millisecond of counting tokens, which is
about the slowest work there is. A thread takes a tenth of that to be woken."""

SEALED_FACTOR = 250
"""So many bytes are sealed or opened in the time that counting one character takes."""

MAX_WAITING = 32
"""Pieces of one user's work that wait; more are refused."""

SLOW_SECONDS = 2.0
"""Work that runs longer gives its place to others. Its user waits until it has ended."""

DEADLINE_SECONDS = 100.0
"""Work that runs longer is stopped, and its caller gets an error, before a proxy that waits for 120
seconds gives up. The largest import takes some ten seconds on an idle machine."""

CLOSE_SECONDS = 5.0

_THREADS = range(2, 5)
"""At least two, so that one user's work never holds them all. They share one interpreter lock, so
that more than a few only wait for each other, and keep the loop waiting."""

_SPARE_THREADS = 4
"""Threads that take the places of slow work. Each one that is busy can delay the loop by 5 ms."""

_stop: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar(
    "cpu_pool_stop", default=None
)


client_gone: contextvars.ContextVar[asyncio.Future[None] | None] = contextvars.ContextVar(
    "client_gone", default=None
)
"""Done if the client of the request has closed the connection. None if work goes on then."""


class WorkStoppedError(Exception):
    """Ends work if its caller was cancelled, or is past its deadline. No one catches it."""


def check_stopped() -> None:
    """Raise `WorkStoppedError` if no one waits for the running work any more.

    Call it in loops that can take more than a second. It takes 0.1 µs.
    """
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise WorkStoppedError


def resolve_structs(base: type[msgspec.Struct] = msgspec.Struct) -> None:
    """Have msgspec resolve the fields of all imported structs, before threads use them.

    It resolves a struct when it is first used. If another thread uses the struct meanwhile, the
    process crashes (msgspec 0.22). The first call takes 20 ms, later ones less than 1 ms.
    """
    for struct in base.__subclasses__():
        # A struct with a type that is not imported at run time is never decoded.
        with contextlib.suppress(NameError):
            msgspec.json.Decoder(struct)
        resolve_structs(struct)


class TooMuchWorkError(TooManyRequestsError):
    """Too much of one user's work over texts waits already."""

    slug, title = "too-much-work", "Too much work at once"

    def __init__(self) -> None:
        super().__init__(
            f"{MAX_WAITING} requests of yours wait for a processor. Wait until some are answered.",
            extra={"limit": MAX_WAITING},
            headers={"Retry-After": "1"},
        )


class ClientGoneError(BadRequestError):
    """The client closed the connection before the work on its text was done."""

    slug, title = "client-gone", "The client closed the connection"


class WorkTimeoutError(UnavailableError):
    """The work on a user's text took too long, and was stopped."""

    slug, title = "work-timeout", "The work took too long"

    def __init__(self) -> None:
        super().__init__(
            f"Working on your text took more than {DEADLINE_SECONDS:.0f} seconds. "
            "Send less text at once, or try again later.",
            extra={"seconds": DEADLINE_SECONDS},
        )


class _Share:
    """What one user has waiting. Requests go before jobs."""

    def __init__(self) -> None:
        self.requests: deque[asyncio.Future[None]] = deque()
        self.jobs: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> deque[asyncio.Future[None]]:
        return self.requests or self.jobs


class CpuPool:
    """A bounded number of threads, shared fairly: one piece of each user's work at a time.

    Users whose work waits get their turns one after the other, however much each of them has
    waiting. Slow work does not count: a few more threads take its place, so that the slow work of
    some users does not stop the others. Use it from one event loop.

    Args:
        threads: How many; as many as there are processors, within 2 and 4, where None.
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is None:
            threads = min(max(os.cpu_count() or 1, _THREADS.start), _THREADS.stop - 1)
        resolve_structs()
        self._executor = ThreadPoolExecutor(threads + _SPARE_THREADS, thread_name_prefix="cpu")
        self._threads = threads
        self._running: set[UUID] = set()
        self._slow: set[UUID] = set()
        # In the order in which they get their turns.
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
        """Do `work` in a thread, when it is the user's turn, with the caller's context variables.

        If the caller is cancelled or its `client_gone`, work that waits is dropped. Work that has
        begun goes on to its next `check_stopped`, and the user's next work waits until then.

        Args:
            user_id: Whose text it is.
            work: Takes a bounded time. A call of its own into C that holds the interpreter lock
                takes 50 ms at most: longer ones are to be cut.
            size: Characters that it goes over, as far as known beforehand. Up to `INLINE_CHARACTERS` it is done
                at once, in the caller's thread.
            is_job: It is no request: it waits behind the user's requests, and is never refused, for
                workers bound how many there are.

        Raises:
            TooMuchWorkError: Too much of the user's waits already.
            WorkTimeoutError: It ran for more than `DEADLINE_SECONDS`.
            ClientGoneError: The client of the request has closed the connection.
            UnavailableError: The pool is closed.
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
        await self._enter(user_id, is_job=is_job)
        stop = threading.Event()
        context = contextvars.copy_context()
        context.run(_stop.set, stop)
        loop = asyncio.get_running_loop()
        try:
            future = loop.run_in_executor(self._executor, context.run, work)
        except BaseException:
            self._leave(user_id)
            raise

        self._stops[future] = stop
        timer = loop.call_later(SLOW_SECONDS, self._give_place, user_id)

        def ended(future: asyncio.Future[Any]) -> None:
            timer.cancel()
            del self._stops[future]
            # Asked for, so that nobody is told of an error that nobody waits for any more.
            if not future.cancelled():
                future.exception()
            self._leave(user_id)

        future.add_done_callback(ended)
        try:
            await asyncio.wait((future,), timeout=DEADLINE_SECONDS)
            if not future.done():
                raise WorkTimeoutError
            return future.result()
        finally:
            stop.set()

    async def aclose(self) -> None:
        """Take no more work. Waiting work fails; running work is stopped after a few seconds."""
        self._is_closed = True
        for share in self._shares.values():
            for waiter in (*share.requests, *share.jobs):
                if not waiter.done():
                    waiter.set_exception(_closed())
        self._shares.clear()
        self._executor.shutdown(wait=False)
        if self._stops:
            await asyncio.wait(self._stops, timeout=CLOSE_SECONDS)
        for stop in self._stops.values():
            stop.set()

    @property
    def _free(self) -> int:
        return self._threads + min(len(self._slow), _SPARE_THREADS) - len(self._running)

    async def _enter(self, user_id: UUID, *, is_job: bool) -> None:
        """Take a place, as soon as a thread is free and none has work of this user's."""
        if self._is_closed:
            raise _closed()
        if self._free and user_id not in self._running:
            # A user waits for work of their own only: otherwise no thread would be free.
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
                self._leave(user_id)  # the place came at the same moment
            raise

    def _leave(self, user_id: UUID) -> None:
        """Give a place back, and hand free ones on."""
        self._running.discard(user_id)
        self._slow.discard(user_id)
        self._hand_out()

    def _give_place(self, user_id: UUID) -> None:
        """Start the work of others while the slow work of a user runs."""
        self._slow.add(user_id)
        self._hand_out()

    def _hand_out(self) -> None:
        """Start waiting work as long as places are free."""
        for waiting_id in list(self._shares):
            if not self._free:
                return
            if waiting_id not in self._running:
                self._hand_on(waiting_id, self._shares[waiting_id])

    def _hand_on(self, user_id: UUID, share: _Share) -> None:
        """Let the first of a user's work begin that somebody still waits for."""
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
"""What is sealed and opened again in some 2 ms."""


async def iterate_in_slices(
    items: Iterable[T], size: Callable[[T], int] = lambda _: 0
) -> AsyncIterator[T]:
    """The items, with pauses in which the loop serves others.

    For what is done inside of a transaction, which must never wait for a thread: everybody who
    writes to SQLite would wait with it.

    Args:
        items: What is worked on, a few microseconds each.
        size: Bytes that are sealed or opened for an item.
    """
    count = total = 0
    for item in items:
        yield item
        count, total = count + 1, total + size(item)
        if count >= SLICE_ITEMS or total >= SLICE_BYTES:
            count = total = 0
            await asyncio.sleep(0)


def _closed() -> UnavailableError:
    return UnavailableError("The server is stopping. Send it again in a moment.")
