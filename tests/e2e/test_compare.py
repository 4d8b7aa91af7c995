"""The command `talekeeper compare`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.support.archives import make_archive
from tests.support.process import run_command, serving
from tests.support.server import PASSWORD, Account, ok
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.anyio]


async def _prepare(folder: Path, archive: Path) -> str:
    """Make an account with an archive. Return an API key that may change the account."""
    with serving(folder, registration="open") as served:
        async with httpx.AsyncClient(base_url=served.url, timeout=PATIENCE) as client:

            async def send_token(request: httpx.Request) -> None:
                if token := client.cookies.get("csrftoken"):
                    request.headers["x-csrftoken"] = token

            client.event_hooks["request"] = [send_token]
            body = {"username": "Ada", "password": PASSWORD}
            made = ok(await client.post("/api/v1/accounts", json=body), 201)
            ada = Account(client, "Ada", "", made["user"])
            await ada.new_character()
            await asyncio.to_thread(archive.write_bytes, await make_archive(ada))
            key = await ada.post("/api-keys", {"label": "compare", "scope": "manage"}, 201)
            await ada.new_chat(title="Later")
    return str(key["token"])


async def test_archives_and_accounts_are_compared(tmp_path: Path) -> None:
    folder, archive = tmp_path / "data", tmp_path / "archive.zip"
    folder.mkdir()
    key = await _prepare(folder, archive)
    same = run_command(folder, "compare", str(archive), str(archive))
    assert (same.returncode, same.stdout) == (0, "equal\n")
    other = run_command(folder, "compare", str(archive), "user:Ada", api_key=key)
    assert other.returncode == 1, other.stderr
    assert other.stdout == "chats/Later.jsonl: only in the second\n"
    assert list((folder / "transfers").glob("*.part")) == []
    wrong = run_command(folder, "compare", str(archive), "user:Ada", api_key="tk_wrong")
    assert wrong.returncode == 2
    assert "API key" in wrong.stderr
    missing = run_command(folder, "compare", str(archive), str(tmp_path / "missing.zip"))
    assert missing.returncode == 2
