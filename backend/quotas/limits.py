"""Definitions of the quotas, and the limits on rates and concurrent work of this process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Generator, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from backend.database.base import now
from backend.errors import AppError, TooLargeError, TooManyRequestsError
from backend.settings import Settings

Unit = Literal["bytes", "chats", "entries", "requests", "at once", "jobs", "tokens"]


class QuotaExceededError(TooManyRequestsError):
    """A rate limit or a limit on concurrent work is reached. Wait for `retry_after` seconds."""

    slug, title = "quota-exceeded", "Quota exceeded"


class StorageQuotaExceededError(TooLargeError):
    """The account has reached its storage limit. Delete something to make room."""

    slug, title = "storage-quota-exceeded", "Storage quota exceeded"


class TooManyFromAddressError(TooManyRequestsError):
    """Too many requests without sign-in came from one address."""

    slug, title = "too-many-from-address", "Too many requests from your address"


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit of one account.

    Args:
        name: Name in problems and in `GET /me/usage`.
        unit: Unit of the limit.
        advice: Advice to the user.
        is_stored: True for storage, which is freed by deleting something. Rates and concurrent work
            become free with time.
        retry_after: Seconds after which to retry, if the exact time is unknown.
    """

    name: str
    unit: Unit
    advice: str
    is_stored: bool = False
    retry_after: int | None = None

    def get_limit(self, settings: Settings) -> int:
        """Return the limit of this installation; 0 for no limit."""
        limit: int = getattr(settings, f"max_{self.name}_per_user")
        return limit

    def make_error(
        self, *, limit: int, used: int, wait: float | None = None, at: datetime | None = None
    ) -> AppError:
        """Make the error of a request that exceeds the limit.

        Args:
            limit: The limit.
            used: The usage, in `unit`.
            wait: Seconds until there is room again, if known.
            at: The current time, by default now.
        """
        detail = f"{used:,} of {limit:,} {self.unit}: {self.advice}"
        frees_at = (at or now()) + timedelta(seconds=wait) if wait is not None else None
        extra: dict[str, Any] = {
            "quota": self.name,
            "limit": limit,
            "used": used,
            "unit": self.unit,
            "frees_at": frees_at.isoformat() if frees_at else None,
        }
        if self.is_stored:
            return StorageQuotaExceededError(detail, extra=extra)
        seconds = self.retry_after if wait is None else max(1, round(wait + 0.5))
        return QuotaExceededError(detail, extra=extra, retry_after=seconds)


STORED_BYTES = Quota(
    "stored_bytes",
    "bytes",
    "delete chats, characters or lorebooks to make room. Reading and exporting still work.",
    is_stored=True,
)
CHATS = Quota("chats", "chats", "delete chats that you no longer need.", is_stored=True)
LOREBOOK_ENTRIES = Quota(
    "lorebook_entries",
    "entries",
    "delete lorebooks or entries that you no longer need.",
    is_stored=True,
)
REQUESTS = Quota("requests_per_minute", "requests", "send fewer requests per minute.")
REQUESTS_AT_ONCE = Quota(
    "requests_at_once",
    "at once",
    "wait until some of your requests are answered.",
    retry_after=1,
)
TURNS = Quota(
    "turns",
    "at once",
    "wait until one of your turns or suggestions has ended, or stop one.",
    retry_after=1,
)
PREVIEWS = Quota(
    "previews",
    "at once",
    "wait until one of your previews, token counts or tests has ended.",
    retry_after=1,
)
STREAMS = Quota(
    "streams",
    "at once",
    "close a page or program that follows your turns or jobs.",
    retry_after=5,
)
UPLOADS = Quota("uploads", "at once", "wait until your other upload has ended.", retry_after=5)
UPLOAD_BYTES = Quota(
    "upload_bytes", "bytes", "wait until your current upload has arrived.", retry_after=5
)
QUEUED_JOBS = Quota(
    "queued_jobs",
    "jobs",
    "wait until some of your jobs are done, or stop some.",
    retry_after=60,
)
TOKENS_PER_DAY = Quota(
    "tokens_per_day",
    "tokens",
    "today's tokens are used up. They are reset at midnight UTC.",
)

QUOTAS = (
    STORED_BYTES,
    CHATS,
    LOREBOOK_ENTRIES,
    REQUESTS,
    REQUESTS_AT_ONCE,
    TURNS,
    PREVIEWS,
    STREAMS,
    UPLOADS,
    UPLOAD_BYTES,
    QUEUED_JOBS,
    TOKENS_PER_DAY,
)
"""All quotas, in display order."""


SECONDS_PER_MINUTE = 60.0
SWEEP_INTERVAL_SECONDS = 60.0
"""Interval at which unused keys are removed."""
_ROUNDING = 1e-6


CHECK_INTERVAL_SECONDS = 5.0
"""Time for which a known amount of free storage is used."""
MIN_FREE_BYTES = 256 * 2**20
"""Free storage from which an account is not checked at each request."""


class FreeRoom:
    """Accounts with plenty of free storage, so that not every request has to query it.

    With several processes, each of them accepts up to half of the free storage before it checks
    again.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free: dict[Hashable, int] = {}
        self._emptied_at = clock()

    def record(self, key: Hashable, free: int) -> None:
        """Record the free storage. Half of it may be taken before the next check."""
        if free >= MIN_FREE_BYTES:
            self._free[key] = free // 2

    def take(self, key: Hashable, size: int) -> bool:
        """Take `size` bytes. False if the storage must be checked."""
        at = self._clock()
        if at - self._emptied_at >= CHECK_INTERVAL_SECONDS:
            self._emptied_at = at
            self._free.clear()
        free = self._free.get(key, 0) - size
        if free <= 0:
            return False
        self._free[key] = free
        return True


def divide_limit(total: int, processes: int) -> int:
    """Return the share of one process, at least 1; 0 for no limit."""
    return max(1, total // processes) if total else 0


class RateLimit:
    """Allows `per_minute` requests at once, refilled evenly over a minute. 0: no limit.

    Stores for each key the time at which all requests are available again. Each process counts its
    own requests, and has a share of the limit.
    """

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = self._total = per_minute
        self._clock = clock
        self._full_at: dict[Hashable, float] = {}
        self._swept_at = clock()

    def __len__(self) -> int:
        return len(self._full_at)

    def divide(self, processes: int) -> None:
        """Set this process's share. Requests that were counted keep their time."""
        self.per_minute = divide_limit(self._total, processes)

    def take(self, key: Hashable) -> float:
        """Count a request and return 0, or return the seconds to wait without counting it."""
        if not self.per_minute:
            return 0.0
        at = self._clock()
        if at - self._swept_at >= SWEEP_INTERVAL_SECONDS:
            self._swept_at = at
            self._full_at = {each: full for each, full in self._full_at.items() if full > at}
        full_at = max(at, self._full_at.get(key, at)) + SECONDS_PER_MINUTE / self.per_minute
        wait = full_at - at - SECONDS_PER_MINUTE
        if wait > _ROUNDING:
            return wait
        self._full_at[key] = full_at
        return 0.0

    def used(self, key: Hashable) -> int:
        """Return the number of used requests."""
        return round(self.seconds_until_full(key) * self.per_minute / SECONDS_PER_MINUTE)

    def seconds_until_full(self, key: Hashable) -> float:
        """Return the seconds until all requests are available again."""
        at = self._clock()
        return max(0.0, self._full_at.get(key, at) - at)


class Permit:
    """A piece of running work."""

    def __init__(self) -> None:
        self.event: asyncio.Event | None = None

    def extend(self, event: asyncio.Event) -> None:
        """Keep the permit until the event, instead of the end of the block."""
        self.event = event


class ConcurrencyLimit:
    """Limits the concurrent work of each account. 0: no limit."""

    def __init__(self, quota: Quota, limit: int) -> None:
        self.quota = quota
        self.limit = self._total = limit
        self._held: Counter[UUID] = Counter()
        self._queues: dict[UUID, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._later: set[asyncio.Task[None]] = set()

    def divide(self, processes: int) -> None:
        """Set this process's share. Running work continues; waiting work starts if it fits."""
        self.limit = divide_limit(self._total, processes)
        for user_id in list(self._queues):
            self._admit(user_id)

    def used(self, user_id: UUID) -> int:
        """Return the amount of an account's running work."""
        return self._held[user_id]

    @contextlib.contextmanager
    def hold(self, user_id: UUID, amount: int = 1) -> Generator[Permit]:
        """Take `amount` until the end of the block, or longer if the permit is extended.

        Raises `QuotaExceededError` if that exceeds the limit.
        """
        if not self._fits(user_id, amount):
            raise self._make_error(user_id)
        self._held[user_id] += amount
        permit = Permit()
        try:
            yield permit
        finally:
            if permit.event is None:
                self._release(user_id, amount)
            else:
                task = asyncio.create_task(self._release_after(user_id, amount, permit.event))
                self._later.add(task)
                task.add_done_callback(self._later.discard)

    @contextlib.asynccontextmanager
    async def wait(
        self, user_id: UUID, amount: int = 1, *, patience: float, queue: int
    ) -> AsyncGenerator[None]:
        """Take `amount` for the length of the block; wait for it in the order of arrival.

        Raises `QuotaExceededError` after `patience` seconds, and at once where `queue` others wait.
        """
        if not self._fits(user_id, amount) or self._queues.get(user_id):
            await self._wait_in_line(user_id, amount, patience=patience, queue=queue)
        else:
            self._held[user_id] += amount
        try:
            yield
        finally:
            self._release(user_id, amount)

    async def _wait_in_line(
        self, user_id: UUID, amount: int, *, patience: float, queue: int
    ) -> None:
        line = self._queues.setdefault(user_id, deque())
        if len(line) >= queue:
            raise self._make_error(user_id)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (amount, turn)
        line.append(place)
        try:
            async with asyncio.timeout(patience):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                # It was admitted at the moment of the timeout.
                self._release(user_id, amount)
            else:
                with contextlib.suppress(ValueError):  # it may have been skipped already
                    line.remove(place)
                self._admit(user_id)
            if isinstance(error, TimeoutError):
                raise self._make_error(user_id) from None
            raise

    def _admit(self, user_id: UUID) -> None:
        """Admit waiting work in order while there is room."""
        line = self._queues.get(user_id)
        while line and self._fits(user_id, line[0][0]):
            amount, turn = line.popleft()
            if not turn.done():
                self._held[user_id] += amount
                turn.set_result(None)
        if line is not None and not line:
            del self._queues[user_id]

    def _fits(self, user_id: UUID, amount: int) -> bool:
        """True if there is room. A single request always fits, because its size is limited."""
        held = self._held[user_id]
        return not self.limit or not held or held + amount <= self.limit

    def _make_error(self, user_id: UUID) -> AppError:
        return self.quota.make_error(limit=self.limit, used=self.used(user_id))

    async def _release_after(self, user_id: UUID, amount: int, event: asyncio.Event) -> None:
        await event.wait()
        self._release(user_id, amount)

    def _release(self, user_id: UUID, amount: int) -> None:
        self._held[user_id] -= amount
        if not self._held[user_id]:
            del self._held[user_id]
        self._admit(user_id)
