from __future__ import annotations

import httpx2
import pytest

from backend.generation.client import make_http_client
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
