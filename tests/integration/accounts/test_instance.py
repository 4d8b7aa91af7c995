"""What a client is told before anybody has signed in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

import backend
from tests.support.server import Account, Running, ok, running

pytestmark = pytest.mark.anyio


async def instance(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = ok(await client.get("/api/v1/instance"))
    return found


@pytest.mark.parametrize("registration", ["open", "invitation", "closed"])
async def test_whoever_comes_first_may_sign_up_and_then_the_settings_say_who_may(
    sqlite_url: str, tmp_path: Path, registration: str
) -> None:
    async with (
        running(sqlite_url, tmp_path, registration=registration) as server,
        server.browser() as client,
    ):
        before = await instance(client)
        assert before == {"version": backend.__version__, "sign_up": "first", "user": None}
        async with server.account("Ada"):
            assert (await instance(client))["sign_up"] == registration


async def test_who_is_signed_in_is_told_who_that_is(ada: Account) -> None:
    assert (await instance(ada.client))["user"] == ok(await ada.client.get("/api/v1/me"))


async def test_a_session_that_has_ended_is_nobodys(server: Running, ada: Account) -> None:
    token = ada.client.cookies["talekeeper_session"]
    ok(await ada.client.delete("/api/v1/sessions/current"), 204)
    async with server.browser() as client:
        client.cookies.set("talekeeper_session", token)
        assert (await instance(client))["user"] is None
