"""Archives of single chats: out of one account, and back into it or into another one."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.deletion import ABANDONED_AFTER
from backend.chats.models import Chat
from backend.chats.transfer import read_log
from backend.database.base import now
from backend.errors import ConflictError
from tests.integration.characters.pictures import opened, picture
from tests.integration.turns.seeding import identity_of
from tests.support.archives import read_files, write_files
from tests.support.importing import bring, card_json
from tests.support.server import Account, Running, ok, problem
from tests.support.shared import ada, server, shared_url
from tests.support.stored_chats import (
    delete_abandoned,
    make_header,
    make_line,
    make_swiped,
    write_lines,
)

__all__ = ["ada", "server", "shared_url"]

pytestmark = pytest.mark.anyio

PICTURE = "data:image/png;base64,iVBORw0KGgo="
CHAT = write_lines(
    [
        make_header(note_prompt="It rains.", scenario="A mill.", variables={"gold": "12"}),
        make_swiped(["Rain.", "Snow."], 1),
        make_line("Look.", is_user=True, minute=1, extra={"image": PICTURE}),
        make_swiped(["Who is there?", "Go away!"]),
    ]
)


async def export(account: Account, chat_id: str, file_format: str = "archive") -> bytes:
    answer = await account.ask("GET", f"/chats/{chat_id}/export", params={"format": file_format})
    assert answer.status_code == 200, answer.text
    return answer.content


async def new_chat(account: Account) -> str:
    """Import a chat with its character, and branch it."""
    await bring(account, card_json(), "Mara.json")
    view, _ = await bring(account, CHAT, "night.jsonl", path="/chats/import")
    chat_id: str = view["chat_id"]
    first = (await account.messages(chat_id))[0]
    siblings = (await account.get(f"/messages/{first['id']}/siblings"))["items"]
    await account.post(f"/messages/{siblings[0]['id']}/activate")
    return chat_id


def normalise(archive: bytes) -> Any:
    """Return the content of an archive with numbers in the place of ids."""
    files = read_files(archive)
    names: dict[str, str] = {}
    head, *lines = [json.loads(line) for line in files["chat.jsonl"].splitlines()]
    for number, line in enumerate(lines):
        names[line["id"]] = str(number)
    pictures: dict[int, bytes] = {}
    for line in lines:
        for member in ("id", "parent_id", "scene_id"):
            line[member] = names.get(line.get(member), "")
        for file in line.get("files", []):
            pictures[len(pictures)] = files[file.pop("stored")]
    for origin in head["origins"]:
        origin["message_id"] = names[origin["message_id"]]
    head |= {"id": "", "leaf_id": names[head["leaf_id"]]}
    return head, lines, pictures, files["sillytavern.jsonl"]


async def test_a_deleted_chat_comes_back_with_branches_files_and_settings(ada: Account) -> None:
    chat_id = await new_chat(ada)
    marked = await ada.patch(
        f"/chats/{chat_id}", {"pinned": True, "archived": True, "tags": ["sea"]}
    )
    archive = await export(ada, chat_id)
    await ada.delete(f"/chats/{chat_id}")

    view, results = await bring(ada, archive, "night.zip", path="/chats/import")
    assert [(each["outcome"], each["warnings"]) for each in results.values()] == [("imported", [])]
    again = await export(ada, view["chat_id"])
    assert normalise(again) == normalise(archive)
    settings = await ada.get(f"/chats/{view['chat_id']}/settings")
    assert settings["scenario"] == "A mill."
    again_there = await ada.get(f"/chats/{view['chat_id']}")
    for name in ("title", "pinned_at", "archived_at", "tags"):
        assert again_there[name] == marked[name], name


async def test_a_background_and_the_sizes_of_pictures_come_back(ada: Account) -> None:
    await ada.new_character(name="Mara")
    chat_id = await new_chat(ada)
    files = {"file": ("sea.png", picture(width=40, height=30), "image/png")}
    sent = await ada.ask("POST", f"/chats/{chat_id}/files", files=files)
    await ada.turn(chat_id, text="Look.", files=[ok(sent, 201)["id"]])
    shown = picture(width=64, height=48)
    png = {"content-type": "image/png"}
    ok(await ada.ask("PUT", f"/chats/{chat_id}/background", content=shown, headers=png), 204)
    before = await ada.ask("GET", f"/chats/{chat_id}/background")
    archive = await export(ada, chat_id)
    view, results = await bring(ada, archive, "night.zip", copy=True)
    assert results["chat.jsonl"]["warnings"] == []
    after = await ada.ask("GET", f"/chats/{view['chat_id']}/background")
    assert opened(after.content).size == opened(before.content).size == (64, 48)
    sizes = [
        (file["width"], file["height"])
        for message in await ada.messages(view["chat_id"])
        for file in message["files"]
    ]
    assert (40, 30) in sizes

    broken = write_files({**read_files(archive), "background.webp": b"no picture"})
    view, results = await bring(ada, broken, "night.zip", copy=True)
    [warning] = results["chat.jsonl"]["warnings"]
    assert "background" in warning
    missing = await ada.ask("GET", f"/chats/{view['chat_id']}/background")
    problem(missing, 404, "background-not-found")


async def test_an_archive_is_imported_once_unless_a_copy_is_wanted(ada: Account) -> None:
    chat_id = await new_chat(ada)
    archive = await export(ada, chat_id)
    view, results = await bring(ada, archive, "night.zip")
    assert results["chat.jsonl"]["outcome"] == "already_there"
    assert results["chat.jsonl"]["item_id"] == chat_id
    view, _ = await bring(ada, archive, "night.zip", copy=True)
    assert view["chat_id"] != chat_id
    assert len((await ada.get("/chats"))["items"]) == 2
    await ada.delete(f"/chats/{chat_id}")
    later, results = await bring(ada, archive, "night.zip")
    assert results["chat.jsonl"]["outcome"] == "already_there"
    assert later["chat_id"] == view["chat_id"]


async def test_another_account_finds_the_characters_by_name(ada: Account, server: Running) -> None:
    archive = await export(ada, await new_chat(ada))
    async with server.account("Ben") as ben:
        _, results = await bring(ben, archive, "night.zip")
        assert "no character" not in str(results).lower()
        [warning] = results["chat.jsonl"]["warnings"]
        assert "Add one in the chat" in warning
        mara = await ben.new_character(name="Mara")
        view, results = await bring(ben, archive, "night.zip", copy=True)
        assert results["chat.jsonl"]["warnings"] == []
        chat = await ben.get(f"/chats/{view['chat_id']}")
        assert chat["character_ids"] == [mara["id"]]
        replies = [each for each in await ben.messages(chat["id"]) if each["role"] == "assistant"]
        assert {each["character_id"] for each in replies} == {mara["id"]}


def change_log(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    def write(archive: bytes) -> bytes:
        files = read_files(archive)
        lines = change(files["chat.jsonl"].splitlines())
        return write_files({**files, "chat.jsonl": b"\n".join(lines)})

    return write


def set_members(line: bytes, **members: Any) -> bytes:
    return json.dumps({**json.loads(line), **members}).encode()


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a truncated line": (change_log(lambda lines: [*lines[:-1], lines[-1][:40]]), "Line 6"),
    "a missing parent": (change_log(lambda lines: [lines[0], *lines[3:]]), "`parent_id`"),
    "two objects in a line": (
        change_log(lambda lines: [lines[0], lines[1] + lines[2], *lines[3:]]),
        "Line 2",
    ),
    "an id that is used twice": (
        change_log(lambda lines: [*lines, lines[1]]),
        "already used",
    ),
    "a loop of parents": (
        change_log(
            lambda lines: [
                lines[0],
                set_members(lines[1], parent_id=json.loads(lines[1])["id"]),
                *lines[2:],
            ]
        ),
        "`parent_id`",
    ),
    "a leaf that is not there": (
        change_log(
            lambda lines: [
                set_members(lines[0], leaf_id="01890a5d-ac96-774b-bcce-b302099a8057"),
                *lines[1:],
            ]
        ),
        "`leaf_id`",
    ),
    "settings of another type": (
        change_log(lambda lines: [set_members(lines[0], settings={"scenario": 5}), *lines[1:]]),
        "Line 1",
    ),
    "a header that is not JSON": (
        change_log(
            lambda lines: [
                set_members(lines[0], origins=[{"name": "x", "header": "{"}]),
                *lines[1:],
            ]
        ),
        "damaged",
    ),
    "a later version": (
        change_log(lambda lines: [set_members(lines[0], version=2), *lines[1:]]),
        "Line 1",
    ),
    "bytes that are no text": (change_log(lambda lines: [*lines, b"\xff\xfe\x00"]), "Line 7"),
}


@pytest.mark.parametrize("case", DAMAGED)
async def test_a_damaged_archive_has_one_result_and_leaves_no_chat(
    ada: Account, archive: bytes, case: str
) -> None:
    damage, words = DAMAGED[case]
    view, results = await bring(ada, damage(archive), "night.zip")
    assert [each["outcome"] for each in results.values()] == ["failed"]
    assert words in results["chat.jsonl"]["detail"]
    assert view["state"] == "finished"
    assert (await ada.get("/chats"))["items"] == []


async def test_missing_files_and_paths_outside_of_the_archive_are_left_out(
    ada: Account, archive: bytes
) -> None:
    files = read_files(archive)
    lines = [json.loads(line) for line in files["chat.jsonl"].splitlines()]
    for line in lines[1:]:
        for file in line.get("files", []):
            file["stored"] = "../../secrets.json"
    log = b"\n".join(json.dumps(line).encode() for line in lines)
    _, results = await bring(ada, write_files({**files, "chat.jsonl": log}), "night.zip")
    assert results["chat.jsonl"]["outcome"] == "imported"
    assert any("1 files" in each for each in results["chat.jsonl"]["warnings"])


async def test_an_unfinished_chat_is_not_swept_while_it_grows(
    server: Running, ada: Account, archive: bytes
) -> None:
    parts = server.parts
    log = read_log(read_files(archive)["chat.jsonl"])
    log.head.created_at -= timedelta(days=400)
    identity = await identity_of(server, ada)

    async def sweep(_count: int) -> None:
        await delete_abandoned(parts.database)

    async def wait_too_long(count: int) -> None:
        async with parts.database.write() as session:
            await session.execute(
                update(Chat).where(~Chat.is_ready).values(updated_at=now() - 2 * ABANDONED_AFTER)
            )
        await sweep(count)

    store = parts.import_services.chat_trees.store
    with pytest.raises(ConflictError):
        await store(identity, log, listeners={}, report=wait_too_long, record=record_nothing)
    assert (await ada.get("/chats"))["items"] == []
    chat_id = await store(identity, log, listeners={}, report=sweep, record=record_nothing)
    assert [each["text"] for each in await ada.messages(str(chat_id))] == ["Rain."]


async def record_nothing(_session: AsyncSession, _item_id: UUID) -> None:
    """A `RecordCreated`."""


@pytest.fixture
async def archive(ada: Account) -> bytes:
    """The archive of a chat that is deleted."""
    chat_id = await new_chat(ada)
    data = await export(ada, chat_id)
    await ada.delete(f"/chats/{chat_id}")
    return data
