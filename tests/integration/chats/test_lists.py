"""Lists of chats: previews, pins, the archive, tags, copies, and automatic titles."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from backend.chats.views import make_preview
from tests.support.server import Account, ok, problem

pytestmark = pytest.mark.anyio


async def find(ada: Account, chat: str, **query: Any) -> dict[str, Any]:
    """Return a chat as the list shows it."""
    items = (await ada.get("/chats", limit=500, **query))["items"]
    return next(each for each in items if each["id"] == chat)


async def list_ids(ada: Account, **query: Any) -> list[str]:
    return [each["id"] for each in (await ada.get("/chats", **query))["items"]]


@pytest.mark.every_database
async def test_a_list_shows_the_beginning_of_the_last_message(ada: Account) -> None:
    empty = await ada.new_chat(title="Empty")
    assert (empty["preview"], empty["last_message_at"]) == ("", None)
    character = await ada.new_character(first_mes=f"The  door\n\ncreaks {'open ' * 60}.")
    chat = await ada.new_chat(character_ids=[character["id"]])
    assert chat["preview"] == f"The door creaks {'open ' * 60}"[:160].rstrip()
    (greeting,) = await ada.messages(chat["id"])
    assert chat["last_message_at"] == greeting["created_at"]

    await ada.turn(chat["id"], text="Who is there?")
    *_, line, reply = await ada.messages(chat["id"])
    found = await find(ada, chat["id"])
    assert found["preview"] == make_preview(reply["text"])
    assert found["last_message_at"] == reply["created_at"]
    await ada.patch(f"/messages/{reply['id']}", {"hidden": True})
    assert (await find(ada, chat["id"]))["preview"] == "Who is there?"
    # It follows the active path.
    await ada.post(f"/messages/{greeting['id']}/activate", {"follow": False})
    assert (await find(ada, chat["id"]))["preview"] == chat["preview"]
    assert await ada.get(f"/chats/{chat['id']}") == await find(ada, chat["id"])
    assert (await find(ada, empty["id"]))["preview"] == ""
    assert line["text"] == "Who is there?"


@pytest.mark.every_database
async def test_chats_are_pinned_archived_and_tagged(ada: Account) -> None:
    old, new = [(await ada.new_chat(title=title))["id"] for title in ("Old", "New")]
    before = await ada.get(f"/chats/{old}")
    change = {"pinned": True, "archived": True, "tags": [" sea ", "Storm", "storm", " "]}
    marked = await ada.patch(f"/chats/{old}", change)
    assert marked["pinned_at"]
    assert marked["archived_at"]
    assert marked["tags"] == ["sea", "storm"]
    # The order by the last change stays, and the version does not.
    assert marked["updated_at"] == before["updated_at"]
    assert marked["revision"] > before["revision"]
    assert (await ada.get(f"/chats/{old}/settings"))["tags"] == ["sea", "storm"]

    assert await list_ids(ada) == [new, old]
    assert await list_ids(ada, archived=True) == [old]
    assert await list_ids(ada, archived=False) == [new]
    again = await ada.patch(f"/chats/{old}", {"pinned": True, "archived": False})
    assert (again["pinned_at"], again["archived_at"]) == (marked["pinned_at"], None)
    cleared = await ada.patch(f"/chats/{old}", {"pinned": None, "tags": None})
    assert (cleared["pinned_at"], cleared["tags"]) == (None, [])
    settings = await ada.patch(f"/chats/{old}/settings", {"tags": ["Sea", "sea"]})
    assert settings["tags"] == ["sea"]
    for refused in ({"pinned": "yes"}, {"tags": [""]}, {"tags": ["long " * 20]}, {"tags": "sea"}):
        answer = await ada.ask("PATCH", f"/chats/{old}", json=refused)
        problem(answer, 422, "validation-failed")


@pytest.mark.every_database
async def test_a_copy_has_all_branches_and_settings_of_its_chat(ada: Account, chat: str) -> None:
    await ada.patch(f"/chats/{chat}/settings", {"scenario": "A mill.", "tags": ["sea"]})
    await ada.patch(f"/chats/{chat}", {"title": "Night", "pinned": True})
    await ada.turn(chat, text="Who is there?")
    reply = (await ada.messages(chat))[-1]
    await ada.turn(chat, regenerate_of=reply["id"])
    await ada.post(f"/messages/{reply['id']}/activate")

    copy = await ada.post(f"/chats/{chat}/duplicate", status=201)
    assert (copy["title"], copy["pinned_at"], copy["tags"]) == ("Night (copy)", None, ["sea"])
    assert copy["character_ids"] == (await ada.get(f"/chats/{chat}"))["character_ids"]
    settings = await ada.get(f"/chats/{copy['id']}/settings")
    assert settings == await ada.get(f"/chats/{chat}/settings")
    changes = {"id", "chat_id", "parent_id", "updated_at"}
    for own, copied in zip(await ada.messages(chat), await ada.messages(copy["id"]), strict=True):
        assert own["id"] != copied["id"]
        assert {key for key in own if own[key] != copied[key]} <= changes
        assert copied["sibling_count"] == 2 or own["role"] == "user"
    # Both are independent.
    await ada.delete(f"/chats/{chat}")
    first = (await ada.messages(copy["id"]))[0]
    siblings = (await ada.get(f"/messages/{first['id']}/siblings"))["items"]
    assert [each["text"] for each in siblings] == [
        "The door creaks open.",
        "A knock at the window.",
    ]
    await ada.turn(copy["id"], text="Still here?")
    problem(await ada.ask("POST", f"/chats/{uuid4()}/duplicate"), 404, "chat-not-found")


async def test_the_first_line_becomes_the_title(ada: Account, chat: str) -> None:
    assert (await ada.get(f"/chats/{chat}"))["title"] == "Mara"
    line = "*I look up.* Who would come to the lighthouse on a night like this, Mara?\nSpeak!"
    await ada.turn(chat, text=line)
    title = "I look up. Who would come to the lighthouse on a night like…"
    assert (await ada.get(f"/chats/{chat}"))["title"] == title
    await ada.turn(chat, text="Another line.")
    assert (await ada.get(f"/chats/{chat}"))["title"] == title
    # Without its title, it gets one again, and a title of the user stays.
    await ada.patch(f"/chats/{chat}", {"title": None})
    assert (await ada.get(f"/chats/{chat}"))["title"] == "Mara"
    await ada.turn(chat, text="A third line.")
    assert (await ada.get(f"/chats/{chat}"))["title"] == title
    await ada.patch(f"/chats/{chat}", {"title": "Night"})
    own = (await ada.new_chat(title="Own"))["id"]
    for each in (chat, own):
        await ada.turn(each, text="Well?")
    assert (await ada.get(f"/chats/{chat}"))["title"] == "Night"
    assert (await ada.get(f"/chats/{own}"))["title"] == "Own"


async def test_a_removed_first_line_is_no_title(ada: Account, chat: str) -> None:
    await ada.turn(chat, text="The password is zanzibar.")
    assert (await ada.get(f"/chats/{chat}"))["title"] == "The password is zanzibar."
    line = (await ada.messages(chat))[1]["id"]
    await ada.delete(f"/messages/{line}", 200, alone="true")
    assert (await ada.get(f"/chats/{chat}"))["title"] == "Mara"
    await ada.turn(chat, text="Who is there?")
    assert (await ada.get(f"/chats/{chat}"))["title"] == "Who is there?"


async def test_automatic_titles_can_be_switched_off(ada: Account, chat: str) -> None:
    ok(await ada.client.patch("/api/v1/me/settings", json={"page": {"titles": "off"}}))
    await ada.turn(chat, text="Who is there?")
    assert (await ada.get(f"/chats/{chat}"))["title"] == "Mara"
