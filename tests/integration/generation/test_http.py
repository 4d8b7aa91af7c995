from __future__ import annotations

import asyncio

import httpx2
import pytest

from backend.generation.client.client import ModelClient, make_http_client
from tests.fakes.openai_server import OpenAIServer

pytestmark = pytest.mark.anyio


async def test_the_time_to_connect_is_limited_even_where_the_sdk_lifts_the_limit() -> None:
    async with OpenAIServer() as server, make_http_client(connect_timeout=3, headers={}) as client:
        response = await client.post(server.url, json={}, timeout=None)

    limits = response.request.extensions["timeout"]
    assert limits == {"connect": 3, "read": None, "write": None, "pool": None}
    assert isinstance(response, httpx2.Response)


async def test_cookies_of_the_provider_s_are_not_sent_back() -> None:
    async with OpenAIServer() as server, make_http_client(connect_timeout=3, headers={}) as client:
        client.cookies.set("session", "of-another-user")
        await client.post(server.url, json={})

    assert "cookie" not in server.requests[0].headers


async def test_a_request_on_a_connection_that_the_server_has_closed_is_sent_again() -> None:
    """Each connection answers one request, says that it stays open, and closes at the next one."""
    served: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            served.append(number)
            if number == 0:
                writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{"a": 1}')
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        client = ModelClient(make_http_client(connect_timeout=3, headers={}))
        answers = [await client.post(url, {}), await client.post(url, {})]
        await client.aclose()

    assert answers == [{"a": 1}, {"a": 1}]
    assert served == [0, 1, 0]
