"""Increasing delays after failed sign-ins, per account and per address; never a permanent lock.

Failures decay over time. An address that has signed in to an account before has its own counter for
that account. So guesses from elsewhere do not delay the owner there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
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

FAILURE_RETENTION = timedelta(days=1)
"""No counter takes longer to decay to zero."""

KNOWN_ADDRESS_RETENTION = timedelta(days=190)
"""A known address is deleted after this time. By default a session lasts 180 days, so a person who
signs in again when it ends is still known."""

MAX_KNOWN_ADDRESSES = 16
"""Per account. The least recently used ones are deleted first."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The rules of a counter: failures without delay, and seconds to forgive one failure."""

    free: int
    forgiven_every: int

    def delay_after(self, failures: float) -> int:
        over = ceil(failures) - self.free
        return 0 if over < 0 else min(1 << min(over, 30), MAX_DELAY_SECONDS)

    def count(self, failures: float, last_at: datetime, *, at: datetime) -> float:
        """Return the failures with one more attempt. Raises `TooManyAttemptsError`."""
        delay = self.delay_after(failures)
        ready_at = last_at + timedelta(seconds=delay)
        # Without a delay no attempt waits, not even one that is dated before the last attempt.
        if delay and at < ready_at:
            raise TooManyAttemptsError(retry_after=int((ready_at - at).total_seconds()) + 1)
        passed = max(0.0, (at - last_at).total_seconds())
        return max(0.0, failures - passed / self.forgiven_every) + 1


ADDRESS_ALLOWANCE = Allowance(free=5, forgiven_every=900)
"""For one address with any names, for one account at a known address, and for a password that is
confirmed. Allows 96 guesses a day, and a burst of 15."""

ACCOUNT_ALLOWANCE = Allowance(free=100, forgiven_every=300)
"""For one account from all unknown addresses together: 288 guesses a day, and a burst of 110.

It forgives three times as many failures as one address can cause. So a single address can never
bring the account near its limit.
"""

SignInMethod = Literal["account", "recovery"]
"""The secret that opens an account: its password, or its recovery code. Each has its own
counters."""


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """An admitted attempt and its counters. Only the owner can have succeeded under `own`."""

    counters: Mapping[bytes, Allowance]
    own: bytes | None = None


def normalise_address(address: str) -> str:
    """Return the network under which failed attempts from an address are counted.

    An IPv4 address is counted on its own. An IPv6 customer has at least a /64, so the whole /64 is
    counted as one.
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
    """Counts attempts before they are checked, so that concurrent attempts gain nothing.

    Call an `admit_*` method before the secret is checked, and `forgive` if it was right. Call
    `remember` if the whole sign-in succeeded, not only one step of it.
    """

    def __init__(self, database: Database, instance: InstanceKeys) -> None:
        self._database = database
        self._instance = instance

    async def admit_sign_in(self, way: SignInMethod, name: str, *, address: str) -> SignInAttempt:
        """Count an attempt to open an account, also for unknown names.

        Raises `TooManyAttemptsError`.
        """
        return await self._admit_from(address, way, name, ACCOUNT_ALLOWANCE)

    async def admit_second_factor(
        self, name: str, *, address: str, guessable: bool
    ) -> SignInAttempt:
        """Count an attempt to prove a second factor, after the password was right.

        Six digits are `guessable`, so an account counts these attempts from all unknown addresses
        together. A passkey or a one-time code cannot be guessed. So the owner can sign in with one
        of these, however often someone else who knows the password guesses. Raises
        `TooManyAttemptsError`.
        """
        return await self._admit_from(
            address, "factor", name, ADDRESS_ALLOWANCE if guessable else None
        )

    async def admit_sign_up(self, *, address: str) -> SignInAttempt:
        """Count an attempt to make an account. Raises `TooManyAttemptsError`."""
        return await self._admit(SignInAttempt({self._key("address", address): ADDRESS_ALLOWANCE}))

    async def admit_confirmation(self, user_id: UUID) -> SignInAttempt:
        own = self._key("confirm", user_id.hex)
        return await self._admit(SignInAttempt({own: ADDRESS_ALLOWANCE}, own))

    async def admit_second_confirmation(self, user_id: UUID, *, guessable: bool) -> SignInAttempt:
        own = self._key("confirm-factor" if guessable else "confirm-other", user_id.hex)
        return await self._admit(SignInAttempt({own: ADDRESS_ALLOWANCE}, own))

    async def forgive(self, attempt: SignInAttempt) -> None:
        """Take back a successful attempt, and reset the owner's own counter.

        Other counters keep their older failures. Otherwise an attacker could reset them by signing
        in to their own account.
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
        """Count for a known address and its account, or else for the address.

        `from_all` is the limit for attempts on the account from all unknown addresses together.
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
        async with self._database.write() as session:
            # Here and in `forgive` in the same order, so that two never wait for each other.
            for key in sorted(attempt.counters):
                await _count_attempt(session, key, at, attempt.counters[key])
        return attempt


async def forget_addresses(session: AsyncSession, user_id: UUID) -> None:
    """Forget all known addresses, because someone else may have had access to the account."""
    await session.execute(delete(KnownAddress).where(KnownAddress.user_id == user_id))


async def _count_attempt(
    session: AsyncSession, key: bytes, at: datetime, allowance: Allowance
) -> None:
    # Inserted or locked in one statement. So each of many concurrent attempts, including the first
    # ones, counts those before it, and no failure is forgiven in between.
    fresh = {"key": key, "failures": 0.0, "last_at": at}
    await upsert(session, LoginFailures, fresh, key=("key",), update=("key",))
    row = await session.get_one(LoginFailures, key)
    row.failures = allowance.count(row.failures, row.last_at, at=at)
    row.last_at = at
