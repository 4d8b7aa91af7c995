"""`talekeeper import` as a process, and imports of a server that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_crash import browser
from tests.support.importing import (
    card_json,
    card_png,
    chat_jsonl,
    ended,
    outcomes,
    upload,
    world_json,
)
from tests.support.process import TALEKEEPER, Served, environment, run_command, serving
from tests.support.server import PASSWORD, Account
from tests.support.waiting import PATIENCE, until
from tests.support.zips import zipped

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CARDS = 80


def type_password() -> None:
    """Let the command read the password from standard input."""
    reader, writer = os.pipe()
    os.write(writer, f"{PASSWORD}\n".encode())
    os.close(writer)
    os.dup2(reader, 0)
    sys.stdin = os.fdopen(0)


def type_wrong_password() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"not the password\n")
    os.close(writer)
    os.dup2(reader, 0)
    sys.stdin = os.fdopen(0)


def write_folder(folder: Path) -> Path:
    """A folder with a card, its chat, a lorebook and a broken file."""
    files = {
        "cards/Mara.png": card_png(),
        "chats/night.jsonl": chat_jsonl(5),
        "worlds/harbour.json": world_json("harbour"),
    }
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


async def sign_up(folder: Path, *, with_key: bool = False) -> str:
    """Make an account, and return an API key of it if wanted."""
    with serving(folder) as served:
        async with browser(served) as ada:
            if not with_key:
                return ""
            made = await ada.post("/api-keys", {"label": "import", "scope": "chat"}, 201)
            token: str = made["token"]
            return token


async def read_library(folder: Path) -> dict[str, Any]:
    with serving(folder) as served:
        async with signed_in(served) as ada:
            characters = (await ada.get("/characters", limit=500))["items"]
            chats = (await ada.get("/chats"))["items"]
            return {
                "characters": sorted(each["name"] for each in characters),
                "messages": [len(await ada.messages(each["id"])) for each in chats],
            }


@contextlib.asynccontextmanager
async def signed_in(served: Served) -> AsyncGenerator[Account]:
    """A new browser that signs in with the password."""
    async with httpx.AsyncClient(base_url=served.url, timeout=30, trust_env=False) as client:
        body = {"username": "ada", "password": PASSWORD}
        answer = await client.post("/api/v1/sessions", json=body)
        assert answer.status_code == 201, answer.text
        yield Account(client, "ada", "", answer.json())


async def test_a_folder_is_imported_with_the_password_and_only_once(tmp_path: Path) -> None:
    data, folder = tmp_path / "data", write_folder(tmp_path / "folder")
    data.mkdir()
    await sign_up(data)
    command = ("import", str(folder), "--user", "ada")

    first = await asyncio.to_thread(run_command, data, *command, prepare=type_password)
    assert first.returncode == 0, first.stderr
    assert "3 imported, 0 already there, 0 skipped, 0 failed." in first.stdout
    assert "imported      cards/Mara.png" in first.stdout

    (folder / "cards" / "broken.json").write_text("{")
    second = await asyncio.to_thread(run_command, data, *command, prepare=type_password)
    assert second.returncode == 1
    assert "0 imported, 3 already there, 0 skipped, 1 failed." in second.stdout
    assert "FAILED        cards/broken.json: The JSON is invalid" in second.stdout
    assert await read_library(data) == {"characters": ["Mara"], "messages": [5]}


async def test_an_api_key_takes_the_place_of_the_password(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    token = await sign_up(data, with_key=True)
    file = tmp_path / "cards.zip"
    file.write_bytes(zipped({"Mara.png": card_png(), "Tovin.json": card_json("Tovin")}))
    (tmp_path / "key").write_text(f"{token}\n")

    by_file = await asyncio.to_thread(
        run_command, data, "import", str(file), "--api-key-file", str(tmp_path / "key")
    )
    assert by_file.returncode == 0, by_file.stderr
    assert "2 imported" in by_file.stdout
    by_variable = await asyncio.to_thread(
        run_command, data, "import", str(file), "--user", "ada", api_key=token
    )
    assert by_variable.returncode == 0, by_variable.stderr
    assert "2 already there" in by_variable.stdout


async def test_a_wrong_command_says_what_to_do(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    token = await sign_up(data, with_key=True)
    file = tmp_path / "Mara.png"
    file.write_bytes(card_png())
    path = str(file)
    for arguments, settings, prepare, advice in (
        (("import", path), {}, None, "--user NAME"),
        (("import", str(tmp_path / "gone"), "--user", "ada"), {}, None, "does not exist"),
        (("import", path, "--user", "ada"), {}, type_wrong_password, "password"),
        (("import", path), {"api_key": "tk_wrong"}, None, "API key is wrong"),
        (("import", path, "--user", "ben"), {"api_key": token}, None, "does not belong to ben"),
        (("import", path, "--api-key-file", str(tmp_path / "no")), {}, None, "cannot be read"),
    ):
        done = await asyncio.to_thread(run_command, data, *arguments, prepare=prepare, **settings)
        assert done.returncode == 1, (arguments, done.stdout)
        assert advice in done.stderr, (arguments, done.stderr)
    with serving(data):
        busy = await asyncio.to_thread(run_command, data, "import", path, api_key=token)
        assert busy.returncode == 1
        assert "Another process uses" in busy.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signal for one process")
async def test_an_interrupted_command_goes_on_at_its_next_run(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    token = await sign_up(data, with_key=True)
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(CARDS):
        (folder / f"{number:03}.json").write_bytes(card_json(f"N{number}"))
    process = subprocess.Popen(  # noqa: ASYNC220  # it returns at once
        [str(TALEKEEPER), "import", str(folder), "--data-dir", str(data)],
        cwd=tmp_path,
        env=environment(api_key=token),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    async def has_begun() -> bool:
        assert process.poll() is None, process.communicate()
        return await asyncio.to_thread(count_characters, data) >= 3

    await until(has_begun)
    process.send_signal(signal.SIGINT)
    output, errors = await asyncio.to_thread(process.communicate, None, PATIENCE)
    assert process.returncode == 130, (output, errors)
    assert "Run the command again" in errors
    before = count_characters(data)
    assert 3 <= before < CARDS

    again = await asyncio.to_thread(run_command, data, "import", str(folder), api_key=token)
    assert again.returncode == 0, again.stderr
    assert f"{CARDS - before} imported, {before} already there" in again.stdout
    assert len((await read_library(data))["characters"]) == CARDS


def count_characters(data: Path) -> int:
    with contextlib.closing(sqlite3.connect(data / "talekeeper.sqlite3")) as connection:
        found: int = connection.execute("SELECT count(*) FROM characters").fetchone()[0]
        return found


async def test_a_killed_server_goes_on_with_the_import_after_its_restart(tmp_path: Path) -> None:
    files = {f"{number:03}.json": card_json(f"N{number}") for number in range(CARDS)}
    chats = {f"z{number:03}.jsonl": chat_jsonl(20, text=f"T{number}") for number in range(10)}
    with serving(tmp_path) as served:
        async with browser(served) as ada:
            view = await upload(ada, zipped({**files, **chats}), "many.zip")

            async def has_begun() -> bool:
                return bool((await ada.get(f"/imports/{view['id']}"))["counts"]["imported"] >= 5)

            await until(has_begun)
            served.process.kill()
            cookies = ada.client.cookies
    with serving(tmp_path) as served:
        async with browser(served, cookies) as ada:
            found, results = await ended(ada, view["id"])
            assert found["state"] == "finished"
            assert outcomes(results) == dict.fromkeys([*files, *chats], "imported")
            characters = (await ada.get("/characters", limit=500))["items"]
            assert len(characters) == CARDS
            assert len((await ada.get("/chats"))["items"]) == len(chats)
