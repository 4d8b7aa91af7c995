"""SillyTavern's groups: their settings, and what each member knows, come in and go out."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pytest

from tests.support.groups import name_audience
from tests.support.importing import bring
from tests.support.server import Account, Running, ok
from tests.support.shared import ada, server, shared_url
from tests.support.sillytavern_folder import GONE
from tests.support.stored_chats import make_line, write_lines

__all__ = ["ada", "server", "shared_url"]

pytestmark = pytest.mark.anyio

MARA, JON, CARA = "Mara.png", "Jon.png", "Cara.png"
GROUP: dict[str, Any] = {
    "id": "1740852000000",
    "name": "The crew",
    "members": [MARA, JON, CARA],
    "allow_self_responses": True,
    "activation_strategy": 3,
    "generation_mode": 1,
    "disabled_members": [JON],
    "chat_id": "evening",
    "chats": ["evening"],
}
OWN = {
    "next_speaker": "model",
    "auto_replies": 4,
    "narrators": [JON],
    "talkativeness": {MARA: 0.9},
    "joined_later": [CARA],
}
HEADER = {"user_name": "unused", "character_name": "unused", "chat_metadata": {"talekeeper": OWN}}


def say(text: str, who: str, minute: int, **own: Any) -> dict[str, Any]:
    name = who.removesuffix(".png")
    extra = {"api": "openai", **({"talekeeper": own} if own else {})}
    return make_line(text, name=name, original_avatar=who, minute=minute, extra=extra)


LINES = [
    say("Who goes there?", MARA, 0),
    say("Jon leaves.", JON, 1, presence="absent") | {"is_system": True},
    make_line("The key is in the well.", is_user=True, minute=2),
    say("I know.", MARA, 3),
    say("Jon is here again.", JON, 4, presence="present") | {"is_system": True},
    say("Cara joins.", CARA, 5, presence="present") | {"is_system": True},
    say("Between us: I have it.", MARA, 6, audience=[JON]),
]


async def import_group(
    ada: Account, cards: dict[str, bytes], group: dict[str, Any], chat: bytes = b""
) -> dict[str, Any]:
    files = {**cards, "groups/1740852000000.json": json.dumps(group).encode()}
    if chat:
        files["group chats/evening.jsonl"] = chat
    return await import_files(ada, files)


async def import_files(ada: Account, files: dict[str, bytes]) -> dict[str, Any]:
    """Import a folder as a zip. Return the only chat of the account."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for path, data in files.items():
            file.writestr(path, data)
    _, results = await bring(ada, packed.getvalue(), "folder.zip")
    assert "failed" not in {each["outcome"] for each in results.values()}
    chats: list[dict[str, Any]] = (await ada.get("/chats"))["items"]
    assert len(chats) == 1
    return chats[0]


async def describe(ada: Account, chat: dict[str, Any]) -> dict[str, Any]:
    """Return all of a chat that a round trip has to keep, with names instead of ids."""
    characters = (await ada.get("/characters"))["items"]
    names = {each["id"]: each["name"] for each in characters}
    group = (await ada.get(f"/chats/{chat['id']}/settings"))["group"]
    group["narrators"] = [names[each] for each in group.get("narrators", [])]
    shares = group.get("talkativeness", {})
    group["talkativeness"] = {names[each]: share for each, share in shares.items()}
    members = ok(await ada.ask("GET", f"/chats/{chat['id']}/members"))
    return {
        "group": group,
        "members": [(each["name"], each["presence"]) for each in members],
        "messages": [
            {
                "author": each["author"],
                "text": each["text"],
                "presence": each["presence"],
                "hidden": each["hidden"],
                "character": names.get(each["character_id"] or ""),
                "audience": name_audience(each["audience"], names),
            }
            for each in await ada.messages(chat["id"])
        ],
    }


@pytest.fixture
async def cards(ada: Account) -> dict[str, bytes]:
    """Return card files of the members."""
    found: dict[str, bytes] = {}
    for name in ("Mara", "Jon", "Cara"):
        made = await ada.new_character(name=name)
        path = f"/characters/{made['id']}"
        found[f"characters/{name}.png"] = (await ada.ask("GET", f"{path}/export")).content
        await ada.delete(path)
    return found


async def test_settings_of_a_group_reach_its_chat(ada: Account, cards: dict[str, bytes]) -> None:
    chat = await import_group(ada, cards, GROUP, write_lines(LINES[:1]))
    found = await describe(ada, chat)
    assert found["group"]["next_speaker"] == "pooled"
    assert found["group"]["allow_self_replies"] is True
    assert found["members"] == [("Mara", "present"), ("Jon", "muted"), ("Cara", "present")]


async def test_a_group_without_chats_opens_one_with_its_settings(
    ada: Account, cards: dict[str, bytes]
) -> None:
    alone: dict[str, Any] = {
        **GROUP,
        "chats": [],
        "chat_id": "",
        "activation_strategy": 1,
        "generation_mode": 0,
    }
    found = await describe(ada, await import_group(ada, cards, alone))
    assert found["group"]["next_speaker"] == "list"
    assert found["group"]["cards"] == "swapped"
    assert found["members"] == [("Mara", "present"), ("Jon", "muted"), ("Cara", "present")]


async def test_what_each_member_knows_comes_in_and_goes_out(
    ada: Account, cards: dict[str, bytes]
) -> None:
    data = write_lines([HEADER, *LINES])
    chat = await import_group(ada, cards, GROUP, data)
    found = await describe(ada, chat)
    assert found["group"]["next_speaker"] == "model"
    assert found["group"]["auto_replies"] == 4
    assert found["group"]["narrators"] == ["Jon"]
    assert found["group"]["talkativeness"] == {"Mara": 0.9}
    assert found["members"] == [("Mara", "present"), ("Jon", "present"), ("Cara", "present")]
    changes = [(each["character"], each["presence"]) for each in found["messages"]]
    assert [each for each in changes if each[1]] == [
        ("Jon", "absent"),
        ("Jon", "present"),
        ("Cara", "present"),
    ]
    assert found["messages"][-1]["audience"] == ["Jon"]
    path = f"/chats/{chat['id']}/export"
    written = (await ada.ask("GET", path, params={"format": "jsonl"})).content
    assert [json.loads(line) for line in written.splitlines()] == [
        json.loads(line) for line in data.splitlines()
    ]


async def test_a_group_can_be_taken_to_another_account(
    server: Running, ada: Account, cards: dict[str, bytes]
) -> None:
    chat = await import_group(ada, cards, GROUP, write_lines([HEADER, *LINES]))
    answer = await ada.ask("GET", f"/chats/{chat['id']}/export", params={"format": "group"})
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as file:
        files = {name: file.read(name) for name in file.namelist()}
    group = json.loads(files[f"groups/{chat['id']}.json"])
    assert group["members"] == [MARA, JON, CARA]
    assert group["name"] == "The crew"
    assert {f"characters/{each}" for each in group["members"]} < files.keys()
    assert f"group chats/{group['chat_id']}.jsonl" in files
    async with server.account("bob") as bob:
        copy = await import_files(bob, files)
        assert await describe(bob, copy) == await describe(ada, chat)


async def test_an_audience_that_cannot_be_read_is_nobodys(
    ada: Account, cards: dict[str, bytes]
) -> None:
    lines = [
        say("For someone who is gone.", MARA, 0, audience=[GONE]),
        say("For nobody at all.", MARA, 1, audience="everyone"),
        say("Someone unknown leaves.", GONE, 2, presence="absent") | {"is_system": True},
    ]
    chat = await import_group(ada, cards, GROUP, write_lines([HEADER, *lines]))
    found = await describe(ada, chat)
    assert [each["audience"] for each in found["messages"][:2]] == ["gm", "gm"]
    assert {each["presence"] for each in found["messages"]} == {None}
