"""How a request came: over https or not, through a trusted proxy or not."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from http.cookies import Morsel, SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.accounts.auth.middleware import CSRF_COOKIE, CSRF_HEADER, PLAIN_COOKIE, SECURE_COOKIE
from backend.http.responses import SchemeFinder
from tests.support.clock import Clock
from tests.support.server import PASSWORD, Account, Running, ok, problem, running

pytestmark = pytest.mark.anyio

SESSIONS = "/api/v1/sessions"
LOG_IN = {"username": "Ada", "password": PASSWORD}
NAME = "tales.example"
HTTPS = {"Host": NAME, "X-Forwarded-Proto": "https"}


@pytest.fixture
async def server(sqlite_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(sqlite_url, tmp_path, public_origin=f"https://{NAME}") as server:
        yield server


def cookies_of(answer: httpx.Response) -> dict[str, Morsel[str]]:
    """The cookies that an answer sets, with their attributes."""
    jar: SimpleCookie = SimpleCookie()
    for header in answer.headers.get_list("set-cookie"):
        jar.load(header)
    return dict(jar)


@pytest.fixture
async def local(sqlite_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    """A server that no origin is set for, with an account."""
    async with running(sqlite_url, tmp_path) as server, server.account("Ada"):
        yield server


async def log_in(server: Running, **headers: str) -> httpx.Response:
    async with server.browser() as client:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.post(SESSIONS, json=LOG_IN, headers=names)


async def test_on_this_machine_the_cookies_go_without_secure(local: Running) -> None:
    answer = await log_in(local)
    ok(answer, 201)
    cookies = cookies_of(answer)
    assert set(cookies) == {PLAIN_COOKIE, CSRF_COOKIE}
    session = cookies[PLAIN_COOKIE]
    assert session["httponly"] is True
    assert not session["secure"]
    assert (session["samesite"], session["path"], session["domain"]) == ("lax", "/", "")
    assert int(session["max-age"]) == 180 * 86400
    # The page has to read this one, to send it back.
    assert not cookies[CSRF_COOKIE]["httponly"]
    assert cookies[CSRF_COOKIE]["samesite"] == "lax"


async def test_behind_a_trusted_proxy_with_https_the_cookies_belong_to_that_host(
    server: Running, ada: Account
) -> None:
    answer = await log_in(server, **HTTPS)
    ok(answer, 201)
    assert answer.headers["strict-transport-security"]
    cookies = cookies_of(answer)
    assert set(cookies) == {SECURE_COOKIE, CSRF_COOKIE}
    for cookie in cookies.values():
        assert cookie["secure"] is True
        assert (cookie["path"], cookie["domain"], cookie["samesite"]) == ("/", "", "lax")
    assert cookies[SECURE_COOKIE]["httponly"] is True

    token, csrf = cookies[SECURE_COOKIE].value, cookies[CSRF_COOKIE].value
    async with server.browser() as client:
        sent = {**HTTPS, "Cookie": f"{SECURE_COOKIE}={token}; {CSRF_COOKIE}={csrf}"}
        ok(await client.get("/api/v1/me", headers=sent))
        # A cookie of the plain name might have been set by somebody on the way.
        plain = {**HTTPS, "Cookie": f"{PLAIN_COOKIE}={token}"}
        problem(await client.get("/api/v1/me", headers=plain), 401, "unauthenticated")
        out = await client.delete(f"{SESSIONS}/current", headers={**sent, CSRF_HEADER: csrf})
        assert out.status_code == 204
        assert {name: each["max-age"] for name, each in cookies_of(out).items()} == {
            SECURE_COOKIE: "0",
            CSRF_COOKIE: "0",
        }


async def test_behind_a_proxy_that_says_nothing_an_https_origin_decides(
    server: Running, ada: Account
) -> None:
    """An nginx without further settings sends the upstream's own address as host, and no scheme."""
    for headers in ({}, {"Host": NAME}, {"Host": NAME, "X_Forwarded_For": "203.0.113.7"}):
        answer = await log_in(server, **headers)
        ok(answer, 201)
        assert answer.headers["strict-transport-security"]
        cookies = cookies_of(answer)
        assert set(cookies) == {SECURE_COOKIE, CSRF_COOKIE}
        assert all(cookie["secure"] is True for cookie in cookies.values())
        assert not cookies[CSRF_COOKIE]["httponly"]
        token = cookies[SECURE_COOKIE].value
        async with server.browser() as client:
            sent = {"Cookie": f"{SECURE_COOKIE}={token}"}
            ok(await client.get("/api/v1/me", headers=sent))
            # A cookie of the plain name might have been set by somebody on the way.
            plain = {"Cookie": f"{PLAIN_COOKIE}={token}"}
            problem(await client.get("/api/v1/me", headers=plain), 401, "unauthenticated")


async def test_what_a_proxy_calls_plain_http_is_refused_under_an_https_origin(
    server: Running, ada: Account
) -> None:
    for host in (NAME, "127.0.0.1:8000"):
        answer = await log_in(server, Host=host, X_Forwarded_Proto="http")
        detail = problem(answer, 403, "insecure-transport")["detail"]
        assert "TALEKEEPER_TRUSTED_PROXIES" in detail
        assert cookies_of(answer) == {}
        assert "strict-transport-security" not in answer.headers
    async with server.browser() as client:
        answer = await client.get("/api/v1/me", headers={"X-Forwarded-Proto": "http"})
        problem(answer, 403, "insecure-transport")
        ok(await client.get("/health", headers={"X-Forwarded-Proto": "http"}))


async def test_no_password_is_taken_in_the_clear_over_a_network(local: Running) -> None:
    for host in ("192.168.1.4:8000", "[2001:db8::1]"):
        async with local.browser() as client:
            for path, body in (
                (SESSIONS, LOG_IN),
                ("/api/v1/accounts", {**LOG_IN, "username": "Ben"}),
                (
                    "/api/v1/recoveries",
                    {
                        "username": "Ada",
                        "recovery_code": "AAAA",
                        "new_password": "an even finer password",
                    },
                ),
            ):
                answer = await client.post(path, json=body, headers={"Host": host})
                problem(answer, 403, "insecure-transport")
                assert cookies_of(answer) == {}
    ok(await log_in(local), 201)


async def test_users_of_a_named_network_sign_in_over_plain_http_and_others_do_not(
    sqlite_url: str, tmp_path: Path
) -> None:
    host = "192.168.1.2:8000"
    async with (
        running(sqlite_url, tmp_path, plain_http_networks="192.168.1.0/24") as server,
        server.account("Ada"),
    ):
        answer = await log_in(server, Host=host, X_Forwarded_For="192.168.1.7")
        ok(answer, 201)
        session = cookies_of(answer)[PLAIN_COOKIE]
        assert not session["secure"]
        for client in ("192.168.2.7", "203.0.113.7"):
            answer = await log_in(server, Host=host, X_Forwarded_For=client)
            detail = problem(answer, 403, "insecure-transport")["detail"]
            assert "talekeeper serve --lan" in detail
        # Another site that gives out the server's address for its own name.
        answer = await log_in(server, Host="evil.example", X_Forwarded_For="192.168.1.7")
        problem(answer, 403, "unknown-host")

        async with server.browser() as browser:
            sent = {"Host": host, "Cookie": f"{PLAIN_COOKIE}={session.value}"}
            inside, outside = ({**sent, "X-Forwarded-For": f"192.168.{n}.7"} for n in (1, 2))
            ok(await browser.get("/api/v1/me", headers=inside))
            problem(await browser.get("/api/v1/me", headers=outside), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("client", "headers", "scheme"),
    [
        ("127.0.0.1", {}, "https"),  # a proxy on this machine
        ("10.0.0.9", {}, "https"),  # one that is named
        ("203.0.113.7", {}, "http"),  # past every proxy
        ("203.0.113.7", {"x-forwarded-for": "203.0.113.7"}, "https"),  # a proxy said who asks
        ("203.0.113.7", {"x-forwarded-for": "198.51.100.1"}, "http"),  # no proxy of ours did
        ("127.0.0.1", {"x-forwarded-proto": "http"}, "http"),
        ("203.0.113.7", {"x-forwarded-proto": "https"}, "http"),  # no proxy of ours says so
        ("", {}, "https"),  # a Unix socket
    ],
)
def test_what_counts_as_https_under_an_https_origin(
    client: str, headers: dict[str, str], scheme: str
) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope: Any = {"scheme": "http", "headers": raw, "client": (client, 1)}
    transport = SchemeFinder(f"https://{NAME}", ("10.0.0.0/8",))
    assert transport.scheme(scope) == scheme
    assert transport.scheme(scope | {"scheme": "https"}) == "https"
    assert SchemeFinder(f"http://{NAME}").scheme(scope) == "http"


async def test_who_is_no_trusted_proxy_is_not_believed(
    sqlite_url: str, tmp_path: Path, clock: Clock
) -> None:
    async with (
        running(
            sqlite_url,
            tmp_path,
            trusted_proxies=("192.0.2.1",),
            public_origin=f"https://{NAME}",
        ) as server,
        server.account("Ada"),
    ):
        problem(await log_in(server, **HTTPS), 403, "insecure-transport")
        for n in range(5):
            async with server.browser() as client:
                body = {"username": f"nobody{n}", "password": PASSWORD}
                headers = {"X-Forwarded-For": f"203.0.113.{n}"}
                answer = await client.post(SESSIONS, json=body, headers=headers)
                problem(answer, 401, "wrong-credentials")
        # All of them were counted for the address that they came from.
        async with server.browser() as client:
            body = {"username": "nobody", "password": PASSWORD}
            problem(await client.post(SESSIONS, json=body), 429, "too-many-attempts")


async def test_of_a_chain_of_proxies_the_last_stranger_is_believed(
    server: Running, ada: Account, clock: Clock
) -> None:
    for n in range(5):
        async with server.browser() as client:
            body = {"username": f"nobody{n}", "password": PASSWORD}
            # What stands in front was written by the client.
            headers = {"X-Forwarded-For": f"198.51.100.{n}, 203.0.113.7"}
            problem(
                await client.post(SESSIONS, json=body, headers=headers), 401, "wrong-credentials"
            )
    answer = await log_in(server, X_Forwarded_For="203.0.113.7")
    problem(answer, 429, "too-many-attempts")
    ok(await log_in(server, X_Forwarded_For="198.51.100.1"), 201)
