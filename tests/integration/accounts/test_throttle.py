"""What guessing for a month gets, and what it costs the account's owner."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest
from sqlalchemy import func, select

from backend.accounts.auth.throttle import (
    ACCOUNT_ALLOWANCE,
    KNOWN_ADDRESS_RETENTION,
    MAX_KNOWN_ADDRESSES,
    SignInMethod,
    Throttle,
)
from backend.accounts.errors import TooManyAttemptsError
from backend.accounts.models import KnownAddress, LoginFailures
from tests.support.clock import Clock
from tests.support.server import PASSWORD, Account, Running, ok, problem

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

HOME, CAFE, ATTACKER = "203.0.113.1", "203.0.113.2", "198.51.100.1"
WRONG = "not the password"


class Guesser:
    """Guesses at Ada's account from one address as often as it is let."""

    def __init__(
        self, throttle: Throttle, way: SignInMethod = "account", address: str = ATTACKER
    ) -> None:
        self._throttle, self._address = throttle, address
        self._way: SignInMethod = way
        self.guesses = 0

    async def guess(self) -> int:
        """Guess once, or be refused; returns for how many seconds then."""
        try:
            await self._throttle.admit_sign_in(self._way, "Ada", address=self._address)
        except TooManyAttemptsError as error:
            return int(error.headers["Retry-After"])
        self.guesses += 1
        return 0


@pytest.fixture
def throttle(server: Running) -> Throttle:
    return Throttle(server.parts.database, server.parts.instance)


async def enter(throttle: Throttle, way: SignInMethod, address: str) -> None:
    """Sign in with what is right. Raises `TooManyAttemptsError`."""
    await throttle.forgive(await throttle.admit_sign_in(way, "Ada", address=address))


async def log_in(server: Running, address: str, password: str = PASSWORD) -> httpx.Response:
    async with server.browser() as client:
        body = {"username": "Ada", "password": password}
        headers = {"X-Forwarded-For": address}
        return await client.post("/api/v1/sessions", json=body, headers=headers)


async def known_addresses(server: Running) -> int:
    async with server.parts.database.read() as session:
        return await session.scalar(select(func.count()).select_from(KnownAddress)) or 0


@pytest.mark.parametrize("way", ["account", "recovery"])
async def test_guesses_from_one_address_never_keep_the_owner_waiting(
    throttle: Throttle, clock: Clock, way: SignInMethod
) -> None:
    guesser, rounds = Guesser(throttle, way), 0
    end = clock.at + timedelta(hours=30)
    while clock.at < end:
        clock.forward(seconds=await guesser.guess())
        if rounds % 20 == 0:
            await enter(throttle, way, f"192.0.2.{rounds // 20}")
        rounds += 1
    assert guesser.guesses > ACCOUNT_ALLOWANCE.free


async def test_an_address_that_signed_in_before_does_not_wait_for_guesses_from_elsewhere(
    either: Running, clock: Clock
) -> None:
    async with either.account("Ada"):
        pass
    ok(await log_in(either, HOME), 201)
    throttle = Throttle(either.parts.database, either.parts.instance)
    for n in range(ACCOUNT_ALLOWANCE.free + 1):
        await Guesser(throttle, address=f"198.51.{n}.1").guess()
    problem(await log_in(either, CAFE), 429, "too-many-attempts")
    ok(await log_in(either, HOME), 201)
    for _ in range(5):
        problem(await log_in(either, HOME, WRONG), 401, "wrong-credentials")
    problem(await log_in(either, HOME), 429, "too-many-attempts")
    clock.forward(seconds=1)
    ok(await log_in(either, HOME), 201)


async def test_guesses_at_other_names_from_the_owners_own_address_do_not_make_the_owner_wait(
    server: Running, ada: Account, clock: Clock, throttle: Throttle
) -> None:
    ok(await log_in(server, HOME), 201)
    for n in range(5):
        await throttle.admit_sign_in("account", f"nobody{n}", address=HOME)
    with pytest.raises(TooManyAttemptsError):
        await throttle.admit_sign_in("account", "nobody", address=HOME)
    ok(await log_in(server, HOME), 201)


async def test_one_account_s_known_address_is_not_another_s(
    server: Running, ada: Account, clock: Clock, throttle: Throttle
) -> None:
    ok(await log_in(server, HOME), 201)
    for _ in range(5):
        await throttle.admit_sign_in("account", "Ben", address=HOME)
    with pytest.raises(TooManyAttemptsError):
        await throttle.admit_sign_in("account", "Ben", address=HOME)


async def test_the_newest_addresses_stay_known_and_none_for_good(
    either: Running, clock: Clock
) -> None:
    async with either.account("Ada"):
        for n in range(MAX_KNOWN_ADDRESSES + 3):
            clock.forward(minutes=1)
            ok(await log_in(either, f"192.0.2.{n}"), 201)
        assert await known_addresses(either) == MAX_KNOWN_ADDRESSES
        clock.forward(seconds=KNOWN_ADDRESS_RETENTION.total_seconds() + 1)
        ok(await log_in(either, HOME), 201)
        assert await known_addresses(either) == 1


async def test_recovery_forgets_the_addresses_that_were_known(
    server: Running, ada: Account
) -> None:
    for n in range(3):
        ok(await log_in(server, f"192.0.2.{n}"), 201)
    body = {"username": "Ada", "recovery_code": ada.recovery_code, "new_password": "a finer one"}
    ok(await ada.client.post("/api/v1/recoveries", json=body), 201)
    assert await known_addresses(server) == 1


async def test_no_address_is_readable_in_the_tables(server: Running, ada: Account) -> None:
    ok(await log_in(server, HOME), 201)
    await log_in(server, CAFE, WRONG)
    async with server.parts.database.read() as session:
        keys = [
            *await session.scalars(select(KnownAddress.key)),
            *await session.scalars(select(LoginFailures.key)),
        ]
    assert {len(key) for key in keys} == {32}
