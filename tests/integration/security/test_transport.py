"""Tests of transport security: HTTPS, proxies, headers, and requests of other sites' pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from http.cookies import Morsel, SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.accounts.auth.middleware import CSRF_COOKIE, CSRF_HEADER, PLAIN_COOKIE, SECURE_COOKIE
from backend.http.responses import SECURITY_HEADERS, SchemeFinder
from tests.support.clock import Clock
from tests.support.logs import Logged
from tests.support.server import PASSWORD, Account, Running, ok, problem, running
from tests.support.shared import ada, server, shared_url

__all__ = ["ada", "server", "shared_url"]

pytestmark = pytest.mark.anyio

SESSIONS = "/api/v1/sessions"
LOG_IN = {"username": "Ada", "password": PASSWORD}
NAME = "tales.example"
HTTPS = {"Host": NAME, "X-Forwarded-Proto": "https"}


@pytest.fixture
async def proxied(sqlite_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    """A server with an HTTPS origin, and with an account."""
    origin = f"https://{NAME}"
    async with running(sqlite_url, tmp_path, public_origin=origin) as server, server.account("Ada"):
        yield server


def read_cookies(answer: httpx.Response) -> dict[str, Morsel[str]]:
    jar: SimpleCookie = SimpleCookie()
    for header in answer.headers.get_list("set-cookie"):
        jar.load(header)
    return dict(jar)


@pytest.fixture
async def local(sqlite_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    """A server without an origin, with an account."""
    async with running(sqlite_url, tmp_path) as server, server.account("Ada"):
        yield server


async def sign_in(server: Running, **headers: str) -> httpx.Response:
    async with server.browser() as client:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.post(SESSIONS, json=LOG_IN, headers=names)


async def test_on_this_machine_the_cookies_go_without_secure(local: Running) -> None:
    answer = await sign_in(local)
    ok(answer, 201)
    cookies = read_cookies(answer)
    assert set(cookies) == {PLAIN_COOKIE, CSRF_COOKIE}
    session = cookies[PLAIN_COOKIE]
    assert session["httponly"] is True
    assert not session["secure"]
    assert (session["samesite"], session["path"], session["domain"]) == ("lax", "/", "")
    assert int(session["max-age"]) == 180 * 86400
    # The page reads this cookie and sends it back.
    assert not cookies[CSRF_COOKIE]["httponly"]
    assert cookies[CSRF_COOKIE]["samesite"] == "lax"


async def test_behind_a_trusted_proxy_with_https_the_cookies_belong_to_that_host(
    proxied: Running,
) -> None:
    answer = await sign_in(proxied, **HTTPS)
    ok(answer, 201)
    assert answer.headers["strict-transport-security"]
    cookies = read_cookies(answer)
    assert set(cookies) == {SECURE_COOKIE, CSRF_COOKIE}
    for cookie in cookies.values():
        assert cookie["secure"] is True
        assert (cookie["path"], cookie["domain"], cookie["samesite"]) == ("/", "", "lax")
    assert cookies[SECURE_COOKIE]["httponly"] is True

    token, csrf = cookies[SECURE_COOKIE].value, cookies[CSRF_COOKIE].value
    async with proxied.browser() as client:
        sent = {**HTTPS, "Cookie": f"{SECURE_COOKIE}={token}; {CSRF_COOKIE}={csrf}"}
        ok(await client.get("/api/v1/me", headers=sent))
        # A cookie with the plain name might be set by an attacker in the network.
        plain = {**HTTPS, "Cookie": f"{PLAIN_COOKIE}={token}"}
        problem(await client.get("/api/v1/me", headers=plain), 401, "unauthenticated")
        out = await client.delete(f"{SESSIONS}/current", headers={**sent, CSRF_HEADER: csrf})
        assert out.status_code == 204
        assert {name: each["max-age"] for name, each in read_cookies(out).items()} == {
            SECURE_COOKIE: "0",
            CSRF_COOKIE: "0",
        }


async def test_behind_a_proxy_that_says_nothing_an_https_origin_decides(proxied: Running) -> None:
    """An nginx without further settings sends the upstream's address as host, and no scheme."""
    for headers in ({}, {"Host": NAME}, {"Host": NAME, "X_Forwarded_For": "203.0.113.7"}):
        answer = await sign_in(proxied, **headers)
        ok(answer, 201)
        assert answer.headers["strict-transport-security"]
        cookies = read_cookies(answer)
        assert set(cookies) == {SECURE_COOKIE, CSRF_COOKIE}
        assert all(cookie["secure"] is True for cookie in cookies.values())
        assert not cookies[CSRF_COOKIE]["httponly"]
        token = cookies[SECURE_COOKIE].value
        async with proxied.browser() as client:
            sent = {"Cookie": f"{SECURE_COOKIE}={token}"}
            ok(await client.get("/api/v1/me", headers=sent))
            # A cookie with the plain name might be set by an attacker in the network.
            plain = {"Cookie": f"{PLAIN_COOKIE}={token}"}
            problem(await client.get("/api/v1/me", headers=plain), 401, "unauthenticated")


async def test_forwarded_plain_http_is_refused_under_an_https_origin(proxied: Running) -> None:
    for host in (NAME, "127.0.0.1:8000"):
        answer = await sign_in(proxied, Host=host, X_Forwarded_Proto="http")
        detail = problem(answer, 403, "insecure-transport")["detail"]
        assert "TALEKEEPER_TRUSTED_PROXIES" in detail
        assert read_cookies(answer) == {}
        assert "strict-transport-security" not in answer.headers
    async with proxied.browser() as client:
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
                assert read_cookies(answer) == {}
    ok(await sign_in(local), 201)


async def test_users_of_a_named_network_sign_in_over_plain_http_and_others_do_not(
    sqlite_url: str, tmp_path: Path
) -> None:
    host = "192.168.1.2:8000"
    async with (
        running(sqlite_url, tmp_path, plain_http_networks="192.168.1.0/24") as server,
        server.account("Ada"),
    ):
        answer = await sign_in(server, Host=host, X_Forwarded_For="192.168.1.7")
        ok(answer, 201)
        session = read_cookies(answer)[PLAIN_COOKIE]
        assert not session["secure"]
        for client in ("192.168.2.7", "203.0.113.7"):
            answer = await sign_in(server, Host=host, X_Forwarded_For=client)
            detail = problem(answer, 403, "insecure-transport")["detail"]
            assert "talekeeper serve --lan" in detail
        # Another site's name resolves to the server's address.
        answer = await sign_in(server, Host="evil.example", X_Forwarded_For="192.168.1.7")
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
def test_the_scheme_of_a_request_under_an_https_origin(
    client: str, headers: dict[str, str], scheme: str
) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope: Any = {"scheme": "http", "headers": raw, "client": (client, 1)}
    transport = SchemeFinder(f"https://{NAME}", ("10.0.0.0/8",))
    assert transport.scheme(scope) == scheme
    assert transport.scheme(scope | {"scheme": "https"}) == "https"
    assert SchemeFinder(f"http://{NAME}").scheme(scope) == "http"


async def test_headers_of_untrusted_proxies_are_ignored(
    sqlite_url: str, tmp_path: Path, clock: Clock
) -> None:
    async with (
        running(
            sqlite_url, tmp_path, trusted_proxies=("192.0.2.1",), public_origin=f"https://{NAME}"
        ) as server,
        server.account("Ada"),
    ):
        problem(await sign_in(server, **HTTPS), 403, "insecure-transport")
        for n in range(5):
            async with server.browser() as client:
                body = {"username": f"nobody{n}", "password": PASSWORD}
                headers = {"X-Forwarded-For": f"203.0.113.{n}"}
                answer = await client.post(SESSIONS, json=body, headers=headers)
                problem(answer, 401, "wrong-credentials")
        # All of them count for the address of the connection.
        async with server.browser() as client:
            body = {"username": "nobody", "password": PASSWORD}
            problem(await client.post(SESSIONS, json=body), 429, "too-many-attempts")


async def test_the_last_untrusted_address_of_a_proxy_chain_counts(
    proxied: Running, clock: Clock
) -> None:
    for n in range(5):
        async with proxied.browser() as client:
            body = {"username": f"nobody{n}", "password": PASSWORD}
            # The first address was written by the client.
            headers = {"X-Forwarded-For": f"198.51.100.{n}, 203.0.113.7"}
            problem(
                await client.post(SESSIONS, json=body, headers=headers), 401, "wrong-credentials"
            )
    answer = await sign_in(proxied, X_Forwarded_For="203.0.113.7")
    problem(answer, 429, "too-many-attempts")
    ok(await sign_in(proxied, X_Forwarded_For="198.51.100.1"), 201)


PREFIX = "/api/v1"


def check(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers.get_list(name) == [value], (name, status)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "require-trusted-types-for 'script'; trusted-types worker" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert len(answer.headers.get_list("x-request-id")) == 1
    assert "server" not in answer.headers


async def raw(server: Running, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(server.url).port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_every_kind_of_answer_has_the_security_headers(
    server: Running, ada: Account, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    async def crash(*_: Any, **__: Any) -> None:
        raise RuntimeError

    client = ada.client
    chat = await ada.new_chat()
    check(await client.get("/"), 200)
    check(await client.get("/page/0/main.js"), 404)
    check(await client.get("/health"), 200)
    check(await client.get("/schema"), 200)
    check(await client.get(f"{PREFIX}/me"), 200)
    check(await client.post(f"{PREFIX}/chats", json={}), 201)
    check(await client.delete(f"{PREFIX}/chats/{chat['id']}"), 204)
    check(await client.get("/no/such/page"), 404)
    check(await client.get(f"{PREFIX}/chats/{chat['id']}"), 404)
    check(await client.delete("/health"), 405)
    check(await client.post(f"{PREFIX}/chats", content=b"{"), 400)
    check(await client.post(f"{PREFIX}/chats", content=b"[" * 9_000_000), 413)
    check(await client.post(f"{PREFIX}/chats", json={"title": 1}), 422)
    check(await client.post(f"{PREFIX}/chats", json={}, headers={"Origin": "null"}), 403)
    monkeypatch.setattr(server.parts.chats, "list_chats", crash)
    check(await client.get(f"{PREFIX}/chats"), 500)
    async with server.browser() as nobody:
        check(await nobody.get(f"{PREFIX}/me"), 401)


async def test_a_stream_has_them_too(ada: Account) -> None:
    chat = await ada.new_chat()
    async with ada.client.stream(
        "POST", f"{PREFIX}/chats/{chat['id']}/turns", json={"text": "Hello."}
    ) as stream:
        await stream.aread()
    check(stream, 200)
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["cache-control"] == "no-store"


async def test_nothing_is_cached_on_the_way(server: Running, ada: Account) -> None:
    for path in (f"{PREFIX}/me", f"{PREFIX}/chats", "/no/such/page", "/health"):
        assert (await ada.client.get(path)).headers["cache-control"] == "no-store"


async def test_hsts_is_sent_only_over_https(server: Running, ada: Account) -> None:
    plain = await ada.client.get("/health")
    assert "strict-transport-security" not in plain.headers
    proxied = await ada.client.get("/health", headers={"X-Forwarded-Proto": "https"})
    assert "max-age=" in proxied.headers["strict-transport-security"]


async def test_a_request_with_a_malformed_address_is_answered_like_others(server: Running) -> None:
    for line, host in (
        (b"GET /health", b"a:b"),
        (b"GET /health", b"a:99999"),
        (b"GET /health", b"[::1"),
        (b"GET /health", b"user@127.0.0.1"),
        (b"GET /health", b"127.0.0.1\r\nHost: elsewhere.example"),
        (b"GET /api/v1/chats?after=\xff", b"127.0.0.1"),
    ):
        request = b"%b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (line, host)
        head, _, body = (await raw(server, request)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400"), (line, host, head)
        if b"x-request-id" in head:  # uvicorn's parser refuses some of these requests
            assert b"content-security-policy" in head
            assert b"urn:talekeeper:problem:bad-request" in body
    async with server.browser() as client:
        ok(await client.get("/health"))


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
    async with server.signed_in(ada.name) as other:
        foreign = {CSRF_HEADER: other.client.cookies[CSRF_COOKIE]}
    ada.client.event_hooks = {}
    problem(await ada.client.post(CHATS, json={}, headers=foreign), 403, "cross-site-request")


async def test_a_token_that_the_server_did_not_make_is_no_token(
    server: Running, ada: Account
) -> None:
    """A page on a sibling domain can set cookies, so cookie and header can be equal."""
    ada.client.event_hooks = {}
    forged = "0" * 128
    ada.client.cookies.set(CSRF_COOKIE, forged, domain="127.0.0.1")
    session = f"{PLAIN_COOKIE}={ada.client.cookies[PLAIN_COOKIE]}; {CSRF_COOKIE}={forged}"
    headers = {CSRF_HEADER: forged, "Cookie": session}
    problem(await ada.client.post(CHATS, json={}, headers=headers), 403, "cross-site-request")


async def test_requests_of_other_origins_are_refused(server: Running, ada: Account) -> None:
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


async def test_a_page_of_another_site_cannot_sign_in(server: Running, ada: Account) -> None:
    """Otherwise a victim could be signed in to the attacker's account, and write there."""
    body = {"username": ada.name, "password": PASSWORD}
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
        # A request with an origin comes from a page, and pages of other sites must not use the key.
        refused = await script.post(CHATS, json={}, headers={"Origin": ELSEWHERE})
        problem(refused, 403, "cross-site-request")


async def test_an_upload_without_the_token_is_refused_before_it_is_read(
    server: Running, ada: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Litestar would search the form for the token, and write the form to a plain file."""
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    ada.client.event_hooks = {}
    file = {"file": b"x" * 3_000_000}
    answer = await ada.client.post("/api/v1/characters/import", files=file)
    problem(answer, 403, "cross-site-request")
