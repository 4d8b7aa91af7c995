"""Requests that another site's page makes a browser send."""

from __future__ import annotations

import pytest

from backend.accounts.auth.middleware import CSRF_COOKIE, CSRF_HEADER, PLAIN_COOKIE
from tests.support.server import PASSWORD, Account, Running, ok, problem, running

pytestmark = pytest.mark.anyio

CHATS = "/api/v1/chats"
ELSEWHERE = "https://elsewhere.example"


async def test_a_cookie_alone_changes_nothing(server: Running, ada: Account) -> None:
    async with server.browser() as other:
        other.event_hooks = {}
        other.cookies = ada.client.cookies
        ok(await other.get(CHATS))
        for headers in ({}, {CSRF_HEADER: ""}, {CSRF_HEADER: "made up"}):
            problem(await other.post(CHATS, json={}, headers=headers), 403, "cross-site-request")
        assert ok(await other.get(CHATS))["items"] == []


async def test_a_token_of_another_browser_does_not_fit(server: Running, ada: Account) -> None:
    async with server.signed_in("Ada") as other:
        foreign = {CSRF_HEADER: other.client.cookies[CSRF_COOKIE]}
    ada.client.event_hooks = {}
    problem(await ada.client.post(CHATS, json={}, headers=foreign), 403, "cross-site-request")


async def test_a_token_that_the_server_did_not_make_is_no_token(
    server: Running, ada: Account
) -> None:
    """A page on a sibling domain can set cookies, and so make the two agree."""
    ada.client.event_hooks = {}
    forged = "0" * 128
    ada.client.cookies.set(CSRF_COOKIE, forged, domain="127.0.0.1")
    session = f"{PLAIN_COOKIE}={ada.client.cookies[PLAIN_COOKIE]}; {CSRF_COOKIE}={forged}"
    headers = {CSRF_HEADER: forged, "Cookie": session}
    problem(await ada.client.post(CHATS, json={}, headers=headers), 403, "cross-site-request")


async def test_a_page_of_another_origin_is_refused_whatever_it_sends(
    server: Running, ada: Account
) -> None:
    for headers in (
        {"Origin": ELSEWHERE},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": server.url.replace("http", "https")},
        {"Origin": "http://127.0.0.1:99999"},
        {"Origin": "http://[::1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        for method, path in (("POST", CHATS), ("DELETE", "/api/v1/sessions/current")):
            answer = await ada.client.request(method, path, headers=headers)
            problem(answer, 403, "cross-site-request")
    ok(await ada.client.get("/api/v1/me"))


async def test_another_page_can_sign_nobody_in(server: Running, ada: Account) -> None:
    """A victim who is signed in to the attacker's account would write there."""
    body = {"username": "Ada", "password": PASSWORD}
    async with server.browser() as victim:
        for path in ("/api/v1/sessions", "/api/v1/accounts", "/api/v1/recoveries"):
            answer = await victim.post(path, json=body, headers={"Origin": ELSEWHERE})
            problem(answer, 403, "cross-site-request")
        assert dict(victim.cookies) == {}


async def test_the_own_page_comes_through(server: Running, ada: Account) -> None:
    for headers in (
        {"Origin": server.url, "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ):
        ok(await ada.client.post(CHATS, json={}, headers=headers), 201)


async def test_behind_a_proxy_that_hides_the_name_the_setting_says_what_the_own_page_is(
    sqlite_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("data")
    origin = "https://tales.example"
    async with (
        running(sqlite_url, folder, public_origin=f"{origin}/") as server,
        server.account() as ada,
    ):
        ok(await ada.client.post(CHATS, json={}, headers={"Origin": origin}), 201)
        answer = await ada.client.post(CHATS, json={}, headers={"Origin": server.url})
        problem(answer, 403, "cross-site-request")


async def test_a_program_with_a_key_needs_no_token_and_has_no_origin(
    server: Running, ada: Account
) -> None:
    made = ok(await ada.client.post("/api/v1/api-keys", json={"label": "script"}), 201)
    async with server.program(made["token"]) as script:
        ok(await script.post(CHATS, json={}), 201)
        # One that has an origin is a page, and a page elsewhere has no business with the key.
        refused = await script.post(CHATS, json={}, headers={"Origin": ELSEWHERE})
        problem(refused, 403, "cross-site-request")


async def test_an_upload_without_the_token_is_refused_before_it_is_read(
    server: Running, ada: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Litestar would look for the token in the form, and write that to a file, in the clear."""
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    ada.client.event_hooks = {}
    file = {"file": b"x" * 3_000_000}
    answer = await ada.client.post("/api/v1/characters/import", files=file)
    problem(answer, 403, "cross-site-request")
