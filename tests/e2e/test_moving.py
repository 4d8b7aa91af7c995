"""A SillyTavern folder moves into an installation, and its account into another one."""

from __future__ import annotations

import asyncio
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tests.e2e.test_crash import browser
from tests.support.archives import make_archive
from tests.support.importing import bring, outcomes
from tests.support.process import run_command, serving
from tests.support.server import Account
from tests.support.sillytavern_folder import FolderSize, SillyTavernFolder

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FOLDER = SillyTavernFolder(FolderSize(characters=18, chats=95, messages=8))
"""Two characters share their names with others, and one has two runs of chats."""
PREFIX = "data/default-user/"

Results = Mapping[str, Mapping[str, Any]]


def zip_folder() -> bytes:
    target = io.BytesIO()
    FOLDER.write_zip(target, prefix=PREFIX)
    return target.getvalue()


OWN_METADATA = re.compile(rb',?"talekeeper":\{[^{}]*\}')
"""The settings of a group in the metadata of a chat."""


def find_changes(before: bytes, after: bytes) -> list[str]:
    """Return the members of a chat file that do not come out with the same bytes.

    A group's chat also has the settings of its group, and says who is muted at the end.
    """
    old, new = (
        [msgspec.json.decode(line, type=dict[str, Raw]) for line in data.splitlines()]
        for data in (before, after)
    )
    own = b'"talekeeper":{"presence"'
    new = [each for each in new if own not in bytes(each.get("extra", Raw()))]
    if "chat_metadata" not in old[0]:  # a group's chat of an older version
        del new[0]
    changes = [] if len(old) == len(new) else [f"{len(new)} lines instead of {len(old)}"]
    for number, (was, found) in enumerate(zip(old, new, strict=False), start=1):
        changes += [
            f"line {number}: {name}"
            for name, value in was.items()
            if name not in found or OWN_METADATA.sub(b"", bytes(found[name])) != bytes(value)
        ]
    return changes


async def download(account: Account, chat_id: str, file_format: str) -> bytes:
    answer = await account.ask("GET", f"/chats/{chat_id}/export", params={"format": file_format})
    assert answer.status_code == 200, answer.text
    return answer.content


async def activate_branch(account: Account, chat_id: str, path: str) -> None:
    """Open the path of a file that was joined to a chat."""
    with zipfile.ZipFile(io.BytesIO(await download(account, chat_id, "archive"))) as archive:
        head = json.loads(archive.read("chat.jsonl").splitlines()[0])
    name = path.rpartition("/")[2]
    [leaf] = [each["message_id"] for each in head["origins"] if each["name"] == name]
    await account.post(f"/messages/{leaf}/activate")


async def check_chat(account: Account, chat_id: str, data: bytes, results: Results) -> None:
    """Check that a chat opens with its swipes, its persona and its lorebook."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in data.splitlines()]
    metadata: dict[str, Any] = {}
    if "chat_metadata" in lines[0]:
        metadata = lines.pop(0)["chat_metadata"]
    chat = await account.get(f"/chats/{chat_id}")
    if "persona" in metadata:
        persona = results[f"{PREFIX}User Avatars/{metadata['persona']}"]["item_id"]
        assert chat["persona_id"] == persona
    books = (await account.get(f"/chats/{chat_id}/lorebooks"))["items"]
    linked = [each["lorebook"]["name"] for each in books if each["source"] == "chat"]
    assert linked == ([metadata["world_info"]] if "world_info" in metadata else [])
    shown = [
        each
        for each in await account.messages(chat_id, limit=100)
        # Muted members of a group have a message, which is not in the file.
        if each["presence"] is None
    ]
    assert [each["text"] for each in shown] == [line["mes"] for line in lines]
    assert [each["author"] for each in shown] == [line["name"] for line in lines]
    for message, line in zip(shown, lines, strict=True):
        assert message["sibling_count"] >= len(line.get("swipes", [0]))
        assert message["sibling"] == line.get("swipe_id", 0) + 1


async def test_a_folder_comes_in_and_the_account_goes_out_without_a_loss(tmp_path: Path) -> None:
    files = dict(FOLDER.iterate_files())
    chats = [*FOLDER.chat_paths, *FOLDER.group_chat_paths]
    first, second, archive = tmp_path / "first", tmp_path / "second", tmp_path / "archive.zip"
    for folder in (first, second):
        folder.mkdir()

    with serving(first) as served:
        async with browser(served) as ada:
            view, results = await bring(ada, zip_folder(), "data.zip")
            assert view["state"] == "finished"
            assert not [each for each in results.values() if each["outcome"] == "failed"]
            ids = {path: results[PREFIX + path]["item_id"] for path in chats}
            assert len(set(ids.values())) == len(chats) - len(FOLDER.branch_paths)
            kinds = Counter(
                each["kind"] for each in results.values() if each["outcome"] == "imported"
            )
            assert kinds["character"] == len(FOLDER.characters)
            assert kinds["chat"] == len(chats)

            changes: dict[str, list[str]] = {}
            for path in chats:
                if path in FOLDER.branch_paths:
                    continue
                await check_chat(ada, ids[path], files[path], results)
                changes[path] = find_changes(files[path], await download(ada, ids[path], "jsonl"))

            again, repeated = await bring(ada, zip_folder(), "data.zip")
            assert again["counts"]["imported"] == again["counts"]["failed"] == 0, {
                path: each for path, each in outcomes(repeated).items() if each == "imported"
            }
            data = await make_archive(ada)
            await asyncio.to_thread(archive.write_bytes, data)

            for path in FOLDER.branch_paths:
                await activate_branch(ada, ids[path], path)
                changes[path] = find_changes(files[path], await download(ada, ids[path], "jsonl"))
            assert {path: found for path, found in changes.items() if found} == {}

    with serving(second) as served:
        async with browser(served) as ada:
            view, results = await bring(ada, data, "archive.zip")
            assert set(outcomes(results).values()) == {"imported"}, [
                each for each in results.values() if each["outcome"] != "imported"
            ]
            key = (await ada.post("/api-keys", {"label": "compare", "scope": "manage"}, 201))[
                "token"
            ]
    compared = await asyncio.to_thread(
        run_command, second, "compare", str(archive), "user:ada", api_key=key
    )
    assert (compared.returncode, compared.stdout) == (0, "equal\n"), compared.stderr
