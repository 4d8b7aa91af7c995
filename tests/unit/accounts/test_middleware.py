"""Sessions, cookies and keys of a request before anyone has signed in."""

from __future__ import annotations

from typing import Any

import pytest
from litestar import Request

from backend.accounts.auth.middleware import (
    CSRF_COOKIE,
    PLAIN_COOKIE,
    SECURE_COOKIE,
    find_bearer_token,
    find_session_token,
    is_loopback,
    make_expired_cookies,
    make_session_cookies,
    may_have_session,
)
from backend.accounts.errors import InsecureTransportError
from backend.core.private_networks import parse_private
from tests.support.server import settings_of

AnyRequest = Request[Any, Any, Any]


def request(host: str = "127.0.0.1:8000", *, scheme: str = "http", **headers: str) -> AnyRequest:
    given = {"host": host, **headers}

    scope: Any = {
        "type": "http",
        "method": "GET",
        "scheme": scheme,
        "server": ("192.0.2.1", 80),
        "path": "/",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "state": {},
    }
    return Request(scope)


def test_only_names_of_this_machine_are_loopback() -> None:
    own = ["localhost", "localhost:8000", "127.0.0.1", "127.8.8.8:1", "[::1]"]
    hosts = [
        *own, "192.168.1.4:8000", "tales.example", "127.0.0.1.tales.example", "127.tales.example",
        "localhost.tales.example", "[2001:db8::1]", "0.0.0.0", "",
    ]  # fmt: skip
    assert [host for host in hosts if is_loopback(request(host))] == own


@pytest.mark.parametrize("host", ["tales.example", "127.0.0.1.tales.example", "192.168.1.4:8000"])
def test_no_session_is_opened_in_the_clear_over_a_network(host: str) -> None:
    with pytest.raises(InsecureTransportError):
        make_session_cookies(request(host), "ts_token", seconds=60, csrf="secret")


@pytest.mark.parametrize(
    ("client", "headers", "accepted"),
    [
        ("192.168.1.7", {}, True),
        ("::ffff:192.168.1.7", {}, True),  # a socket for both versions of IP
        ("192.168.2.7", {}, False),
        ("203.0.113.7", {}, False),
        ("", {}, False),  # a Unix socket
        ("192.168.1.7", {"x-forwarded-for": "203.0.113.7, 192.168.1.7"}, True),
        # A proxy that is not trusted: all its clients have the proxy's address.
        ("192.168.1.2", {"x-forwarded-for": "203.0.113.7"}, False),
        ("192.168.1.2", {"via": "1.1 proxy"}, False),
        ("192.168.1.2", {"forwarded": "for=203.0.113.7"}, False),
    ],
)
def test_plain_http_is_accepted_from_clients_of_named_networks(
    client: str, headers: dict[str, str], accepted: bool
) -> None:
    asked = request("192.168.1.2:8000", **headers)
    asked.scope["client"] = (client, 1) if client else None
    assert may_have_session(asked, [parse_private("192.168.1.0/24")]) is accepted
    assert not may_have_session(asked)


@pytest.mark.parametrize(
    "text", ["0.0.0.0/0", "203.0.113.0/24", "192.168.1.7/24", "10.0.0.0/7", "::/0", "home"]
)
def test_a_network_that_is_not_all_private_can_not_be_named(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        settings_of(plain_http_networks=text)


def test_over_https_the_cookie_belongs_to_this_host_alone() -> None:
    session, csrf = make_session_cookies(
        request("tales.example", scheme="https"), "ts_token", seconds=60, csrf="secret"
    )
    assert session.key == SECURE_COOKIE == "__Host-talekeeper_session"
    # The prefix requires Secure, Path=/ and no Domain.
    assert (session.secure, session.path, session.domain) == (True, "/", None)
    assert (session.httponly, session.samesite) == (True, "lax")
    assert (csrf.key, csrf.secure, bool(csrf.httponly)) == (CSRF_COOKIE, True, False)


def test_on_this_machine_the_cookie_goes_by_a_plain_name() -> None:
    session, csrf = make_session_cookies(request(), "ts_token", seconds=60, csrf="secret")
    assert (session.key, session.secure, session.httponly) == (PLAIN_COOKIE, False, True)
    assert (session.samesite, csrf.samesite) == ("lax", "lax")
    assert not csrf.secure


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_ending_a_session_ends_the_cookies_that_began_it(scheme: str) -> None:
    asked = request(scheme=scheme)
    began = make_session_cookies(asked, "ts_token", seconds=60, csrf="secret")
    ended = make_expired_cookies(asked)
    assert [(each.key, each.path, each.secure) for each in ended] == [
        (each.key, each.path, each.secure) for each in began
    ]
    assert {each.max_age for each in ended} == {0}


def test_a_plain_cookie_opens_nothing_over_https() -> None:
    assert find_session_token(request(scheme="https", cookie=f"{PLAIN_COOKIE}=ts_x")) is None
    assert find_session_token(request(cookie=f"{SECURE_COOKIE}=ts_x")) is None
    assert find_session_token(request(cookie=f"{PLAIN_COOKIE}=ts_x")) == "ts_x"


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer tk_abc", "tk_abc"),
        ("bearer  tk_abc ", "tk_abc"),
        ("Basic tk_abc", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("tk_abc", None),
    ],
)
def test_a_bearer_key_follows_the_word_bearer(header: str, token: str | None) -> None:
    assert find_bearer_token(request(authorization=header)) == token
