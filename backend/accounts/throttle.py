"""Growing delays after failed log-ins, per account and per address; never a lock for good."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.errors import TooManyAttemptsError
from backend.accounts.models import LoginFailures
from backend.database.base import now
from backend.database.engine import Database
from backend.database.upsert import upsert

FREE_ATTEMPTS = 5
LONGEST_DELAY = 900
FORGOTTEN_AFTER = timedelta(days=1)


def delay_after(failures: int) -> int:
    """Seconds to wait after that many failures in a row: 0, then 1, 2, 4, ... at most 15 min."""
    if failures < FREE_ATTEMPTS:
        return 0
    return int(min(2.0 ** min(failures - FREE_ATTEMPTS, 30), LONGEST_DELAY))


class Throttle:
    """Counts attempts before they are tried, so that many at once gain nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def admit(self, keys: Sequence[bytes]) -> None:
        """Count an attempt under each key. Raises `TooManyAttemptsError` while one must wait."""
        at = now()
        async with self._database.write() as session:
            # In a fixed order, so that two attempts never wait for each other.
            for key in sorted(keys):
                await self._admit_one(session, key, at)

    async def forgive(self, *, account: bytes, address: bytes) -> None:
        """The attempt succeeded: the account starts from nothing, the address takes it back.

        The address keeps its older failures: a guesser's own account must not wipe them out.
        """
        async with self._database.write() as session:
            await session.execute(delete(LoginFailures).where(LoginFailures.key == account))
            await session.execute(
                update(LoginFailures)
                .where(LoginFailures.key == address, LoginFailures.failures > 0)
                .values(failures=LoginFailures.failures - 1)
            )

    async def _admit_one(self, session: AsyncSession, key: bytes, at: datetime) -> None:
        row = await session.scalar(
            select(LoginFailures).where(LoginFailures.key == key).with_for_update()
        )
        failures = row.failures if row and at - row.last_at < FORGOTTEN_AFTER else 0
        if row and failures:
            ready_at = row.last_at + timedelta(seconds=delay_after(failures))
            if at < ready_at:
                raise TooManyAttemptsError(int((ready_at - at).total_seconds()) + 1)
        values = {"failures": failures + 1, "last_at": at}
        await upsert(session, LoginFailures, {"key": key, **values}, key=["key"], update=values)
