"""`Quotas`: the counters of every account, and the questions that requests ask of them."""

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
from backend.quotas import definitions as quotas
from backend.quotas.definitions import QUOTAS, Quota, TooManyFromAddressError, Unit
from backend.quotas.ledgers import count_stored_bytes, count_tokens_today
from backend.quotas.limits import ConcurrencyLimit, FreeRoom, RateLimit
from backend.settings import Settings

CountUsage = Callable[[AsyncSession, UUID], Awaitable[int]]
"""How much an account has of what a quota counts."""

CheckAdded = Callable[[AsyncSession, UUID], Awaitable[None]]
"""`Quotas.check_added` of one quota."""

LIVE_JOB_STATES = ("queued", "waiting_key", "running")


class QuotaUsage(msgspec.Struct, kw_only=True):
    """One quota: how much is used of how much.

    `limit` is null where there is none. `frees_at` is when all of it is free again, where time
    alone frees it; null where something has to end or to be deleted first.
    """

    quota: str
    used: int
    limit: int | None
    unit: Unit
    frees_at: datetime | None = None


class AccountUsage(msgspec.Struct, kw_only=True):
    """What an account uses: numbers only."""

    items: list[QuotaUsage]


class Quotas:
    """Every quota of every account.

    Rates and what is under way are counted in this process's memory, the rest in the database.

    Args:
        counts: How many chats and lorebook entries an account has.
    """

    def __init__(
        self, database: Database, settings: Settings, *, counts: Mapping[Quota, CountUsage]
    ) -> None:
        self._database = database
        self._settings = settings
        self._counts: dict[Quota, CountUsage] = {
            **counts,
            quotas.STORED_BYTES: count_stored_bytes,
            quotas.QUEUED_JOBS: _live_jobs,
            quotas.TOKENS_PER_DAY: count_tokens_today,
        }
        self._room = FreeRoom()
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
            raise TooManyFromAddressError(retry_after=int(wait) + 1)

    async def check(self, quota: Quota, user_id: UUID, *, adding: int = 1) -> None:
        """Raise the quota's error where a user has too much of it already, with what is added.

        Several requests that are under way at once each pass with what was there before them: they
        may exceed the limit by what they bring. An account with plenty of bytes free is not looked
        at each time (`FreeRoom`).
        """
        limit = quota.limit(self._settings)
        is_room = quota is quotas.STORED_BYTES
        if not limit or (is_room and self._room.take(user_id, adding)):
            return
        at = now()
        async with self._database.read() as session:
            used = await self._counts[quota](session, user_id)
        if is_room:
            self._room.found(user_id, limit - used - adding)
        if used + adding > limit:
            wait = _until_tomorrow(at) if quota is quotas.TOKENS_PER_DAY else None
            raise quota.exceeded(limit=limit, used=used, wait=wait, at=at)

    async def check_added(self, quota: Quota, session: AsyncSession, user_id: UUID) -> None:
        """Raise `StorageQuotaExceededError` where rows that were added are too many.

        To be called in the transaction that adds them, after it did.
        """
        if limit := quota.limit(self._settings):
            found = await self._counts[quota](session, user_id)
            if found > limit:
                raise quota.exceeded(limit=limit, used=found)

    async def usage(self, user_id: UUID) -> AccountUsage:
        """What an account uses of each quota. Raises `UserNotFoundError`."""
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
            quotas.TOKENS_PER_DAY: _until_tomorrow(at),
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


async def check_nothing(_session: AsyncSession, _user_id: UUID) -> None:
    """The `CheckAdded` of an installation without the quota."""


async def _live_jobs(session: AsyncSession, user_id: UUID) -> int:
    query = select(func.count()).where(Job.user_id == user_id, Job.state.in_(LIVE_JOB_STATES))
    return await session.scalar(query) or 0


def _until_tomorrow(at: datetime) -> float:
    """Seconds until midnight UTC."""
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return (midnight - at).total_seconds()
