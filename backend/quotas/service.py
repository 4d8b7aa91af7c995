"""`Quotas`: counts the usage of every account, and checks the limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository as accounts
from backend.database.base import now
from backend.database.engine import Database
from backend.jobs.models import Job
from backend.quotas import limits as quotas
from backend.quotas.ledgers import count_stored_bytes, count_tokens_today
from backend.quotas.limits import (
    QUOTAS,
    ConcurrencyLimit,
    FreeRoom,
    Quota,
    RateLimit,
    TooManyFromAddressError,
    Unit,
)
from backend.settings import Settings

CountUsage = Callable[[AsyncSession, UUID], Awaitable[int]]
"""Returns an account's usage of a quota."""

CheckAdded = Callable[[AsyncSession, UUID], Awaitable[None]]
"""`Quotas.check_added` of one quota."""

LIVE_JOB_STATES = ("queued", "waiting_key", "running")


class QuotaUsage(msgspec.Struct, kw_only=True):
    """The usage and limit of one quota.

    `limit` is null if there is none. Requests are those of one process, and their limit is its
    share. `frees_at` is the time at which all of it is free again; null
    if that depends on running work or on deletions.
    """

    quota: str
    used: int
    limit: int | None
    unit: Unit
    frees_at: datetime | None = None


class AccountUsage(msgspec.Struct, kw_only=True):
    """The usage of an account, in numbers."""

    items: list[QuotaUsage]


class Quotas:
    """The quotas of all accounts.

    Rates and concurrent work are counted in the memory of this process, the rest in the database.
    Rates and concurrent requests are divided by the number of processes.

    Args:
        counts: Functions that count chats and lorebook entries.
    """

    def __init__(
        self, database: Database, settings: Settings, *, counts: Mapping[Quota, CountUsage]
    ) -> None:
        self._database = database
        self._settings = settings
        self._counts: dict[Quota, CountUsage] = {
            **counts,
            quotas.STORED_BYTES: count_stored_bytes,
            quotas.QUEUED_JOBS: _count_live_jobs,
            quotas.TOKENS_PER_DAY: count_tokens_today,
        }
        self._room = FreeRoom()
        self.requests = RateLimit(quotas.REQUESTS.get_limit(settings))
        self.addresses = RateLimit(settings.max_requests_per_minute_per_address)
        self.requests_at_once = self._make_limit(quotas.REQUESTS_AT_ONCE)
        self.turns = self._make_limit(quotas.TURNS)
        self.previews = self._make_limit(quotas.PREVIEWS)
        self.streams = self._make_limit(quotas.STREAMS)
        self.uploads = self._make_limit(quotas.UPLOADS)
        self.upload_bytes = self._make_limit(quotas.UPLOAD_BYTES)

    def divide(self, processes: int) -> None:
        """Allow this process its share of the requests, because each process counts its own."""
        for limit in (self.requests, self.addresses, self.requests_at_once):
            limit.divide(processes)

    def count_request(self, user_id: UUID) -> None:
        """Count a request of an account. Raises `QuotaExceededError`."""
        if wait := self.requests.take(user_id):
            limit = self.requests.per_minute
            raise quotas.REQUESTS.make_error(
                limit=limit, used=self.requests.used(user_id), wait=wait
            )

    def count_from_address(self, address: str) -> None:
        """Count a request without sign-in. Raises `TooManyFromAddressError`."""
        if wait := self.addresses.take(address):
            raise TooManyFromAddressError(retry_after=int(wait) + 1)

    async def check(self, quota: Quota, user_id: UUID, *, adding: int = 1) -> None:
        """Raise the quota's error if a user would exceed it by `adding`.

        Concurrent requests do not see each other and may exceed the limit together. Accounts with
        plenty of free storage are not checked each time (`FreeRoom`).
        """
        limit = quota.get_limit(self._settings)
        is_room = quota is quotas.STORED_BYTES
        if not limit or (is_room and self._room.take(user_id, adding)):
            return
        at = now()
        async with self._database.read() as session:
            used = await self._counts[quota](session, user_id)
        if is_room:
            self._room.record(user_id, limit - used - adding)
        if used + adding > limit:
            wait = _count_seconds_until_tomorrow(at) if quota is quotas.TOKENS_PER_DAY else None
            raise quota.make_error(limit=limit, used=used, wait=wait, at=at)

    async def check_added(self, quota: Quota, session: AsyncSession, user_id: UUID) -> None:
        """Raise `StorageQuotaExceededError` if the transaction has added too many rows."""
        if limit := quota.get_limit(self._settings):
            found = await self._counts[quota](session, user_id)
            if found > limit:
                raise quota.make_error(limit=limit, used=found)

    async def usage(self, user_id: UUID) -> AccountUsage:
        """Return an account's usage of each quota. Raises `UserNotFoundError`."""
        at = now()
        used = {quotas.REQUESTS: self.requests.used(user_id)}
        for each in (
            self.requests_at_once,
            self.turns,
            self.previews,
            self.streams,
            self.uploads,
            self.upload_bytes,
        ):
            used[each.quota] = each.used(user_id)
        async with self._database.read() as session:
            await accounts.get_user(session, user_id)
            for quota, count in self._counts.items():
                used[quota] = await count(session, user_id)
        frees_after = {
            quotas.REQUESTS: self.requests.seconds_until_full(user_id),
            quotas.TOKENS_PER_DAY: _count_seconds_until_tomorrow(at),
        }
        limits = {
            quotas.REQUESTS: self.requests.per_minute,
            quotas.REQUESTS_AT_ONCE: self.requests_at_once.limit,
        }
        return AccountUsage(
            items=[
                QuotaUsage(
                    quota=quota.name,
                    used=used[quota],
                    limit=limits.get(quota, quota.get_limit(self._settings)) or None,
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

    def _make_limit(self, quota: Quota) -> ConcurrencyLimit:
        return ConcurrencyLimit(quota, quota.get_limit(self._settings))


async def check_nothing(_session: AsyncSession, _user_id: UUID) -> None:
    """A `CheckAdded` without a limit."""


async def _count_live_jobs(session: AsyncSession, user_id: UUID) -> int:
    query = select(func.count()).where(Job.user_id == user_id, Job.state.in_(LIVE_JOB_STATES))
    return await session.scalar(query) or 0


def _count_seconds_until_tomorrow(at: datetime) -> float:
    """Return the seconds until midnight UTC."""
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return (midnight - at).total_seconds()
