"""A server that is killed while it makes an archive."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.process import Served, serving
from tests.support.server import PASSWORD, Account, ok
from tests.support.waiting import PATIENCE, until

pytestmark = [pytest.mark.anyio]

CHARACTERS = 60


@asynccontextmanager
async def open_account(served: Served, path: str) -> AsyncGenerator[Account]:
    """Sign up (`/accounts`) or in (`/sessions`)."""

    async def send_token(request: httpx.Request) -> None:
        if token := client.cookies.get("csrftoken"):
            request.headers["x-csrftoken"] = token

    async with httpx.AsyncClient(
        base_url=served.url, timeout=PATIENCE, event_hooks={"request": [send_token]}
    ) as client:
        body = {"username": "Ada", "password": PASSWORD}
        ok(await client.post(f"/api/v1{path}", json=body), 201)
        yield Account(client, "Ada", "", {})


async def test_a_killed_server_makes_the_archive_after_its_start(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    transfers = folder / "transfers"
    with serving(folder, registration="open") as served:
        async with open_account(served, "/accounts") as ada:
            for number in range(CHARACTERS):
                await ada.new_character(name=f"Guest {number}")
            await ada.post("/me/archive", status=202)
            await until(lambda: asyncio.to_thread(lambda: list(transfers.glob("*"))))
            served.process.kill()
            served.process.wait(PATIENCE)
    with serving(folder, registration="open") as served:
        async with open_account(served, "/sessions") as ada:

            async def is_ready() -> bool:
                return bool((await ada.get("/me/archive/status"))["state"] == "ready")

            await until(is_ready)
            answer = await ada.ask("GET", "/me/archive")
            with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
                cards = [each for each in archive.namelist() if each.startswith("characters/")]
                assert archive.testzip() is None
            assert len(cards) == CHARACTERS
            left = await asyncio.to_thread(lambda: list(transfers.glob("*.part")))
            assert left == []
