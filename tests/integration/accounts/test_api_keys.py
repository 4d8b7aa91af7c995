"""API keys: how far they reach, and for how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from backend.accounts.auth.middleware import PLAIN_COOKIE
from tests.support.clock import Clock
from tests.support.server import Account, Running, ok, problem

pytestmark = pytest.mark.anyio

KEYS = "/api/v1/api-keys"
ME = "/api/v1/me"


async def make_key(account: Account, **body: Any) -> dict[str, Any]:
    made: dict[str, Any] = ok(
        await account.client.post(KEYS, json={"label": "script", **body}), 201
    )
    return made


async def test_a_token_is_shown_once_and_opens_the_account(server: Running, ada: Account) -> None:
    made = await make_key(ada, label="My script")
    assert made["token"].startswith("tk_")
    (listed,) = ok(await ada.client.get(KEYS))["items"]
    assert listed == made["key"]
    assert (listed["label"], listed["scope"], listed["last_used_at"]) == ("My script", "chat", None)
    async with server.program(made["token"]) as script:
        assert ok(await script.get(ME))["username"] == "Ada"
    (used,) = ok(await ada.client.get(KEYS))["items"]
    assert used["last_used_at"] is not None


async def test_a_key_that_was_ended_opens_nothing(server: Running, ada: Account) -> None:
    made = await make_key(ada)
    async with server.program(made["token"]) as script:
        ok(await script.get(ME))
        ended = await ada.client.delete(f"{KEYS}/{made['key']['id']}")
        assert ended.status_code == 204
        problem(await script.get(ME), 401, "unauthenticated")
    again = await ada.client.delete(f"{KEYS}/{made['key']['id']}")
    problem(again, 404, "api-key-not-found")


async def test_a_key_works_until_it_expires(server: Running, ada: Account, clock: Clock) -> None:
    made = await make_key(ada, expires_at=(clock.at + timedelta(days=1)).isoformat())
    lasting = await make_key(ada)
    async with server.program(made["token"]) as script, server.program(lasting["token"]) as other:
        ok(await script.get(ME))
        clock.forward(days=1)
        problem(await script.get(ME), 401, "unauthenticated")
        clock.forward(days=20)
        ok(await other.get(ME))
    assert len(ok(await ada.client.get(KEYS))["items"]) == 1


async def test_an_expiry_that_cannot_be_is_refused(ada: Account) -> None:
    for at, status, slug in (
        ("2999-01-01T00:00:00", 400, "bad-request"),
        ("2020-01-01T00:00:00Z", 422, "validation-failed"),
        ("9999-12-31T23:59:59-01:00", 422, "validation-failed"),
        ("0001-01-01T00:00:00+01:00", 422, "validation-failed"),
        ("tomorrow", 422, "validation-failed"),
    ):
        answer = await ada.client.post(KEYS, json={"label": "script", "expires_at": at})
        problem(answer, status, slug)
    assert ok(await ada.client.get(KEYS))["items"] == []


async def test_keys_and_sessions_do_not_pass_for_each_other(server: Running, ada: Account) -> None:
    key = (await make_key(ada, scope="manage"))["token"]
    session = ada.client.cookies[PLAIN_COOKIE]
    async with server.program(session) as client:
        problem(await client.get(ME), 401, "unauthenticated")
    async with server.browser() as client:
        client.cookies.set(PLAIN_COOKIE, key, domain="127.0.0.1")
        problem(await client.get(ME), 401, "unauthenticated")


async def test_a_key_that_opens_nothing_is_not_helped_by_a_cookie(ada: Account) -> None:
    answer = await ada.client.get(ME, headers={"Authorization": "Bearer tk_" + "A" * 43})
    problem(answer, 401, "unauthenticated")


async def test_a_key_has_no_session_to_end(server: Running, ada: Account) -> None:
    made = await make_key(ada, scope="manage")
    async with server.program(made["token"]) as script:
        for each in ("current", made["key"]["id"], "no id"):
            problem(await script.delete(f"/api/v1/sessions/{each}"), 404, "session-not-found")
        ok(await script.get(ME))
