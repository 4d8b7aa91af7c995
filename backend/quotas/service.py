"""`Quotas`: the counters of every account, and the questions that requests ask of them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository as accounts
from backend.database.base import now
from backend.database.engine import Database
from backend.jobs.models import Job
from backend.quotas import definitions as quotas
from backend.quotas.concurrency import ConcurrencyLimit
from backend.quotas.definitions import QUOTAS, Quota
from backend.quotas.errors import TooManyFromAddressError
from backend.quotas.schemas import AccountUsage, QuotaUsage
from backend.quotas.storage import stored_bytes
from backend.quotas.tokens import seconds_until_tomorrow, tokens_on
from backend.settings import Settings

SWEEP_EVERY = 60.0
"""Seconds between two looks for buckets that are full again, and so can be forgotten."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class RateLimit:
    """Lets `per_minute` requests through at once, and as many more in each minute; 0 is no limit.

    A bucket holds `per_minute` tokens, a request takes one, and they come back evenly. With several
    processes, each counts what it serves itself.
    """

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._buckets: dict[Hashable, _Bucket] = {}
        self._swept_at = clock()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: Hashable) -> float:
        """Take a token: 0.0, or the seconds until there is one, and then none was taken."""
        if not self.per_minute:
            return 0.0
        at = self._clock()
        if at - self._swept_at >= SWEEP_EVERY:
            self._sweep(at)
        bucket = self._buckets.setdefault(key, _Bucket(self.per_minute, at))
        self._refill(bucket, at)
        if bucket.tokens < 1:
            return (1 - bucket.tokens) * 60 / self.per_minute
        bucket.tokens -= 1
        return 0.0

    def used(self, key: Hashable) -> int:
        """Tokens that are out of a bucket now."""
        bucket = self._buckets.get(key)
        if bucket is None or not self.per_minute:
            return 0
        self._refill(bucket, self._clock())
        return round(self.per_minute - bucket.tokens)

    def seconds_until_full(self, key: Hashable) -> float:
        """Seconds until all of a bucket's tokens are back."""
        return self.used(key) * 60 / self.per_minute if self.per_minute else 0.0

    def _refill(self, bucket: _Bucket, at: float) -> None:
        back = (at - bucket.at) * self.per_minute / 60
        bucket.tokens, bucket.at = min(self.per_minute, bucket.tokens + back), at

    def _sweep(self, at: float) -> None:
        self._swept_at = at
        for key, bucket in list(self._buckets.items()):
            self._refill(bucket, at)
            if bucket.tokens >= self.per_minute:
                del self._buckets[key]


Count = Callable[[AsyncSession, UUID], Awaitable[int]]
"""How many rows of one kind an account has."""

CheckAdded = Callable[[AsyncSession, UUID], Awaitable[None]]
"""`Quotas.check_added` of one quota."""

LIVE_JOBS = ("queued", "waiting_key", "running")


class Quotas:
    """Every quota of every account.

    Rates and what is under way are counted in this process's memory, the rest in the database.

    Args:
        counts: How many chats and lorebook entries an account has, by the quota's name.
    """

    def __init__(
        self, database: Database, settings: Settings, *, counts: Mapping[str, Count]
    ) -> None:
        self._database = database
        self._settings = settings
        self._counts = counts
        self.requests = RateLimit(quotas.REQUESTS.limit(settings))
        self.addresses = RateLimit(settings.max_requests_per_minute_per_address)
        self.requests_at_once = self._at_once(quotas.REQUESTS_AT_ONCE)
        self.turns = self._at_once(quotas.TURNS)
        self.previews = self._at_once(quotas.PREVIEWS)
        self.streams = self._at_once(quotas.STREAMS)
        self.uploads = self._at_once(quotas.UPLOADS)
        self.upload_bytes = self._at_once(quotas.UPLOAD_BYTES)

    def count_request(self, user_id: UUID) -> None:
        """Count a request of an account's. Raises `QuotaExceededError`."""
        if wait := self.requests.take(user_id):
            limit = self.requests.per_minute
            raise quotas.REQUESTS.exceeded(limit=limit, used=self.requests.used(user_id), wait=wait)

    def count_from_address(self, address: str) -> None:
        """Count a request by somebody who is not signed in. Raises `TooManyFromAddressError`."""
        if wait := self.addresses.take(address):
            raise TooManyFromAddressError(int(wait) + 1)

    async def check_storage(self, user_id: UUID, *, incoming: int) -> None:
        """Raise `StorageQuotaExceededError` where a user's texts and `incoming` are too many bytes.

        Several writes that are under way at once each pass with what was stored before them: they
        may exceed the limit by what they bring.
        """
        if limit := quotas.STORED_BYTES.limit(self._settings):
            async with self._database.read() as session:
                used = await stored_bytes(session, user_id)
            if used + incoming > limit:
                raise quotas.STORED_BYTES.exceeded(limit=limit, used=used)

    async def check_jobs(self, user_id: UUID) -> None:
        """Raise `QuotaExceededError` where a user has too many jobs that are not over."""
        if limit := quotas.QUEUED_JOBS.limit(self._settings):
            async with self._database.read() as session:
                used = await live_jobs(session, user_id)
            if used >= limit:
                raise quotas.QUEUED_JOBS.exceeded(limit=limit, used=used)

    async def check_tokens(self, user_id: UUID) -> None:
        """Raise `QuotaExceededError` where a user's tokens for the day are spent."""
        if limit := quotas.TOKENS_PER_DAY.limit(self._settings):
            at = now()
            async with self._database.read() as session:
                used = await tokens_on(session, user_id, at.date())
            if used >= limit:
                raise quotas.TOKENS_PER_DAY.exceeded(
                    limit=limit, used=used, wait=seconds_until_tomorrow(at), at=at
                )

    async def check_added(self, quota: Quota, session: AsyncSession, user_id: UUID) -> None:
        """Raise `StorageQuotaExceededError` where rows that were added are too many.

        To be called in the transaction that adds them, after it did.
        """
        if limit := quota.limit(self._settings):
            found = await self._counts[quota.name](session, user_id)
            if found > limit:
                raise quota.exceeded(limit=limit, used=found)

    async def usage(self, user_id: UUID) -> AccountUsage:
        """What an account uses of each quota. Raises `UserNotFoundError`."""
        at = now()
        used = {
            quotas.REQUESTS: self.requests.used(user_id),
            **{each.quota: each.used(user_id) for each in self._concurrent()},
        }
        async with self._database.read() as session:
            await accounts.get_user(session, user_id)
            used[quotas.STORED_BYTES] = await stored_bytes(session, user_id)
            used[quotas.QUEUED_JOBS] = await live_jobs(session, user_id)
            used[quotas.TOKENS_PER_DAY] = await tokens_on(session, user_id, at.date())
            for quota in (quotas.CHATS, quotas.LOREBOOK_ENTRIES):
                used[quota] = await self._counts[quota.name](session, user_id)
        frees_after = {
            quotas.REQUESTS: self.requests.seconds_until_full(user_id),
            quotas.TOKENS_PER_DAY: seconds_until_tomorrow(at),
        }
        return AccountUsage(
            items=[
                QuotaUsage(
                    quota=quota.name,
                    used=used[quota],
                    limit=quota.limit(self._settings) or None,
                    unit=quota.unit,
                    frees_at=(
                        at + timedelta(seconds=frees_after[quota])
                        if quota in frees_after and used[quota]
                        else None
                    ),
                )
                for quota in QUOTAS
            ]
        )

    def _at_once(self, quota: Quota) -> ConcurrencyLimit:
        return ConcurrencyLimit(quota, quota.limit(self._settings))

    def _concurrent(self) -> tuple[ConcurrencyLimit, ...]:
        return (
            self.requests_at_once,
            self.turns,
            self.previews,
            self.streams,
            self.uploads,
            self.upload_bytes,
        )


async def unlimited(_session: AsyncSession, _user_id: UUID) -> None:
    """The `CheckAdded` of an installation without the quota."""


async def live_jobs(session: AsyncSession, user_id: UUID) -> int:
    """Jobs of a user that are queued, wait, or are worked on."""
    query = select(func.count()).where(Job.user_id == user_id, Job.state.in_(LIVE_JOBS))
    return await session.scalar(query) or 0
