"""Tests of chats: opening, greetings, groups, lists, changes and deleted participants."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tests.support.server import Account, ok, problem, read_pages

pytestmark = pytest.mark.anyio


async def list_greetings(ada: Account, chat: str) -> list[str]:
    (first,) = await ada.messages(chat)
    swipes = ok(await ada.client.get(f"/api/v1/messages/{first['id']}/siblings"))["items"]
    return [swipe["text"] for swipe in swipes]


async def preview(ada: Account, chat: str, **query: str) -> dict[str, Any]:
    return ok(  # type: ignore[no-any-return]
        await ada.client.get(
            f"/api/v1/chats/{chat}/context", params={"text": "Well?", "prompt": "true", **query}
        )
    )


async def make_trio(ada: Account) -> list[str]:
    """Make three characters. The first one has a greeting for groups only."""
    made = [
        await ada.new_character(
            name="Mara",
            first_mes="{{char}} nods to {{user}}.",
            group_only_greetings=["Mara sees them all at once."],
        ),
        await ada.new_character(name="Bo", nickname="Bobo", description="A smith."),
        await ada.new_character(name="Cy", first_mes="Cy is silent."),
    ]
    return [each["id"] for each in made]


async def test_greetings_are_swipes_with_their_macros_expanded(ada: Account) -> None:
    character = await ada.new_character(
        name="Mara Voss",
        nickname="Mara",
        first_mes="{{char}} smiles at {{User}}. <BOT> waits for <USER>.",
        alternate_greetings=["{{persona}}", "Roll: {{roll::1}}", "", "  "],
    )
    persona = ok(
        await ada.client.post(
            "/api/v1/personas", json={"name": "The Captain", "description": "Tall."}
        ),
        201,
    )
    chat = await ada.new_chat(character_ids=[character["id"]], persona_id=persona["id"])
    assert chat["title"] == "Mara"
    assert await list_greetings(ada, chat["id"]) == [
        "Mara smiles at The Captain. Mara waits for The Captain.",
        "Tall.",
        "Roll: 1",
    ]
    (line,) = await ada.messages(chat["id"])
    assert (line["author"], line["role"], line["character_id"]) == (
        "Mara",
        "assistant",
        character["id"],
    )
    assert chat["leaf_id"] == line["id"]


async def test_a_greeting_keeps_what_it_said_when_the_card_changes(ada: Account) -> None:
    character = await ada.new_character(first_mes="Old words.")
    chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
    change = {"first_mes": "New words.", "name": "Nora"}
    ok(await ada.client.patch(f"/api/v1/characters/{character['id']}", json=change))
    (line,) = await ada.messages(chat)
    assert (line["text"], line["author"]) == ("Old words.", "Mara")
    assert (await preview(ada, chat))["items"][0]["text"].startswith("You are Nora")


async def test_the_account_s_name_stands_for_the_user_where_no_persona_does(ada: Account) -> None:
    character = await ada.new_character(first_mes="Hello, {{user}}.")
    chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
    assert await list_greetings(ada, chat) == [f"Hello, {ada.name}."]


async def test_a_chat_without_a_character_has_a_narrator(ada: Account) -> None:
    chat = (await ada.new_chat(title="Alone"))["id"]
    assert await ada.messages(chat) == []
    events = await ada.turn(chat)
    assert events[0].data["user_message_id"] is None
    (line,) = await ada.messages(chat)
    assert (line["author"], line["character_id"], line["position"]) == ("Narrator", None, 0)


async def test_a_group_has_greetings_that_a_pair_has_not(ada: Account) -> None:
    members = await make_trio(ada)
    group = (await ada.new_chat(character_ids=members))["id"]
    pair = (await ada.new_chat(character_ids=members[:1]))["id"]
    first = f"Mara nods to {ada.name}."
    assert await list_greetings(ada, group) == ["Mara sees them all at once.", first]
    assert await list_greetings(ada, pair) == [first]


async def test_in_a_group_each_line_begins_with_its_author_and_the_others_are_named(
    ada: Account,
) -> None:
    members = await make_trio(ada)
    chat = await ada.new_chat(character_ids=members)
    assert chat["title"] == "Mara, Bobo, Cy"
    events = await ada.turn(chat["id"], text="Who speaks?", speaker=members[1])
    reply = (await ada.messages(chat["id"]))[-1]
    assert (reply["author"], reply["character_id"]) == ("Bobo", members[1])
    url = f"/api/v1/messages/{events[0].data['reply_id']}/context"
    head, greeting, own, line = ok(await ada.client.get(url))["prompt"]
    assert "The characters are Mara, Bobo, Cy." in head["text"]
    assert own["text"].startswith("You are Bobo.")
    assert "Also present: Mara, Cy." in own["text"]
    assert "A smith." in own["text"]
    assert greeting["text"] == "Mara: Mara sees them all at once."
    assert line["text"] == f"{ada.name}: Who speaks?"


async def test_without_a_speaker_the_member_named_in_the_line_replies(ada: Account) -> None:
    chat = (await ada.new_chat(character_ids=await make_trio(ada)))["id"]
    await ada.turn(chat, text="Cy?")
    assert (await ada.messages(chat))[-1]["author"] == "Cy"


async def test_regenerate_and_continue_keep_the_speaker(ada: Account) -> None:
    members = await make_trio(ada)
    chat = (await ada.new_chat(character_ids=members))["id"]
    await ada.turn(chat, text="Hm.", speaker=members[2])
    spoken = (await ada.messages(chat))[-1]
    await ada.turn(chat, regenerate_of=spoken["id"])
    again = (await ada.messages(chat))[-1]
    assert (again["author"], again["character_id"]) == ("Cy", members[2])
    await ada.turn(chat, **{"continue": True})
    assert (await ada.messages(chat))[-1]["author"] == "Cy"
    await ada.turn(chat, regenerate_of=again["id"], speaker=members[0])
    assert (await ada.messages(chat))[-1]["author"] == "Mara"


async def test_a_member_may_speak_unasked_and_a_stranger_may_not(ada: Account) -> None:
    members = await make_trio(ada)
    chat = (await ada.new_chat(character_ids=members[:2]))["id"]
    await ada.turn(chat, speaker=members[1])
    assert [line["author"] for line in await ada.messages(chat)] == ["Mara", "Bobo"]
    answer = await ada.client.post(
        f"/api/v1/chats/{chat}/turns", json={"text": "Cy?", "speaker": members[2]}
    )
    problem(answer, 404, "character-not-found")


async def test_names_can_be_switched_off_in_a_group_and_on_in_a_pair(ada: Account) -> None:
    members = await make_trio(ada)
    for count, names, greeting in (
        (3, False, "Mara sees them all at once."),
        (1, True, f"Mara: Mara nods to {ada.name}."),
    ):
        chat = (await ada.new_chat(character_ids=members[:count]))["id"]
        ok(await ada.client.patch(f"/api/v1/chats/{chat}/settings", json={"names": names}))
        assert (await preview(ada, chat))["prompt"][1]["text"] == greeting


async def test_opening_a_chat_with_who_is_not_there_makes_none(ada: Account) -> None:
    character = await ada.new_character()
    for body, status, slug in (
        ({"character_ids": [str(uuid4())]}, 404, "character-not-found"),
        ({"character_ids": [character["id"], str(uuid4())]}, 404, "character-not-found"),
        ({"persona_id": str(uuid4())}, 404, "persona-not-found"),
        ({"character_ids": [character["id"]] * 2}, 422, "validation-failed"),
        ({"character_ids": ["Mara"]}, 422, "validation-failed"),
        ({"title": "x" * 301}, 422, "validation-failed"),
        ({"name": "x"}, 422, "validation-failed"),
    ):
        problem(await ada.client.post("/api/v1/chats", json=body), status, slug)
    assert ok(await ada.client.get("/api/v1/chats")) == {"items": [], "next": None}


@pytest.mark.every_database
async def test_chats_are_listed_newest_first_in_pages_and_by_character(ada: Account) -> None:
    character = await ada.new_character()
    opened = [
        await ada.new_chat(title=f"Chat {n}", character_ids=[character["id"]] if n % 3 else [])
        for n in range(7)
    ]
    newest_first = [chat["id"] for chat in reversed(opened)]
    for limit in (1, 3, 7, 50):
        pages = await read_pages(ada.client.get, "/api/v1/chats", limit=limit)
        assert [chat["id"] for page in pages for chat in page] == newest_first
    with_her = ok(await ada.client.get("/api/v1/chats", params={"character_id": character["id"]}))[
        "items"
    ]
    assert [chat["title"] for chat in with_her] == ["Chat 5", "Chat 4", "Chat 2", "Chat 1"]
    assert all(chat["character_ids"] == [character["id"]] for chat in with_her)


@pytest.mark.every_database
async def test_a_change_leaves_alone_what_it_does_not_name_and_clears_what_is_null(
    ada: Account,
) -> None:
    members = await make_trio(ada)
    persona = ok(await ada.client.post("/api/v1/personas", json={"name": "Captain"}), 201)["id"]
    chat = await ada.new_chat(character_ids=members[:1], persona_id=persona, title="One")
    url = f"/api/v1/chats/{chat['id']}"
    changed = ok(await ada.client.patch(url, json={"title": "Two"}))
    assert changed == {
        **chat,
        "title": "Two",
        "revision": chat["revision"] + 1,
        "updated_at": changed["updated_at"],
    }
    swapped = ok(await ada.client.patch(url, json={"character_ids": members[::-1]}))
    assert swapped["character_ids"] == members[::-1]
    assert (swapped["title"], swapped["persona_id"]) == ("Two", persona)
    cleared = ok(await ada.client.patch(url, json={"persona_id": None}))
    assert cleared["persona_id"] is None
    assert cleared["character_ids"] == members[::-1]
    assert ok(await ada.client.get(url)) == cleared


@pytest.mark.every_database
async def test_without_its_title_a_chat_is_named_after_its_characters_again(ada: Account) -> None:
    members = await make_trio(ada)
    chat = await ada.new_chat(character_ids=members[:2], title="One")
    url = f"/api/v1/chats/{chat['id']}"
    assert ok(await ada.client.patch(url, json={"title": None}))["title"] == "Mara, Bobo"
    changed = {"title": None, "character_ids": members[2:]}
    assert ok(await ada.client.patch(url, json=changed))["title"] == "Cy"
    alone = {"title": None, "character_ids": None}
    assert ok(await ada.client.patch(url, json=alone))["title"] == "New chat"


async def test_a_change_of_a_chat_that_makes_no_sense_changes_nothing(ada: Account) -> None:
    chat = await ada.new_chat(title="One")
    url = f"/api/v1/chats/{chat['id']}"
    for body, status, slug, word in (
        ({"titel": "Two"}, 422, "validation-failed", "titel"),
        ({"title": 7}, 422, "validation-failed", "title"),
        ({"title": "x" * 301}, 422, "validation-failed", "title"),
        ({"character_ids": "Mara"}, 422, "validation-failed", "character_ids"),
        ({"character_ids": [str(uuid4())]}, 404, "character-not-found", ""),
        ({"persona_id": str(uuid4())}, 404, "persona-not-found", ""),
        ({"leaf_id": str(uuid4())}, 422, "validation-failed", "leaf_id"),
    ):
        answer = await ada.client.patch(url, json=body)
        assert word in problem(answer, status, slug).get("detail", "")
    for no_object in (b"[]", b'"title"', b"null", b"", b"{"):
        answer = await ada.client.patch(
            url, content=no_object, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in {400, 422}
    assert ok(await ada.client.get(url)) == chat


@pytest.mark.every_database
async def test_one_of_several_concurrent_changes_of_a_chat_wins(ada: Account) -> None:
    chat = await ada.new_chat(title="One")
    url = f"/api/v1/chats/{chat['id']}"
    tag = (await ada.client.get(url)).headers["etag"]
    changes = [
        ada.client.patch(url, json={"title": title}, headers={"If-Match": tag})
        for title in ("Two", "Three", "Four")
    ]
    answers = sorted(await asyncio.gather(*changes), key=lambda answer: answer.status_code)
    assert [answer.status_code for answer in answers] == [200, 412, 412]
    problem(answers[1], 412, "revision-mismatch")
    now = await ada.client.get(url)
    assert now.headers["etag"] == answers[0].headers["etag"] != tag
    assert now.json()["title"] == answers[0].json()["title"]


async def test_when_those_who_took_part_are_deleted_the_chat_stays_readable(ada: Account) -> None:
    members = await make_trio(ada)
    persona = ok(await ada.client.post("/api/v1/personas", json={"name": "Captain"}), 201)["id"]
    chat = (await ada.new_chat(character_ids=members, persona_id=persona))["id"]
    await ada.turn(chat, text="Stay.", speaker=members[1])
    before = await ada.messages(chat)
    for url in (f"/api/v1/personas/{persona}", *(f"/api/v1/characters/{each}" for each in members)):
        assert (await ada.client.delete(url)).status_code == 204
    assert await ada.messages(chat) == before
    left = ok(await ada.client.get(f"/api/v1/chats/{chat}"))
    assert (left["character_ids"], left["persona_id"]) == ([], None)
    await ada.turn(chat, text="Is anybody left?")
    after = await ada.messages(chat)
    assert [line["author"] for line in after] == ["Mara", "Captain", "Bobo", ada.name, "Narrator"]
    assert ok(await ada.client.get(f"/api/v1/messages/{after[2]['id']}/context"))["prompt"]


async def test_a_deleted_chat_is_gone_with_all_that_was_in_it(ada: Account, chat: str) -> None:
    events = await ada.turn(chat, text="Farewell.")
    ids = [line["id"] for line in await ada.messages(chat)]
    assert (await ada.client.delete(f"/api/v1/chats/{chat}")).status_code == 204
    problem(await ada.client.get(f"/api/v1/chats/{chat}"), 404, "chat-not-found")
    for message_id in ids:
        answer = await ada.client.get(f"/api/v1/messages/{message_id}")
        problem(answer, 404, "message-not-found")
    turn_id = events[0].data["turn_id"]
    problem(await ada.client.get(f"/api/v1/turns/{turn_id}"), 404, "turn-not-found")
    problem(await ada.client.delete(f"/api/v1/chats/{chat}"), 404, "chat-not-found")
