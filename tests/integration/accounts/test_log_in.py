"""Tests of sign-in with a password: answers to guesses, delays and tokens."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from datetime import timedelta
from itertools import count
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from backend.accounts.auth.middleware import PLAIN_COOKIE
from backend.accounts.auth.throttle import (
    ACCOUNT_ALLOWANCE,
    KNOWN_ADDRESS_RETENTION,
    MAX_DELAY_SECONDS,
    MAX_KNOWN_ADDRESSES,
    Allowance,
    SignInMethod,
    Throttle,
)
from backend.accounts.errors import TooManyAttemptsError
from backend.accounts.models import KeySlot, KnownAddress, LoginFailures
from backend.operations.pruning import prune
from tests.support.clock import Clock
from tests.support.factors import SESSIONS, sign_in
from tests.support.server import PASSWORD, Account, Running, ok, problem

pytestmark = pytest.mark.anyio

WRONG = "not the password"
ELSEWHERE = (f"203.0.113.{n}" for n in count(1))
"""Addresses, each used once. The server trusts the tests as a proxy."""


async def sign_in_from(
    server: Running, name: str, password: str = PASSWORD, *, address: str | None = None
) -> httpx.Response:
    """Sign in from a new browser, by default at a new address."""
    return await sign_in(server, name, password=password, address=address or next(ELSEWHERE))


@pytest.fixture
def few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay sign-ins to an account after five failures, which are almost never forgiven."""
    monkeypatch.setattr(
        "backend.accounts.auth.throttle.ACCOUNT_ALLOWANCE", Allowance(5, forgiven_every=10**6)
    )


def describe(answer: httpx.Response) -> tuple[int, Any, set[str]]:
    return answer.status_code, answer.json(), set(answer.headers)


async def test_the_name_is_shown_as_it_was_chosen_however_it_is_typed(
    server: Running, ada: Account
) -> None:
    assert ok(await sign_in_from(server, " aDA "), 201)["username"] == "Ada"


async def test_a_wrong_password_and_an_unknown_name_get_one_answer_for_the_same_work(
    server: Running, ada: Account, stretches: list[tuple[int, int, int]]
) -> None:
    stretches.clear()
    wrong = await sign_in_from(server, "Ada", WRONG)
    for_wrong = stretches.copy()
    unknown = await sign_in_from(server, "nobody", WRONG)
    for_unknown = stretches[len(for_wrong) :]
    problem(wrong, 401, "wrong-credentials")
    assert describe(wrong) == describe(unknown)
    assert for_wrong == for_unknown != []


async def test_a_disabled_account_gets_the_answer_of_a_wrong_password(
    server: Running, ada: Account
) -> None:
    async with server.account("Ben") as ben:
        path = f"/api/v1/admin/users/{ben.user['id']}"
        ok(await ada.client.patch(path, json={"is_disabled": True}))
        assert describe(await sign_in_from(server, "Ben")) == describe(
            await sign_in_from(server, "nobody")
        )


async def test_after_some_failures_each_try_waits_longer_and_none_for_good(
    server: Running, ada: Account, clock: Clock, few_attempts: None
) -> None:
    for form in ("Ada", "ADA", " ada ", "ａｄａ", "aDa"):
        problem(await sign_in_from(server, form, WRONG), 401, "wrong-credentials")
    expected = 1
    while True:
        for password in (WRONG, PASSWORD):
            refused = await sign_in_from(server, "Ada", password)
            body = problem(refused, 429, "too-many-attempts")
            waiting = int(refused.headers["retry-after"])
            assert waiting == body["retry_after"]
            assert expected <= waiting <= expected + 1
        clock.forward(seconds=expected)
        if expected == MAX_DELAY_SECONDS:
            break
        problem(await sign_in_from(server, "Ada", WRONG), 401, "wrong-credentials")
        expected = min(2 * expected, MAX_DELAY_SECONDS)
    ok(await sign_in_from(server, "Ada"), 201)


async def test_a_success_starts_the_account_from_nothing_at_that_address(
    server: Running, ada: Account, clock: Clock
) -> None:
    here = next(ELSEWHERE)
    for _ in range(3):
        for _ in range(4):
            wrong = await sign_in_from(server, "Ada", WRONG, address=here)
            problem(wrong, 401, "wrong-credentials")
        ok(await sign_in_from(server, "Ada", address=here), 201)


async def test_an_address_that_guesses_many_names_waits(
    server: Running, ada: Account, clock: Clock
) -> None:
    for first, same, other in (
        ("198.51.100.1", "198.51.100.1", "198.51.100.2"),
        ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"),
    ):
        for n in range(5):
            guess = await sign_in_from(server, f"nobody{n}{first}", address=first)
            problem(guess, 401, "wrong-credentials")
        problem(await sign_in_from(server, "Ada", address=same), 429, "too-many-attempts")
        ok(await sign_in_from(server, "Ada", address=other), 201)


async def test_a_guessers_own_account_does_not_wipe_out_what_the_address_did(
    server: Running, ada: Account, clock: Clock
) -> None:
    here = "198.51.100.1"
    for n in range(4):
        problem(await sign_in_from(server, f"nobody{n}", address=here), 401, "wrong-credentials")
        ok(await sign_in_from(server, "Ada", address=here), 201)
    problem(await sign_in_from(server, "nobody", address=here), 401, "wrong-credentials")
    problem(await sign_in_from(server, "nobody", address=here), 429, "too-many-attempts")


async def test_concurrent_guesses_gain_nothing(
    either: Running, clock: Clock, stretches: list[tuple[int, int, int]]
) -> None:
    async with either.account("Ada"):
        pass
    stretches.clear()
    here = "198.51.100.1"
    answers = await asyncio.gather(
        *(sign_in_from(either, "Ada", WRONG, address=here) for _ in range(20))
    )
    assert sorted(answer.status_code for answer in answers) == [401] * 5 + [429] * 15
    assert len(stretches) == 5


async def test_failures_of_another_day_are_forgotten_and_their_rows_gone(
    either: Running, clock: Clock
) -> None:
    async with either.account("Ada"):
        pass
    for n in range(5):
        await sign_in_from(either, f"nobody{n}", WRONG)
        await sign_in_from(either, "Ada", WRONG)
    clock.forward(days=1, seconds=1)
    for _ in range(5):
        problem(await sign_in_from(either, "Ada", WRONG), 401, "wrong-credentials")
    await prune(either.parts.database, either.parts.settings, at=clock.at)
    async with either.parts.database.read() as session:
        rows = await session.scalar(select(func.count()).select_from(LoginFailures))
    assert rows == 6  # one of the account, and one of each address


async def test_recovery_codes_and_confirmations_are_no_way_around_the_delay(
    server: Running, ada: Account, clock: Clock, few_attempts: None
) -> None:
    for name in ("Ada", "ADA", "ada", " ada", "ada "):
        body = {"username": name, "recovery_code": "AAAA", "new_password": "another fine one"}
        headers = {"X-Forwarded-For": next(ELSEWHERE)}
        answer = await ada.client.post("/api/v1/recoveries", json=body, headers=headers)
        problem(answer, 401, "wrong-recovery-code")
    headers = {"X-Forwarded-For": next(ELSEWHERE)}
    again = await ada.client.post("/api/v1/recoveries", json=body, headers=headers)
    problem(again, 429, "too-many-attempts")
    change = {"current_password": WRONG, "new_password": "another fine one"}
    for _ in range(5):
        problem(await ada.client.post("/api/v1/me/password", json=change), 401, "wrong-credentials")
    problem(await ada.client.post("/api/v1/me/password", json=change), 429, "too-many-attempts")


async def test_a_token_that_the_client_brings_is_never_taken_over(
    server: Running, ada: Account
) -> None:
    planted = "ts_" + base64.urlsafe_b64encode(b"p" * 32).rstrip(b"=").decode()
    async with server.browser() as victim:
        victim.cookies.set(PLAIN_COOKIE, planted, domain="127.0.0.1")
        body = {"username": "Ada", "password": PASSWORD}
        answer = await victim.post(SESSIONS, json=body)
        ok(answer, 201)
        given = answer.cookies[PLAIN_COOKIE]
    assert given not in {planted, ada.client.cookies[PLAIN_COOKIE]}
    async with server.browser() as attacker:
        attacker.cookies.set(PLAIN_COOKIE, planted, domain="127.0.0.1")
        problem(await attacker.get("/api/v1/me"), 401, "unauthenticated")


async def test_every_log_in_gets_a_token_of_its_own(server: Running, ada: Account) -> None:
    tokens = {ada.client.cookies[PLAIN_COOKIE]}
    for _ in range(3):
        # The browser is signed in already, and gets a new session.
        body = {"username": "Ada", "password": PASSWORD}
        tokens.add((await ada.client.post(SESSIONS, json=body)).cookies[PLAIN_COOKIE])
    assert len(tokens) == 4
    assert len(ok(await ada.client.get(SESSIONS))["items"]) == 4


async def test_the_table_holds_nothing_that_opens_an_account(server: Running, ada: Account) -> None:
    made = ok(await ada.client.post("/api/v1/api-keys", json={"label": "script"}), 201)
    tokens = [ada.client.cookies[PLAIN_COOKIE], made["token"]]
    secrets = [base64.urlsafe_b64decode(token[3:] + "=") for token in tokens]
    async with server.parts.database.read() as session:
        slots = list(await session.scalars(select(KeySlot)))
    cells = [
        value
        for slot in slots
        for column in KeySlot.__table__.columns
        if isinstance(value := getattr(slot, column.key), bytes)
    ]
    for secret, token in zip(secrets, tokens, strict=True):
        assert hashlib.sha256(secret).digest() in cells
        for cell in cells:
            assert secret not in cell
            assert token.encode() not in cell
            assert secret.hex().encode() not in cell
    for cell in cells:
        if len(cell) == 32:  # the length of a secret
            stolen = base64.urlsafe_b64encode(cell).rstrip(b"=").decode()
            async with server.program(f"tk_{stolen}") as client:
                problem(await client.get("/api/v1/me"), 401, "unauthenticated")
            async with server.browser() as client:
                client.cookies.set(PLAIN_COOKIE, f"ts_{stolen}", domain="127.0.0.1")
                problem(await client.get("/api/v1/me"), 401, "unauthenticated")


async def test_a_malformed_token_opens_nothing(server: Running, ada: Account) -> None:
    async with server.browser() as client:
        for token in ("", "ts_", "ts_" + "A" * 42, "ts_" + "A" * 43, "ts_" + "!" * 43, "A" * 43):
            client.cookies.set(PLAIN_COOKIE, token, domain="127.0.0.1")
            problem(await client.get("/api/v1/me"), 401, "unauthenticated")


HOME, CAFE, ATTACKER = "203.0.113.1", "203.0.113.2", "198.51.100.1"


class Guesser:
    """Guesses Ada's password from one address as often as possible."""

    def __init__(
        self, throttle: Throttle, way: SignInMethod = "account", address: str = ATTACKER
    ) -> None:
        self._throttle, self._address = throttle, address
        self._way: SignInMethod = way
        self.guesses = 0

    async def guess(self) -> int:
        """Guess once. Return the seconds to wait if the guess was refused, else 0."""
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
    """Sign in with the right password. Raises `TooManyAttemptsError`."""
    await throttle.forgive(await throttle.admit_sign_in(way, "Ada", address=address))


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


@pytest.mark.every_database
async def test_an_address_that_signed_in_before_does_not_wait_for_guesses_from_elsewhere(
    either: Running, clock: Clock
) -> None:
    async with either.account("Ada"):
        pass
    ok(await sign_in_from(either, "Ada", address=HOME), 201)
    throttle = Throttle(either.parts.database, either.parts.instance)
    for n in range(ACCOUNT_ALLOWANCE.free + 1):
        await Guesser(throttle, address=f"198.51.{n}.1").guess()
    problem(await sign_in_from(either, "Ada", address=CAFE), 429, "too-many-attempts")
    ok(await sign_in_from(either, "Ada", address=HOME), 201)
    for _ in range(5):
        problem(await sign_in_from(either, "Ada", WRONG, address=HOME), 401, "wrong-credentials")
    problem(await sign_in_from(either, "Ada", address=HOME), 429, "too-many-attempts")
    clock.forward(seconds=1)
    ok(await sign_in_from(either, "Ada", address=HOME), 201)


async def test_a_known_address_helps_the_account_that_it_is_known_for_and_no_other(
    server: Running, ada: Account, clock: Clock, throttle: Throttle
) -> None:
    ok(await sign_in_from(server, "Ada", address=HOME), 201)
    for _ in range(5):
        await throttle.admit_sign_in("account", "Ben", address=HOME)
    for name in ("Ben", "nobody"):
        with pytest.raises(TooManyAttemptsError):
            await throttle.admit_sign_in("account", name, address=HOME)
    ok(await sign_in_from(server, "Ada", address=HOME), 201)


@pytest.mark.every_database
async def test_the_newest_addresses_stay_known_and_none_for_good(
    either: Running, clock: Clock
) -> None:
    async with either.account("Ada"):
        for n in range(MAX_KNOWN_ADDRESSES + 3):
            clock.forward(minutes=1)
            ok(await sign_in_from(either, "Ada", address=f"192.0.2.{n}"), 201)
        assert await known_addresses(either) == MAX_KNOWN_ADDRESSES
        clock.forward(seconds=KNOWN_ADDRESS_RETENTION.total_seconds() + 1)
        ok(await sign_in_from(either, "Ada", address=HOME), 201)
        await prune(either.parts.database, either.parts.settings, at=clock.at)
        assert await known_addresses(either) == 1


async def test_recovery_forgets_the_addresses_that_were_known(
    server: Running, ada: Account
) -> None:
    for n in range(3):
        ok(await sign_in_from(server, "Ada", address=f"192.0.2.{n}"), 201)
    body = {"username": "Ada", "recovery_code": ada.recovery_code, "new_password": "a finer one"}
    ok(await ada.client.post("/api/v1/recoveries", json=body), 201)
    assert await known_addresses(server) == 1


async def test_no_address_is_readable_in_the_tables(server: Running, ada: Account) -> None:
    ok(await sign_in_from(server, "Ada", address=HOME), 201)
    await sign_in_from(server, "Ada", WRONG, address=CAFE)
    async with server.parts.database.read() as session:
        keys = [
            *await session.scalars(select(KnownAddress.key)),
            *await session.scalars(select(LoginFailures.key)),
        ]
    assert {len(key) for key in keys} == {32}
