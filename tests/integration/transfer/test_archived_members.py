"""Members of chats, their presence and what they know, in files of chats and in archives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.transfer.test_archives import differences, second_installation
from tests.integration.transfer.test_chat_archives import export
from tests.support.archives import make_archive, read_files, write_files
from tests.support.groups import name_audience
from tests.support.importing import bring
from tests.support.server import Account, Running, ok
from tests.support.shared import ada, server, shared_url

__all__ = ["ada", "server", "shared_url"]

pytestmark = pytest.mark.anyio

NAMES = ("Alda", "Bor", "Cara")


async def new_cast(account: Account) -> list[str]:
    """Return the ids of Alda, Bor and Cara."""
    return [
        str((await account.new_character(name=each, first_mes=f"{each} waits."))["id"])
        for each in NAMES
    ]


async def play(account: Account, cast: list[str], **fields: Any) -> str:
    """Return a chat of Alda and Bor that Cara joins. Bor hears a whisper, leaves and returns."""
    alda, bor, cara = cast
    chat = str((await account.new_chat(character_ids=[alda, bor], **fields))["id"])
    settings = {"narrators": [alda], "talkativeness": {bor: 0.75, cara: 0.25}}
    await account.patch(f"/chats/{chat}/settings", {"group": settings})
    members = f"/chats/{chat}/members"
    await account.turn(chat, text="The key is under the mat.", audience=[bor], speaker=bor)
    told = {"presence": "present", "briefing": "The bridge is down."}
    ok(await account.ask("PATCH", f"{members}/{cara}", json=told))
    await account.turn(chat, text="Welcome.", speaker=alda)
    for presence in ("absent", "muted"):
        ok(await account.ask("PATCH", f"{members}/{bor}", json={"presence": presence}))
    return chat


async def describe(account: Account, chat: str) -> Any:
    """Return the members of a chat and its path with names in the place of ids."""
    found: Any = await account.get(f"/chats/{chat}/members")
    listed = (await account.get("/characters"))["items"]
    names: dict[Any, str] = {each["id"]: each["name"] for each in listed}
    settings = (await account.get(f"/chats/{chat}/settings"))["group"]
    return (
        [(each["name"], each["presence"], each["since"], each["narrates"]) for each in found],
        [
            (
                each["text"],
                each["presence"],
                each["hidden"],
                names.get(each["character_id"]),
                name_audience(each["audience"], names),
            )
            for each in await account.messages(chat)
        ],
        [names[each] for each in settings["narrators"]],
        {names[each]: share for each, share in settings["talkativeness"].items()},
    )


async def check_start(account: Account, chat: str) -> None:
    """Assert that Cara is not there in the branch before she joins."""
    first = (await account.messages(chat))[0]
    await account.post(f"/messages/{first['id']}/activate", {"follow": False})
    found: Any = await account.get(f"/chats/{chat}/members")
    assert [each["presence"] for each in found] == ["present", "present", "absent"]


async def test_a_deleted_chat_comes_back_with_its_members(ada: Account) -> None:
    chat = await play(ada, await new_cast(ada))
    before, archive = await describe(ada, chat), await export(ada, chat)
    await ada.delete(f"/chats/{chat}")
    view, results = await bring(ada, archive, "night.zip", path="/chats/import")
    assert [(each["outcome"], each["warnings"]) for each in results.values()] == [("imported", [])]
    assert await describe(ada, view["chat_id"]) == before
    await check_start(ada, view["chat_id"])


async def test_another_account_has_members_of_the_same_names(ada: Account, server: Running) -> None:
    chat = await play(ada, await new_cast(ada))
    before, archive = await describe(ada, chat), await export(ada, chat)
    async with server.account(f"ben-{chat}") as ben:
        await new_cast(ben)
        view, _ = await bring(ben, archive, "night.zip")
        assert await describe(ben, view["chat_id"]) == before
        await check_start(ben, view["chat_id"])


async def test_a_whisper_to_someone_unknown_is_the_narrators(ada: Account, server: Running) -> None:
    chat = await play(ada, await new_cast(ada))
    archive = await export(ada, chat)
    async with server.account(f"ben-{chat}") as ben:
        await ben.new_character(name="Alda")
        view, _ = await bring(ben, archive, "night.zip")
        path = await ben.messages(view["chat_id"])
        assert [(each["text"], each["audience"]) for each in path if each["audience"] != "public"][
            :1
        ] == [("The key is under the mat.", "gm")]
        members: Any = await ben.get(f"/chats/{view['chat_id']}/members")
        assert [(each["name"], each["presence"]) for each in members] == [("Alda", "present")]
        await ben.turn(view["chat_id"], text="Well?")


async def test_a_change_of_presence_in_a_file_is_always_hidden(ada: Account) -> None:
    chat = await play(ada, await new_cast(ada))
    files = read_files(await export(ada, chat))
    head, *lines = [json.loads(line) for line in files["chat.jsonl"].splitlines()]
    for line in lines:
        if line.get("presence"):
            line.pop("hidden")
            line["role"] = "user"
    files["chat.jsonl"] = b"\n".join(json.dumps(each).encode() for each in (head, *lines))
    view, _ = await bring(ada, write_files(files), "night.zip", copy=True)
    changes = [each for each in await ada.messages(view["chat_id"]) if each["presence"]]
    assert {(each["role"], each["hidden"]) for each in changes} == {("system", True)}


async def test_a_player_s_file_of_a_campaign_has_no_changes_of_presence(ada: Account) -> None:
    campaign = (await ada.post("/campaigns", {"name": "The coast"}, 201))["id"]
    cast = await new_cast(ada)
    await play(ada, cast, campaign_id=campaign)
    answer = await ada.ask(
        "GET", f"/campaigns/{campaign}/export", params={"format": "json", "viewpoint": cast[2]}
    )
    assert answer.status_code == 200, answer.text
    files = read_files(answer.content)
    [log] = [data for path, data in files.items() if path.startswith("chats/")]
    head, *lines = [json.loads(line) for line in log.splitlines()]
    assert head["joined_later"] == []
    texts = [each["text"] for each in lines]
    assert "Welcome." in texts
    assert "The key is under the mat." not in texts
    assert not any(each.get("presence") for each in lines)


@pytest.mark.parametrize("in_campaign", [False, True])
async def test_an_archive_of_an_account_has_members_with_their_presence(
    ada: Account,
    sqlite_template: Path,
    tmp_path: Path,
    in_campaign: bool,  # a parameter of pytest
) -> None:
    cast, fields = await new_cast(ada), dict[str, Any]()
    if in_campaign:
        fields["campaign_id"] = (await ada.post("/campaigns", {"name": "The coast"}, 201))["id"]
    chat = await play(ada, cast, **fields)
    before, archive = await describe(ada, chat), await make_archive(ada)
    async with second_installation(sqlite_template, tmp_path) as second:
        outcomes = await second.bring(archive)
        assert set(outcomes) == {"imported"}
        [found] = (await second.account.get("/chats"))["items"]
        assert await describe(second.account, found["id"]) == before
        assert "\n".join(differences(archive, await make_archive(second.account))) == ""
        await check_start(second.account, found["id"])
