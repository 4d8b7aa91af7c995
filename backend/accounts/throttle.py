"""Growing delays after failed log-ins, per account and per address; never a lock for good."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import IPv6Address, ip_address, ip_network

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.errors import TooManyAttemptsError
from backend.accounts.models import LoginFailures
from backend.database.base import now
from backend.database.engine import Database
from backend.database.upsert import upsert

FREE_ATTEMPTS = 5
FREE_ACCOUNT_ATTEMPTS = 100
"""Of an account, from all addresses together: so many that no single address, which waits long
before, can keep the account's owner waiting at another one."""
LONGEST_DELAY = 900
FORGOTTEN_AFTER = timedelta(days=1)
SWEEP_EVERY = timedelta(hours=1)


def delay_after(failures: int, *, free: int = FREE_ATTEMPTS) -> int:
    """Seconds to wait after that many failures in a row: 0, then 1, 2, 4, ... at most 15 min."""
    if failures < free:
        return 0
    return int(min(2.0 ** min(failures - free, 30), LONGEST_DELAY))


def address_block(address: str) -> str:
    """What failed attempts from an address are counted under.

    An IPv4 address counts for itself. Of IPv6, one customer has at least a /64 to choose from, so
    the whole of it counts as one.
    """
    try:
        parsed = ip_address(address)
    except ValueError:  # a Unix socket's peer has none
        return address
    if isinstance(parsed, IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped or ip_network((parsed.packed, 64), strict=False))
    return str(parsed)


class Throttle:
    """Counts attempts before they are tried, so that many at once gain nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._swept_at = datetime.min.replace(tzinfo=UTC)

    async def admit(self, free: Mapping[bytes, int]) -> None:
        """Count an attempt under each key of `free`, which says how many failures cost nothing.

        Raises `TooManyAttemptsError` while one must wait.
        """
        at = now()
        if at - self._swept_at > SWEEP_EVERY:
            self._swept_at = at
            await self._sweep(at)
        async with self._database.write() as session:
            # Here and in `forgive` in the same order, so that two never wait for each other.
            for key in sorted(free):
                await self._admit_one(session, key, at, free=free[key])

    async def forgive(self, *, account: bytes | None = None, address: bytes | None = None) -> None:
        """The attempt succeeded: the account starts from nothing, the address takes it back.

        The address keeps its older failures: a guesser's own account must not wipe them out.
        """
        async with self._database.write() as session:
            for key in sorted(filter(None, {account, address})):
                if key == account:
                    await session.execute(delete(LoginFailures).where(LoginFailures.key == key))
                else:
                    await session.execute(
                        update(LoginFailures)
                        .where(LoginFailures.key == key, LoginFailures.failures > 0)
                        .values(failures=LoginFailures.failures - 1)
                    )

    async def _sweep(self, at: datetime) -> None:
        """Forget what is forgiven by age: whoever tries many names must not fill the table."""
        stale = (
            select(LoginFailures.key)
            .where(LoginFailures.last_at <= at - FORGOTTEN_AFTER)
            .with_for_update(skip_locked=True)
        )
        async with self._database.write() as session:
            await session.execute(delete(LoginFailures).where(LoginFailures.key.in_(stale)))

    async def _admit_one(
        self, session: AsyncSession, key: bytes, at: datetime, *, free: int
    ) -> None:
        # Made or locked in one step, so that of many attempts at once, the first ones included,
        # each counts those before it, and none is forgiven in between.
        fresh = {"key": key, "failures": 0, "last_at": at}
        await upsert(session, LoginFailures, fresh, key=["key"], update={"key": key})
        row = await session.get_one(LoginFailures, key)
        failures = row.failures if at - row.last_at < FORGOTTEN_AFTER else 0
        delay = delay_after(failures, free=free)
        ready_at = row.last_at + timedelta(seconds=delay)
        # Without a delay nobody waits, not even who asked before the one that came first.
        if delay and at < ready_at:
            raise TooManyAttemptsError(int((ready_at - at).total_seconds()) + 1)
        row.failures, row.last_at = failures + 1, at
