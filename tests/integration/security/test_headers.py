"""The headers that every answer has, whoever gave it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from backend.http.responses import SECURITY_HEADERS
from tests.support.logs import Logged
from tests.support.server import Account, Running, ok

pytestmark = pytest.mark.anyio

API = "/api/v1"


def check(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers.get_list(name) == [value], (name, status)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert len(answer.headers.get_list("x-request-id")) == 1
    assert "server" not in answer.headers


async def raw(server: Running, request: bytes) -> bytes:
    """The answer to what no client would send."""
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
    check(await client.get(f"{API}/me"), 200)
    check(await client.post(f"{API}/chats", json={}), 201)
    check(await client.delete(f"{API}/chats/{chat['id']}"), 204)
    check(await client.get("/no/such/page"), 404)
    check(await client.get(f"{API}/chats/{chat['id']}"), 404)
    check(await client.delete("/health"), 405)
    check(await client.post(f"{API}/chats", content=b"{"), 400)
    check(await client.post(f"{API}/chats", content=b"[" * 9_000_000), 413)
    check(await client.post(f"{API}/chats", json={"title": 1}), 422)
    check(await client.post(f"{API}/chats", json={}, headers={"Origin": "null"}), 403)
    monkeypatch.setattr(server.parts.chats, "list_chats", crash)
    check(await client.get(f"{API}/chats"), 500)
    async with server.browser() as nobody:
        check(await nobody.get(f"{API}/me"), 401)


async def test_a_stream_has_them_too(ada: Account) -> None:
    chat = await ada.new_chat()
    async with ada.client.stream(
        "POST", f"{API}/chats/{chat['id']}/turns", json={"text": "Hello."}
    ) as stream:
        await stream.aread()
    check(stream, 200)
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["cache-control"] == "no-store"


async def test_nothing_is_cached_on_the_way(server: Running, ada: Account) -> None:
    for path in (f"{API}/me", f"{API}/chats", "/no/such/page", "/health"):
        assert (await ada.client.get(path)).headers["cache-control"] == "no-store"


async def test_browsers_are_told_to_stay_on_https_only_where_there_is_any(
    server: Running, ada: Account
) -> None:
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
        if b"x-request-id" in head:  # uvicorn's own parser refuses some of it
            assert b"content-security-policy" in head
            assert b"urn:talekeeper:problem:bad-request" in body
    async with server.browser() as client:
        ok(await client.get("/health"))
