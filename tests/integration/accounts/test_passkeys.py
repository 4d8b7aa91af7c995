"""Passkeys as a second factor, with a security key in software."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from backend.accounts.auth.second_factor.passkeys import parse_site
from backend.accounts.auth.second_factor.service import MAX_PASSKEYS
from tests.support.clock import Clock
from tests.support.factors import (
    FACTORS,
    SoftPasskey,
    add_passkey,
    at_localhost,
    begin_passkey,
    finish_passkey,
    new_passkey,
    set_up_app,
    sign_in,
)
from tests.support.server import PASSWORD, Account, Running, ok, problem

pytestmark = pytest.mark.anyio


async def challenge(server: Running) -> dict[str, Any]:
    """What the browser is asked at a sign-in."""
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
        asked = await challenge(either)
        assert len(asked["allowCredentials"]) == 1
        ok(await sign_in(either, passkey=passkey.get(asked)), 201)
        listed = ok(await ada.client.get(FACTORS))
        assert listed["passkeys"][0]["last_used_at"] is not None
        ok(await sign_in(either, otp=added["codes"][0]), 201)


async def test_an_answer_works_once_and_no_older_one_after_it(either: Running) -> None:
    async with either.account("Ada") as ada:
        passkey, _ = await add_passkey(either, ada)
        older = await challenge(either)
        newer = await challenge(either)
        answer = passkey.get(newer)
        answers = await asyncio.gather(*(sign_in(either, passkey=answer) for _ in range(3)))
        assert sorted(each.status_code for each in answers) == [201, 401, 401]
        problem(await sign_in(either, passkey=answer), 401, "wrong-second-factor")
        problem(await sign_in(either, passkey=passkey.get(older)), 401, "wrong-second-factor")


async def test_a_challenge_is_answered_within_five_minutes(
    server: Running, ada: Account, clock: Clock
) -> None:
    passkey, _ = await add_passkey(server, ada)
    asked = await challenge(server)
    clock.forward(minutes=5)
    problem(await sign_in(server, passkey=passkey.get(asked)), 401, "wrong-second-factor")


async def test_an_answer_for_something_else_is_refused(server: Running, ada: Account) -> None:
    """Another passkey, another site, another account's challenge, one that was asked elsewhere."""
    passkey, added = await add_passkey(server, ada)
    async with server.account("Eve") as eve:
        theirs, _ = await add_passkey(server, eve)
        asked_eve = problem(await sign_in(server, "Eve"), 401, "second-factor-required")["passkey"]
    asked = await challenge(server)
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
        ok(await sign_in(server, passkey=passkey.get(await challenge(server))), 201)
    refused = await sign_in(server, passkey=copy.get(await challenge(server)))
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
