"""Tests of second factors: authenticator apps, one-time codes and passkeys."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.orm import undefer

from backend.accounts.auth.second_factor.passkeys import parse_site
from backend.accounts.auth.second_factor.service import MAX_PASSKEYS
from backend.accounts.auth.throttle import ADDRESS_ALLOWANCE
from backend.accounts.models import KeySlot, SecondFactor, User
from tests.support.clock import Clock
from tests.support.factors import (
    FACTORS,
    SESSIONS,
    App,
    SoftPasskey,
    add_passkey,
    at_localhost,
    begin_passkey,
    finish_passkey,
    new_passkey,
    set_up_app,
    sign_in,
)
from tests.support.logs import Logged
from tests.support.server import PASSWORD, Account, Running, ok, problem

pytestmark = pytest.mark.anyio

ACTIVITY = "/api/v1/me/activity"
NEW = "an even finer password"
ELSEWHERE = (f"2001:db8:{n:x}::1" for n in count(1))
"""Addresses, each used once."""


def wrong(code: str) -> str:
    return f"{(int(code) + 1) % 1_000_000:06}"


async def with_app(server: Running, clock: Clock) -> App:
    """Sign up as Ada with an authenticator app. The code that enabled it is used up."""
    async with server.account("Ada") as ada:
        app = await set_up_app(ada, clock.at)
    clock.forward(seconds=60)
    return app


async def read_factors(account: Account) -> dict[str, Any]:
    found: dict[str, Any] = ok(await account.client.get(FACTORS))
    return found


async def kinds(account: Account) -> list[str]:
    return [each["kind"] for each in ok(await account.client.get(ACTIVITY))["items"]]


async def test_the_app_gets_its_secret_and_counts_from_its_first_code_on(
    server: Running, ada: Account, clock: Clock
) -> None:
    body = {"password": PASSWORD}
    begun = ok(await ada.client.post(f"{FACTORS}/totp", json=body), 201)
    uri = urlsplit(str(begun["uri"]))
    assert (uri.scheme, uri.netloc, uri.path) == ("otpauth", "totp", "/Talekeeper:Ada")
    assert parse_qs(uri.query) == {"secret": [begun["secret"]], "issuer": ["Talekeeper"]}
    assert {len(row) for row in begun["qr"]} == {len(begun["qr"])}
    assert set("".join(begun["qr"])) == {"0", "1"}

    code = App(begun["secret"], []).code(clock.at)
    answer = await ada.client.post(f"{FACTORS}/totp/confirmation", json={"code": wrong(code)})
    problem(answer, 401, "wrong-second-factor")
    ok(await sign_in(server), 201)  # no factor is enabled yet
    assert await read_factors(ada) == {"totp": None, "passkeys": [], "one_time_codes": 0}
    done = ok(await ada.client.post(f"{FACTORS}/totp/confirmation", json={"code": code}), 201)
    assert len(set(done["codes"])) == 10
    assert all(re.fullmatch("[A-Z2-7]{5}-[A-Z2-7]{5}", each) for each in done["codes"])
    assert (await read_factors(ada))["one_time_codes"] == 10
    problem(await sign_in(server), 401, "second-factor-required")
    assert (await kinds(ada))[0] == "second_factor_on"


async def test_a_set_up_that_was_left_lying_does_not_count(
    server: Running, ada: Account, clock: Clock
) -> None:
    path = f"{FACTORS}/totp"
    secrets = [
        ok(await ada.client.post(path, json={"password": PASSWORD}), 201)["secret"]
        for _ in range(2)
    ]
    for secret, status in ((secrets[0], 401), (secrets[1], 409)):
        if status == 409:
            clock.forward(minutes=10, seconds=1)
        body = {"code": App(secret, []).code(clock.at)}
        answer = await ada.client.post(f"{path}/confirmation", json=body)
        assert answer.status_code == status
    assert (await read_factors(ada))["totp"] is None


async def test_the_password_alone_gets_nothing_but_the_question(
    either: Running, clock: Clock
) -> None:
    app = await with_app(either, clock)
    asked = problem(await sign_in(either), 401, "second-factor-required")
    assert asked["kinds"] == ["totp", "one_time_code"]
    assert asked["passkey"] is None
    # A wrong password does not reveal that there is a second factor.
    for extra in ({}, {"otp": app.code(clock.at)}, {"otp": app.codes[0]}):
        answer = await sign_in(either, **{"password": NEW, **extra})
        problem(answer, 401, "wrong-credentials")
    assert "set-cookie" not in (await sign_in(either)).headers
    ok(await sign_in(either, otp=app.code(clock.at)), 201)


async def test_a_code_works_once_and_older_ones_not_at_all(either: Running, clock: Clock) -> None:
    app = await with_app(either, clock)
    older, code = app.code(clock.at), app.code(clock.at.replace(microsecond=0))
    clock.forward(seconds=30)
    code = app.code(clock.at)
    ok(await sign_in(either, otp=f" {code[:3]} {code[3:]} "), 201)
    for used in (code, older):
        problem(await sign_in(either, otp=used), 401, "wrong-second-factor")
    clock.forward(seconds=30)
    ok(await sign_in(either, otp=app.code(clock.at)), 201)


async def test_a_clock_that_is_wrong_by_a_minute_is_too_wrong(
    server: Running, clock: Clock
) -> None:
    app = await with_app(server, clock)
    now = clock.at
    codes = {}
    for seconds in (-60, -30, 60, 30):
        clock.forward(seconds=seconds)
        codes[seconds] = app.code(clock.at)
        clock.at = now
    for seconds, status in ((-60, 401), (60, 401), (-30, 201), (30, 201)):
        answer = await sign_in(server, otp=codes[seconds])
        assert answer.status_code == status, seconds


async def test_one_of_several_sign_ins_with_a_code_succeeds(either: Running, clock: Clock) -> None:
    app = await with_app(either, clock)
    for otp in (app.code(clock.at), app.codes[0]):
        answers = await asyncio.gather(*(sign_in(either, otp=otp) for _ in range(4)))
        assert sorted(answer.status_code for answer in answers) == [201, 401, 401, 401], otp


async def test_a_one_time_code_works_once_however_it_is_typed(
    either: Running, clock: Clock
) -> None:
    app = await with_app(either, clock)
    first, second = app.codes[:2]
    ok(await sign_in(either, otp=first), 201)
    problem(await sign_in(either, otp=first), 401, "wrong-second-factor")
    mistyped = second.lower().replace("-", " ").replace("o", "0").replace("i", "1")
    ok(await sign_in(either, otp=mistyped), 201)
    async with either.browser() as client:
        answer = await client.post(
            SESSIONS, json={"username": "Ada", "password": PASSWORD, "otp": app.codes[2]}
        )
        ok(answer, 201)
        assert ok(await client.get(FACTORS))["one_time_codes"] == 7


async def test_new_codes_take_the_place_of_those_that_are_left(
    server: Running, ada: Account, clock: Clock
) -> None:
    path, body = f"{FACTORS}/codes", {"password": PASSWORD}
    problem(await ada.client.post(path, json=body), 409, "second-factor-off")
    app = await set_up_app(ada, clock.at)
    problem(await ada.client.post(path, json=body), 401, "second-factor-required")
    problem(await ada.client.post(path, json={"password": NEW}), 401, "wrong-credentials")
    body["otp"] = app.codes[0]
    codes = ok(await ada.client.post(path, json=body), 201)["codes"]
    assert len(set(codes) - set(app.codes)) == 10
    problem(await sign_in(server, otp=app.codes[1]), 401, "wrong-second-factor")
    ok(await sign_in(server, otp=codes[1]), 201)


async def test_the_first_factor_ends_the_other_sessions_and_api_keys_go_on(
    server: Running, ada: Account, clock: Clock
) -> None:
    token = ok(await ada.client.post("/api/v1/api-keys", json={"label": "s"}), 201)["token"]
    async with server.signed_in("Ada") as other, server.program(token) as script:
        app = await set_up_app(ada, clock.at)
        problem(await other.client.get("/api/v1/me"), 401, "unauthenticated")
        ok(await script.get("/api/v1/chats"))
        ok(await ada.client.get("/api/v1/me"))
    answer = await sign_in(server, otp=app.codes[0])
    ok(answer, 201)


async def test_an_app_is_replaced_with_the_old_one_and_removed_with_the_new(
    server: Running, ada: Account, clock: Clock
) -> None:
    old = await set_up_app(ada, clock.at)
    body = {"password": PASSWORD}
    problem(await ada.client.post(f"{FACTORS}/totp", json=body), 401, "second-factor-required")
    clock.forward(seconds=30)
    new = await set_up_app(ada, clock.at, otp=old.code(clock.at))
    assert new.codes == []  # the old codes stay valid
    clock.forward(seconds=30)
    problem(await sign_in(server, otp=old.code(clock.at)), 401, "wrong-second-factor")

    gone = await ada.client.request("DELETE", f"{FACTORS}/totp", json=body)
    problem(gone, 401, "second-factor-required")
    body["otp"] = new.code(clock.at)
    ok(await ada.client.request("DELETE", f"{FACTORS}/totp", json=body), 204)
    assert await read_factors(ada) == {"totp": None, "passkeys": [], "one_time_codes": 0}
    ok(await sign_in(server), 201)
    again = await ada.client.request("DELETE", f"{FACTORS}/totp", json=body)
    problem(again, 409, "second-factor-off")
    assert (await kinds(ada))[:2] == ["signed_in", "second_factor_off"]


async def test_a_recovery_switches_second_factors_off(
    server: Running, ada: Account, clock: Clock
) -> None:
    await set_up_app(ada, clock.at)
    body = {"username": "Ada", "recovery_code": ada.recovery_code, "new_password": NEW}
    ok(await ada.client.post("/api/v1/recoveries", json=body), 201)
    assert await read_factors(ada) == {"totp": None, "passkeys": [], "one_time_codes": 0}
    ok(await sign_in(server, password=NEW), 201)
    assert "recovered" in await kinds(ada)


async def test_a_new_password_leaves_the_second_factor_on(
    server: Running, ada: Account, clock: Clock
) -> None:
    app = await set_up_app(ada, clock.at)
    change = {"current_password": PASSWORD, "new_password": NEW}
    ok(await ada.client.post("/api/v1/me/password", json=change), 204)
    ok(await ada.client.patch("/api/v1/me", json={"key_mode": "sealed"}))
    problem(await sign_in(server, password=NEW), 401, "second-factor-required")
    ok(await sign_in(server, password=NEW, otp=app.codes[0]), 201)


async def test_guesses_of_six_digits_are_limited_per_account(either: Running, clock: Clock) -> None:
    app = await with_app(either, clock)
    bad = wrong(app.code(clock.at))
    for n in range(ADDRESS_ALLOWANCE.free):
        answer = await sign_in(either, otp=bad, address=f"203.0.113.{n}")
        problem(answer, 401, "wrong-second-factor")
    refused = await sign_in(either, otp=app.code(clock.at), address="203.0.113.99")
    problem(refused, 429, "too-many-attempts")


async def test_concurrent_guesses_gain_nothing(either: Running, clock: Clock) -> None:
    app = await with_app(either, clock)
    bad = wrong(app.code(clock.at))
    answers = await asyncio.gather(
        *(sign_in(either, otp=bad, address=f"203.0.113.{n}") for n in range(12))
    )
    assert sorted(each.status_code for each in answers) == [401] * 5 + [429] * 7


async def test_a_guesser_who_knows_the_password_does_not_lock_the_owner_out(
    server: Running, clock: Clock
) -> None:
    app = await with_app(server, clock)
    home = "198.51.100.77"
    ok(await sign_in(server, otp=app.code(clock.at), address=home), 201)
    for n in range(8):
        await sign_in(server, otp="000000", address=f"203.0.113.{n}")
    code = app.code(clock.at + timedelta(seconds=30))
    problem(await sign_in(server, otp=code, address="203.0.113.99"), 429, "too-many-attempts")
    # A known address is not delayed, and one-time codes cannot be guessed.
    ok(await sign_in(server, otp=code, address=home), 201)
    ok(await sign_in(server, otp=app.codes[0], address="203.0.113.99"), 201)


async def test_wrong_codes_count_for_the_address_and_show_in_recent_activity(
    server: Running, clock: Clock
) -> None:
    app = await with_app(server, clock)
    here = "203.0.113.5"
    for _ in range(ADDRESS_ALLOWANCE.free):
        answer = await sign_in(server, otp="AAAAA-AAAAA", address=here)
        problem(answer, 401, "wrong-second-factor")
    problem(await sign_in(server, "nobody", address=here), 429, "too-many-attempts")
    async with server.browser() as client:
        body = {"username": "Ada", "password": PASSWORD, "otp": app.codes[0]}
        ok(await client.post(SESSIONS, json=body), 201)
        newest, failed, *_ = ok(await client.get(ACTIVITY))["items"]
    assert newest["kind"] == "signed_in"
    assert (failed["kind"], failed["count"]) == ("wrong_second_factor", 5)
    assert failed["address"] == here


async def test_a_signed_in_thief_does_not_guess_the_second_factor_either(
    server: Running, ada: Account, clock: Clock
) -> None:
    app = await set_up_app(ada, clock.at)
    body = {"password": PASSWORD, "otp": "000000"}
    for _ in range(ADDRESS_ALLOWANCE.free):
        answer = await ada.client.request("DELETE", f"{FACTORS}/totp", json=body)
        problem(answer, 401, "wrong-second-factor")
    body["otp"] = app.code(clock.at)
    answer = await ada.client.request("DELETE", f"{FACTORS}/totp", json=body)
    problem(answer, 429, "too-many-attempts")


async def rows(server: Running) -> list[SecondFactor]:
    async with server.parts.database.read() as session:
        return list(await session.scalars(select(SecondFactor).order_by(SecondFactor.id)))


async def user_row(server: Running) -> User:
    async with server.parts.database.read() as session:
        return (await session.scalars(select(User).options(undefer("*")))).one()


async def everything_refused(server: Running, app: App, clock: Clock) -> None:
    for extra in ({}, {"otp": app.code(clock.at)}, {"otp": app.codes[1]}):
        refused = await sign_in(server, address=next(ELSEWHERE), **extra)
        problem(refused, 403, "account-tampered")


async def test_a_factor_that_is_deleted_locks_the_account_instead_of_opening_it(
    either: Running, clock: Clock, logged: Logged
) -> None:
    app = await with_app(either, clock)
    for condition in (SecondFactor.kind == "totp", SecondFactor.id.is_not(None)):
        async with either.parts.database.write() as session:
            await session.execute(delete(SecondFactor).where(condition))
        await everything_refused(either, app, clock)
    assert logged.lines("account.tampered")


async def test_a_factor_that_is_switched_off_or_put_back_is_noticed(
    either: Running, clock: Clock, logged: Logged
) -> None:
    app = await with_app(either, clock)
    spent = (await rows(either))[-1]
    database = either.parts.database
    for is_on in (False, True):
        async with database.write() as session:
            await session.execute(update(SecondFactor).values(is_on=is_on))
        if not is_on:
            await everything_refused(either, app, clock)
    ok(await sign_in(either, otp=app.codes[-1]), 201)
    assert len(await rows(either)) == 10
    async with database.write() as session:
        columns = SecondFactor.__table__.columns
        session.add(SecondFactor(**{each.name: getattr(spent, each.name) for each in columns}))
    await everything_refused(either, app, clock)


async def test_an_older_digest_or_mac_is_noticed(
    either: Running, clock: Clock, logged: Logged
) -> None:
    async with either.account("Ada") as ada:
        before = await user_row(either)
        app = await set_up_app(ada, clock.at)
        after = await user_row(either)
        assert before.factors_digest is None
        for values in (
            {"factors_digest": None},
            {"settings_mac": before.settings_mac},
            {"factors_digest": b"x" * 32},
        ):
            async with either.parts.database.write() as session:
                await session.execute(update(User).values(values))
                if values.get("factors_digest", b"") is None:
                    await session.execute(update(SecondFactor).values(is_on=False))
            clock.forward(seconds=30)
            await everything_refused(either, app, clock)
            problem(await ada.client.get("/api/v1/me"), 403, "account-tampered")
            async with either.parts.database.write() as session:
                await session.execute(update(SecondFactor).values(is_on=True))
                await session.execute(
                    update(User).values(
                        factors_digest=after.factors_digest, settings_mac=after.settings_mac
                    )
                )
        ok(await ada.client.get("/api/v1/me"))
        ok(await sign_in(either, otp=app.codes[0]), 201)


async def test_an_older_row_does_not_switch_a_factor_off(
    either: Running, clock: Clock, logged: Logged
) -> None:
    async with either.account("Ada") as ada:
        before = await user_row(either)
        await set_up_app(ada, clock.at)
        columns = {each.name: getattr(before, each.name) for each in User.__table__.columns}
        async with either.parts.database.write() as session:
            await session.execute(delete(SecondFactor))
            await session.execute(update(User).values(columns))
        problem(await sign_in(either), 403, "account-tampered")
        problem(await ada.client.get("/api/v1/me"), 403, "account-tampered")


async def test_a_secret_of_another_account_does_not_open(
    server: Running, ada: Account, clock: Clock, logged: Logged
) -> None:
    app = await set_up_app(ada, clock.at)
    async with server.account("Eve") as eve:
        stolen = await set_up_app(eve, clock.at)
    theirs, own = [
        next(each for each in await rows(server) if each.kind == "totp" and each.user_id == UUID(i))
        for i in (eve.user["id"], ada.user["id"])
    ]
    async with server.parts.database.write() as session:
        await session.execute(
            update(SecondFactor)
            .where(SecondFactor.id == own.id)
            .values(sealed_secret=theirs.sealed_secret)
        )
    clock.forward(seconds=30)
    problem(await sign_in(server, otp=stolen.code(clock.at)), 500, "seal-broken")
    ok(await sign_in(server, otp=app.codes[0]), 201)


async def test_nothing_of_a_factor_can_be_read_without_the_users_key(
    server: Running, ada: Account, clock: Clock
) -> None:
    app = await set_up_app(ada, clock.at)
    blobs = [blob for row in await rows(server) for blob in (row.sealed_secret, row.sealed_label)]
    for blob in filter(None, blobs):
        for secret in (app.secret, *app.codes):
            assert secret.encode() not in blob


async def test_an_older_account_has_no_second_factor(server: Running, ada: Account) -> None:
    """The MAC of an older account covers no factors."""
    async with server.parts.database.read() as session:
        user = (await session.scalars(select(User))).one()
        assert user.factors_digest is None
        assert await session.scalar(select(KeySlot.id).where(KeySlot.kind == "session"))
    ok(await sign_in(server), 201)


async def test_nonsense_is_no_second_factor(server: Running, clock: Clock) -> None:
    await with_app(server, clock)
    nonsense: tuple[dict[str, Any], ...] = (
        {"otp": ""},
        {"otp": "１２３４５６"},
        {"otp": "\0" * 6},
        {"passkey": {}},
        {"passkey": {"id": 1, "response": {"clientDataJSON": "!"}}},
    )
    for n, extra in enumerate(nonsense):
        answer = await sign_in(server, address=f"203.0.113.{n}", **extra)
        problem(answer, 401, "wrong-second-factor")
    problem(await sign_in(server, otp="1" * 300), 422, "validation-failed")


async def request_challenge(server: Running) -> dict[str, Any]:
    asked = problem(await sign_in(server), 401, "second-factor-required")
    assert "passkey" in asked["kinds"]
    options: dict[str, Any] = asked["passkey"]
    return options


async def remove(
    server: Running, account: Account, passkey_id: str, **proof: Any
) -> tuple[int, Any]:
    answer = await account.client.request(
        "DELETE",
        f"{FACTORS}/passkeys/{passkey_id}",
        json={"password": PASSWORD, **proof},
        headers=at_localhost(server),
    )
    return answer.status_code, answer.json() if answer.content else None


async def test_a_passkey_is_added_and_signs_in(either: Running) -> None:
    async with either.account("Ada") as ada:
        passkey, added = await add_passkey(either, ada, "Blue key")
        assert added["passkey"]["label"] == "Blue key"
        assert added["passkey"]["site"] == "localhost"
        assert len(added["codes"]) == 10
        asked = await request_challenge(either)
        assert len(asked["allowCredentials"]) == 1
        ok(await sign_in(either, passkey=passkey.get(asked)), 201)
        listed = ok(await ada.client.get(FACTORS))
        assert listed["passkeys"][0]["last_used_at"] is not None
        ok(await sign_in(either, otp=added["codes"][0]), 201)


async def test_an_answer_works_once_and_no_older_one_after_it(either: Running) -> None:
    async with either.account("Ada") as ada:
        passkey, _ = await add_passkey(either, ada)
        older = await request_challenge(either)
        newer = await request_challenge(either)
        answer = passkey.get(newer)
        answers = await asyncio.gather(*(sign_in(either, passkey=answer) for _ in range(3)))
        assert sorted(each.status_code for each in answers) == [201, 401, 401]
        problem(await sign_in(either, passkey=answer), 401, "wrong-second-factor")
        problem(await sign_in(either, passkey=passkey.get(older)), 401, "wrong-second-factor")


async def test_a_challenge_is_answered_within_five_minutes(
    server: Running, ada: Account, clock: Clock
) -> None:
    passkey, _ = await add_passkey(server, ada)
    asked = await request_challenge(server)
    clock.forward(minutes=5)
    problem(await sign_in(server, passkey=passkey.get(asked)), 401, "wrong-second-factor")


async def test_an_answer_for_something_else_is_refused(server: Running, ada: Account) -> None:
    """Refuse another passkey, site or account, and a challenge of another browser."""
    passkey, added = await add_passkey(server, ada)
    async with server.account("Eve") as eve:
        theirs, _ = await add_passkey(server, eve)
        asked_eve = problem(await sign_in(server, "Eve"), 401, "second-factor-required")["passkey"]
    asked = await request_challenge(server)
    stranger = new_passkey(server)
    stranger.credential_id = passkey.credential_id
    elsewhere = SoftPasskey("http://localhost.example", passkey.credential_id, passkey.key)
    _, confirming = await remove(server, ada, added["passkey"]["id"])
    for answer in (
        stranger.get(asked),
        elsewhere.get(asked),
        theirs.get(asked),
        passkey.get(asked_eve),
        passkey.get(confirming["passkey"]),
        passkey.get({**asked, "rpId": "example.org"}),
    ):
        address = f"2001:db8:{uuid4().hex[:4]}::1"
        refused = await sign_in(server, passkey=answer, address=address)
        problem(refused, 401, "wrong-second-factor")
    ok(await sign_in(server, passkey=passkey.get(asked)), 201)


async def test_a_copied_key_is_noticed_by_its_count(server: Running, ada: Account) -> None:
    passkey, _ = await add_passkey(server, ada)
    copy = SoftPasskey(passkey.origin, passkey.credential_id, passkey.key, count=0)
    for _ in range(3):
        ok(await sign_in(server, passkey=passkey.get(await request_challenge(server))), 201)
    refused = await sign_in(server, passkey=copy.get(await request_challenge(server)))
    problem(refused, 401, "wrong-second-factor")


async def test_a_passkey_is_renamed_and_removed_with_a_passkey(
    server: Running, ada: Account
) -> None:
    passkey, added = await add_passkey(server, ada)
    passkey_id = added["passkey"]["id"]
    path = f"{FACTORS}/passkeys/{passkey_id}"
    assert ok(await ada.client.patch(path, json={"label": "Red key"}))["label"] == "Red key"
    status, asked = await remove(server, ada, passkey_id)
    assert (status, asked["type"]) == (401, "urn:talekeeper:problem:second-factor-required")
    status, _ = await remove(server, ada, passkey_id, passkey=passkey.get(asked["passkey"]))
    assert status == 204
    shown = ok(await ada.client.get(FACTORS))
    assert shown == {"totp": None, "passkeys": [], "one_time_codes": 0}
    ok(await sign_in(server), 201)


async def test_with_an_app_beside_it_codes_stay_when_the_passkey_goes(
    server: Running, ada: Account, clock: Clock
) -> None:
    app = await set_up_app(ada, clock.at)
    _, added = await add_passkey(server, ada, otp=app.codes[0])
    assert added["codes"] is None
    status, _ = await remove(server, ada, added["passkey"]["id"], otp=app.codes[1])
    assert status == 204
    assert ok(await ada.client.get(FACTORS))["one_time_codes"] == 8


async def test_one_registration_adds_one_passkey(server: Running, ada: Account) -> None:
    options = await begin_passkey(server, ada)
    passkey = new_passkey(server)
    made = passkey.create(options)
    problem(await finish_passkey(server, ada, {**made, "response": {}}), 422, "passkey-refused")
    foreign = SoftPasskey("https://example.org").create(options)
    problem(await finish_passkey(server, ada, foreign), 422, "passkey-refused")
    codes = ok(await finish_passkey(server, ada, made), 201)["codes"]
    problem(await finish_passkey(server, ada, made), 422, "passkey-refused")
    again = await begin_passkey(server, ada, otp=codes[0])
    assert [each["id"] for each in again["excludeCredentials"]] == [made["id"]]
    problem(await finish_passkey(server, ada, passkey.create(again)), 422, "passkey-refused")
    assert len(ok(await ada.client.get(FACTORS))["passkeys"]) == 1


async def test_a_registration_that_was_left_lying_does_not_count(
    server: Running, ada: Account, clock: Clock
) -> None:
    options = await begin_passkey(server, ada)
    clock.forward(minutes=10, seconds=1)
    made = new_passkey(server).create(options)
    problem(await finish_passkey(server, ada, made), 422, "passkey-refused")


async def test_there_are_only_so_many(
    server: Running, ada: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_PASSKEYS == 10
    monkeypatch.setattr("backend.accounts.auth.second_factor.service.MAX_PASSKEYS", 1)
    _, added = await add_passkey(server, ada)
    answer = await ada.client.post(
        f"{FACTORS}/passkeys",
        json={"password": PASSWORD, "otp": added["codes"][0]},
        headers=at_localhost(server),
    )
    problem(answer, 409, "too-many-passkeys")


async def test_an_address_has_no_passkeys_and_the_answer_says_what_to_do(
    server: Running, ada: Account
) -> None:
    answer = await ada.client.post(f"{FACTORS}/passkeys", json={"password": PASSWORD})
    told = problem(answer, 409, "passkey-unavailable")["detail"]
    assert server.url.replace("127.0.0.1", "localhost") in told
    assert "TALEKEEPER_PUBLIC_ORIGIN" in told
    await add_passkey(server, ada)
    async with server.browser() as client:
        body = {"username": "Ada", "password": PASSWORD}
        asked = problem(
            await client.post("/api/v1/sessions", json=body), 401, "second-factor-required"
        )
    assert asked["kinds"] == ["one_time_code"]
    assert asked["passkey"] is None


def test_a_site_is_a_name_with_https_or_this_machine() -> None:
    for origin, rp_id, own in (
        ("https://tales.example", "tales.example", "https://tales.example"),
        ("https://Tales.example:443/", "tales.example", "https://tales.example"),
        ("https://tales.example:8443", "tales.example", "https://tales.example:8443"),
        ("http://localhost:8000", "localhost", "http://localhost:8000"),
    ):
        site = parse_site(origin)
        assert (site.rp_id, site.origin) == (rp_id, own)
    for origin in ("http://tales.example", "https://192.0.2.1", "http://[::1]:8000"):
        with pytest.raises(Exception, match=r"address|https"):
            parse_site(origin)
