"""Growing delays after failed sign-ins, per account and per address; never a lock for good.

Failures decay over time. An address from which an account was signed in to before has a counter of
its own for that account, so that guesses from elsewhere do not slow its owner down there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv6Address, ip_address, ip_network
from math import ceil
from typing import Literal
from uuid import UUID

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.names import InstanceKeys, normalise_name
from backend.accounts.errors import TooManyAttemptsError
from backend.accounts.models import KnownAddress, LoginFailures
from backend.database.base import now, upsert
from backend.database.engine import Database

MAX_DELAY_SECONDS = 900
"""Seconds."""

FAILURE_RETENTION = timedelta(days=1)
"""Longer than any counter takes to decay to nothing."""

SWEEP_INTERVAL = timedelta(hours=1)

KNOWN_ADDRESS_RETENTION = timedelta(days=190)
"""A known address is forgotten after this long. By default a session lasts 180 days, so the person
who signs in again when it ends is still known."""

MAX_KNOWN_ADDRESSES = 16
"""Of one account; the ones used longest ago are forgotten first."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How failures count: `free` of them cost nothing, one is forgiven every so many seconds."""

    free: int
    forgiven_every: int

    def delay_after(self, failures: float) -> int:
        """Seconds to wait after that many failures: 0, then 1, 2, 4, ... at most 15 minutes."""
        over = ceil(failures) - self.free
        return 0 if over < 0 else min(1 << min(over, 30), MAX_DELAY_SECONDS)

    def count(self, failures: float, last_at: datetime, *, at: datetime) -> float:
        """What `failures` come to with one more attempt, which is taken for a failure.

        Raises `TooManyAttemptsError` while it must wait.
        """
        delay = self.delay_after(failures)
        ready_at = last_at + timedelta(seconds=delay)
        # Without a delay no attempt waits, not even one that asked before the one that came first.
        if delay and at < ready_at:
            raise TooManyAttemptsError(retry_after=int((ready_at - at).total_seconds()) + 1)
        passed = max(0.0, (at - last_at).total_seconds())
        return max(0.0, failures - passed / self.forgiven_every) + 1


ADDRESS_ALLOWANCE = Allowance(free=5, forgiven_every=900)
"""Of one address, whatever the names; of one account at a known address; of a password that is
confirmed. Lets 96 guesses a day through, and a burst of 15."""

ACCOUNT_ALLOWANCE = Allowance(free=100, forgiven_every=300)
"""Of one account from all unknown addresses together: 288 guesses a day, and a burst of 110.

It forgives three times what one address can guess, so a single address never brings it near its
limit, however long it goes on.
"""

SignInMethod = Literal["account", "recovery"]
"""How an account is opened: by its password, by its recovery code. Each has counters of its own."""


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """An attempt that was admitted, and the counters that it was counted under.

    `own` is the counter that no one but the account's owner can have succeeded under.
    """

    counters: Mapping[bytes, Allowance]
    own: bytes | None = None


def normalise_address(address: str) -> str:
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
    """Counts attempts before they are tried, so that many at once gain nothing.

    Call an `admit_*` before the secret is looked at, and `forgive` when it was right. Call
    `remember` when the whole sign-in succeeded, not only one step of it.
    """

    def __init__(self, database: Database, instance: InstanceKeys) -> None:
        self._database = database
        self._instance = instance
        self._swept_at = datetime.min.replace(tzinfo=UTC)

    async def admit_sign_in(self, way: SignInMethod, name: str, *, address: str) -> SignInAttempt:
        """Count an attempt to open the account of that name, whether there is one or not.

        Raises `TooManyAttemptsError` while the person must wait.
        """
        return await self._admit_from(address, way, name, ACCOUNT_ALLOWANCE)

    async def admit_second_factor(
        self, name: str, *, address: str, guessable: bool
    ) -> SignInAttempt:
        """Count an attempt to prove a second factor, after the password was right.

        `guessable` are six digits, which an account counts from all unknown addresses together. A
        passkey or a one-time code is not found by trying: however much somebody guesses who knows
        the password, the owner comes in with one of these. Raises as the others do.
        """
        return await self._admit_from(
            address, "factor", name, ADDRESS_ALLOWANCE if guessable else None
        )

    async def admit_sign_up(self, *, address: str) -> SignInAttempt:
        """Count an attempt to make an account. Raises `TooManyAttemptsError`."""
        return await self._admit(SignInAttempt({self._key("address", address): ADDRESS_ALLOWANCE}))

    async def admit_confirmation(self, user_id: UUID) -> SignInAttempt:
        """Count an attempt of a signed-in user to confirm who they are. Raises as the others do."""
        own = self._key("confirm", user_id.hex)
        return await self._admit(SignInAttempt({own: ADDRESS_ALLOWANCE}, own))

    async def admit_second_confirmation(self, user_id: UUID, *, guessable: bool) -> SignInAttempt:
        """The same for the second factor of a signed-in user."""
        own = self._key("confirm-factor" if guessable else "confirm-other", user_id.hex)
        return await self._admit(SignInAttempt({own: ADDRESS_ALLOWANCE}, own))

    async def forgive(self, attempt: SignInAttempt) -> None:
        """The attempt succeeded: it is taken back, and a counter of the owner's starts from zero.

        Other counters keep their older failures: a guesser's own account must not wipe them out.
        """
        async with self._database.write() as session:
            for key in sorted(attempt.counters):
                if key == attempt.own:
                    await session.execute(delete(LoginFailures).where(LoginFailures.key == key))
                else:
                    await session.execute(
                        update(LoginFailures)
                        .where(LoginFailures.key == key, LoginFailures.failures >= 1)
                        .values(failures=LoginFailures.failures - 1)
                    )

    async def remember(self, user_id: UUID, name: str, *, address: str) -> None:
        """The account was signed in to from this address: from now on it is known."""
        at, key = now(), self._known(name, address)
        fresh = {"key": key, "user_id": user_id, "last_at": at}
        newest = (
            select(KnownAddress.key)
            .where(KnownAddress.user_id == user_id)
            .order_by(KnownAddress.last_at.desc(), KnownAddress.key)
            .limit(MAX_KNOWN_ADDRESSES)
        )
        async with self._database.write() as session:
            await upsert(session, KnownAddress, fresh, key=("key",), update=("last_at",))
            await session.execute(
                delete(KnownAddress).where(
                    KnownAddress.user_id == user_id, KnownAddress.key.not_in(newest)
                )
            )

    async def _admit_from(
        self, address: str, kind: str, name: str, from_all: Allowance | None
    ) -> SignInAttempt:
        """Count for a known address and its account, else for the address.

        `from_all` is what the account allows all unknown addresses together.
        """
        if await self._is_known(name, address):
            own = self._key(f"known-{kind}", normalise_name(name), address)
            return await self._admit(SignInAttempt({own: ADDRESS_ALLOWANCE}, own))
        counters = {self._key("address", address): ADDRESS_ALLOWANCE}
        if from_all is not None:
            counters[self._key(kind, normalise_name(name))] = from_all
        return await self._admit(SignInAttempt(counters))

    def _key(self, kind: str, *values: str) -> bytes:
        return self._instance.hash_throttle_key(kind, *values)

    async def _is_known(self, name: str, address: str) -> bool:
        async with self._database.read() as session:
            row = await session.get(KnownAddress, self._known(name, address))
        return row is not None and now() - row.last_at < KNOWN_ADDRESS_RETENTION

    def _known(self, name: str, address: str) -> bytes:
        return self._key("known", normalise_name(name), address)

    async def _admit(self, attempt: SignInAttempt) -> SignInAttempt:
        at = now()
        if at - self._swept_at > SWEEP_INTERVAL:
            self._swept_at = at
            await self._sweep(at)
        async with self._database.write() as session:
            # Here and in `forgive` in the same order, so that two never wait for each other.
            for key in sorted(attempt.counters):
                await _count_attempt(session, key, at, attempt.counters[key])
        return attempt

    async def _sweep(self, at: datetime) -> None:
        """Forget what has decayed or expired: trying many names must not fill the table."""
        stale = (
            select(LoginFailures.key)
            .where(LoginFailures.last_at <= at - FAILURE_RETENTION)
            .with_for_update(skip_locked=True)
        )
        async with self._database.write() as session:
            await session.execute(delete(LoginFailures).where(LoginFailures.key.in_(stale)))
            await session.execute(
                delete(KnownAddress).where(KnownAddress.last_at <= at - KNOWN_ADDRESS_RETENTION)
            )


async def forget_addresses(session: AsyncSession, user_id: UUID) -> None:
    """No address of the account's is known any more: it may have been in other hands."""
    await session.execute(delete(KnownAddress).where(KnownAddress.user_id == user_id))


async def _count_attempt(
    session: AsyncSession, key: bytes, at: datetime, allowance: Allowance
) -> None:
    # Made or locked in one step, so that of many attempts at once, the first ones included,
    # each counts those before it, and none is forgiven in between.
    fresh = {"key": key, "failures": 0.0, "last_at": at}
    await upsert(session, LoginFailures, fresh, key=("key",), update=("key",))
    row = await session.get_one(LoginFailures, key)
    row.failures = allowance.count(row.failures, row.last_at, at=at)
    row.last_at = at
