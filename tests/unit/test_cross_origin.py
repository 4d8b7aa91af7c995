"""Tests of the requests that pages of other sites may send."""

from __future__ import annotations

from typing import Any

import pytest

from backend.http.cross_origin import CrossOriginPolicy, make_preflight_headers

SERVER = "https://tales.example"


def scope(origin: str | None, path: str = "/v1/models", **headers: str) -> Any:
    sent = {"host": "tales.example", **headers} | ({} if origin is None else {"origin": origin})
    return {
        "type": "http",
        "scheme": "https",
        "path": path,
        "headers": [
            (name.replace("_", "-").encode(), value.encode()) for name, value in sent.items()
        ],
    }


@pytest.mark.parametrize(
    ("origins", "origin", "path", "allowed"),
    [
        ((), "https://app.example", "/v1/models", False),
        (("https://app.example",), "https://app.example", "/v1/models", True),
        (("https://app.example",), "https://app.example:443", "/api/v1/chats", True),
        (("https://app.example",), "https://app.example", "/", False),
        (("https://app.example",), "https://app.example", "/health", False),
        (("https://app.example",), "http://app.example", "/v1/models", False),
        (("https://app.example",), "https://app.example.evil", "/v1/models", False),
        (("https://app.example",), "null", "/v1/models", False),
        (("https://app.example",), "https://[", "/v1/models", False),
        (("https://app.example",), None, "/v1/models", False),
        (("*",), "https://any.example", "/v1/models", True),
        (("*",), "null", "/v1/models", True),
        (("*",), SERVER, "/api/v1/chats", False),
        ((SERVER,), SERVER, "/api/v1/chats", False),
    ],
)
def test_only_other_origins_of_the_list_are_allowed(
    origins: tuple[str, ...], origin: str | None, path: str, *, allowed: bool
) -> None:
    assert CrossOriginPolicy(origins).is_allowed(scope(origin, path)) is allowed


def test_the_servers_own_origin_is_the_public_one() -> None:
    policy = CrossOriginPolicy(("*",), "https://public.example")
    assert not policy.is_allowed(scope("https://public.example"))
    assert policy.is_allowed(scope(SERVER))


def test_preflight_names_the_headers_that_are_asked_for() -> None:
    headers = dict(
        make_preflight_headers(
            scope(
                "https://app.example",
                access_control_request_headers="authorization,x-stainless-os",
                access_control_request_private_network="true",
            )
        )
    )
    assert headers[b"access-control-allow-headers"] == b"authorization,x-stainless-os"
    assert headers[b"access-control-allow-private-network"] == b"true"
    odd = make_preflight_headers(scope("https://a.example", access_control_request_headers="a\nb"))
    assert dict(odd)[b"access-control-allow-headers"] == b""
