"""Talekeeper where the system lacks what Windows lacks, or refuses what macOS refuses."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from backend.characters.pictures import draw_placeholder
from tests.e2e.test_crash import browser
from tests.support.memory import API, preview
from tests.support.process import environment, serving_installed, talekeeper
from tests.support.server import Account, ok
from tests.support.systems import SYSTEMS, python_path
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SETTINGS = {"embedder": "none", "demo_tokens_per_second": "0"}
HOSTILE_NAMES = ["CON", "aux.json", "a:b", "trailing dots...", "long " * 40]

IMPORT_ALL = """
import importlib, pkgutil, sys, backend
sys.modules["fastembed"] = None  # qdrant_client does without it, and it takes seconds
for module in pkgutil.walk_packages(backend.__path__, "backend."):
    if "migrations" not in module.name:
        importlib.import_module(module.name)
"""


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A simulated system, for processes that the test starts."""
    name: str = request.param
    monkeypatch.setenv("PYTHONPATH", python_path(name))
    return name


def test_every_module_can_be_imported_there(system: str) -> None:
    del system
    subprocess.run([sys.executable, "-P", "-c", IMPORT_ALL], env=environment(), check=True)


async def test_a_server_does_there_what_it_does_on_linux(system: str, tmp_path: Path) -> None:
    del system
    with serving_installed(tmp_path, **SETTINGS) as served:
        async with browser(served) as ada:
            await see_look_behind_keys_found(ada)
            await see_slow_script_stopped(ada)
            await see_index_restarted(ada, psutil.Process(served.process.pid))
            await see_hostile_names_exported(ada)
            parts = ok(await ada.client.get("/ready"))["parts"]
            assert all(part["ready"] for part in parts), parts
        assert served.stop() == 0


def test_a_console_that_lacks_a_character_shows_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "cp437")
    folder = tmp_path / "日記"
    folder.mkdir()

    done = talekeeper(folder, "model", "fetch", "日記", **SETTINGS)

    assert done.stderr.startswith("talekeeper: Unknown model ??. ")


async def see_look_behind_keys_found(ada: Account) -> None:
    book = ok(await ada.client.post(f"{API}/lorebooks", json={"name": "Coast"}), 201)["id"]
    entry = {"title": "Lamp", "keys": ["/(?<=old )lamp/"], "content": "It burns without oil."}
    ok(await ada.client.post(f"{API}/lorebooks/{book}/entries", json=entry), 201)
    chat = (await ada.new_chat())["id"]
    link = {"state": "linked"}
    ok(await ada.client.put(f"{API}/chats/{chat}/lorebooks/{book}", json=link))

    async def found() -> Any:
        return (await preview(ada, chat, "I light the old lamp."))["retrieved"]

    (item,) = await until(found)
    assert item["title"] == "Lamp"
    await ada.turn(chat, text="I light the old lamp.")


async def see_slow_script_stopped(ada: Account) -> None:
    """The compiling of the pattern can't be interrupted: its process has to be replaced."""
    slow = {"scriptName": "Slow", "findRegex": "/((((a{1000}){1000}){1000}){1000})(?=b)/"}
    quick = {"scriptName": "Quick", "findRegex": "/(?<=old )lamp/", "replaceString": "lantern"}

    async def states() -> list[tuple[str, str]]:
        scripts = [{"placement": [2], **each} for each in (slow, quick)]
        body = {"scripts": scripts, "text": "aaa, the old lamp"}
        tested = ok(await ada.client.post(f"{API}/me/regex-scripts/test", json=body))
        return [(step["state"], step["text"]) for step in tested["steps"]]

    async def both_settled() -> bool:
        [(first, _), (second, text)] = await states()
        assert first in {"too_slow", "busy"}
        return first == "too_slow" and second == "changed" and text == "aaa, the old lantern"

    await until(both_settled)


async def see_index_restarted(ada: Account, server: psutil.Process) -> None:
    async def search() -> Any:
        answer = await ada.client.get(f"{API}/search", params={"q": "old lamp"})
        assert answer.status_code in {200, 503}  # the latter while the engine ends
        return answer.json().get("items")

    before = await until(search)
    engines = [each for each in server.children() if "edge_engine" in " ".join(each.cmdline())]
    assert len(engines) == 1
    engines[0].kill()
    assert await until(search) == before


async def see_hostile_names_exported(ada: Account) -> None:
    uri = "embeded://assets/CON/aux.png"
    card = '{"spec": "chara_card_v3", "spec_version": "3.0", "data": {"name": "Mara", "assets": '
    card += f'[{{"type": "icon", "uri": "{uri}", "name": "main", "ext": "png"}}]}}}}'
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("card.json", card)
        archive.writestr("assets/CON/aux.png", draw_placeholder("Mara"))
    file = {"file": ("CON.charx", data.getvalue())}
    made = ok(await ada.client.post(f"{API}/characters/import", files=file), 201)["character"]
    for name in HOSTILE_NAMES:
        path = f"{API}/characters/{made['id']}"
        ok(await ada.client.patch(path, json={"name": name}))
        exported = await ada.client.get(f"{path}/export", params={"format": "charx"})
        stem = exported.headers["content-disposition"].split('filename="')[1].split(".charx")[0]
        assert stem in {"character", "a b", "trailing dots", ("long " * 40)[:79]}
        with zipfile.ZipFile(io.BytesIO(exported.content)) as archive:
            assert archive.namelist() == ["card.json", "assets/_CON/_aux.png"]
        again = {"file": (f"{name}.charx", exported.content)}
        copy = ok(await ada.client.post(f"{API}/characters/import", files=again), 201)
        assert copy["character"]["name"] == name
