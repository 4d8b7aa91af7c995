"""Memories of characters: what they remember in a chat, and what they keep across chats."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from tests.integration.turns.seeding import seed
from tests.support.memory import settled
from tests.support.server import Account, Running, ok, problem
from tests.support.shared import ada, server, shared_url

__all__ = ["ada", "server", "shared_url"]

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

SECRET = "The cracked lens lies under the third stair of the lighthouse."
QUESTION = "Where is the cracked lens of the lighthouse?"


@pytest.fixture
async def alda(ada: Account) -> str:
    return str((await ada.new_character(name="Alda"))["id"])


@pytest.fixture
async def bor(ada: Account) -> str:
    return str((await ada.new_character(name="Bor"))["id"])


@pytest.fixture
async def inn(ada: Account, alda: str, bor: str) -> str:
    """A chat of Alda and Bor with the title "The Inn"."""
    chat = await ada.new_chat(character_ids=[alda, bor], title="The Inn")
    return str(chat["id"])


async def add(ada: Account, character: str, chat: str, text: str = SECRET) -> dict[str, Any]:
    body = {"text": text, "chat_id": chat}
    return await ada.post(f"/characters/{character}/memories", body, 201)


async def page(ada: Account, character: str, chat: str, **query: Any) -> dict[str, Any]:
    return await ada.get(f"/characters/{character}/memories", chat_id=chat, **query)


async def summaries(ada: Account, character: str, chat: str) -> list[str]:
    found = await page(ada, character, chat)
    return [each["event"]["summary"] for each in found["items"]]


async def keep(ada: Account, character: str, *, keeps: bool = True) -> dict[str, Any]:
    return await ada.patch(f"/characters/{character}", {"keeps_memories": keeps})


async def find_items(
    server: Running, ada: Account, chat: str, **query: Any
) -> tuple[list[dict[str, Any]], str]:
    """Return the event items of the next turn's context, and its whole prompt."""
    await settled(server)
    context = await ada.get(f"/chats/{chat}/context", text=QUESTION, prompt="true", **query)
    items = [each for each in context["retrieved"] if each["kind"] == "event"]
    return items, str(context["prompt"])


async def test_without_a_chronicle_nothing_is_remembered(ada: Account, alda: str, inn: str) -> None:
    assert await page(ada, alda, inn) == {"items": [], "next": None}


async def test_a_memory_is_added_for_one_character(
    ada: Account, alda: str, bor: str, inn: str
) -> None:
    made = await add(ada, alda, inn)
    event = made["event"]
    assert (event["audience"], event["known_to"], event["source"]) == ([alda], [alda], "user")
    settings = await ada.get(f"/chats/{inn}/settings")
    # The new chronicle is no consent for the agent.
    assert settings["chronicle_id"] == event["chronicle_id"]
    assert not settings.get("chronicle_enabled")
    (found,) = (await page(ada, alda, inn))["items"]
    assert found == made
    empty: dict[str, Any] = {"chat_id": None, "chat_title": "", "position": None, "message_ids": []}
    assert found["source"] == empty
    assert await summaries(ada, bor, inn) == []
    again = await add(ada, bor, inn, "Bor is afraid of the sea.")
    assert again["event"]["chronicle_id"] == event["chronicle_id"]


async def test_memories_are_changed_and_deleted_as_events(
    ada: Account, alda: str, inn: str
) -> None:
    event = (await add(ada, alda, inn))["event"]
    path = f"/chronicles/{event['chronicle_id']}/events/{event['id']}"
    ok(
        await ada.ask(
            "PATCH",
            path,
            json={"summary": "It is gone."},
            headers={"if-match": f'"{event["revision"]}"'},
        )
    )
    assert await summaries(ada, alda, inn) == ["It is gone."]
    await ada.delete(path)
    assert await summaries(ada, alda, inn) == []


async def test_memories_name_the_messages_they_come_from(
    server: Running, ada: Account, alda: str, bor: str, inn: str
) -> None:
    chronicle = (await add(ada, alda, inn))["event"]["chronicle_id"]
    ok(await ada.ask("PATCH", f"/chats/{inn}/members/{bor}", json={"presence": "absent"}))
    (line,) = await seed(server, ada, inn, ["Mara tells Alda."])
    body = {"summary": "Mara told her.", "source_message_ids": [str(line.id)]}
    await ada.post(f"/chronicles/{chronicle}/events", body, 201)
    newest, _ = (await page(ada, alda, inn))["items"]
    assert newest["event"]["summary"] == "Mara told her."
    assert newest["source"] == {
        "chat_id": inn,
        "chat_title": "The Inn",
        "position": line.position,
        "message_ids": [str(line.id)],
    }
    assert await summaries(ada, bor, inn) == []


async def test_memories_are_paged_newest_first(ada: Account, alda: str, inn: str) -> None:
    for number in range(5):
        await add(ada, alda, inn, f"Memory {number}.")
    found: list[str] = []
    after = None
    while True:
        query = {"limit": 2} | ({"after": after} if after else {})
        got = await page(ada, alda, inn, **query)
        found += [each["event"]["summary"] for each in got["items"]]
        after = got["next"]
        if after is None:
            break
    assert found == [f"Memory {number}." for number in (4, 3, 2, 1, 0)]
    query = {"chat_id": inn, "after": "nonsense"}
    problem(
        await ada.ask("GET", f"/characters/{alda}/memories", params=query), 422, "validation-failed"
    )


async def test_only_members_of_own_chats_have_memories(
    server: Running, ada: Account, alda: str, inn: str
) -> None:
    other = str((await ada.new_character(name="Cid"))["id"])
    path = f"/characters/{other}/memories"
    problem(await ada.ask("GET", path, params={"chat_id": inn}), 422, "validation-failed")
    body = {"text": SECRET, "chat_id": inn}
    problem(await ada.ask("POST", path, json=body), 422, "validation-failed")
    problem(
        await ada.ask("GET", f"/characters/{alda}/memories", params={"chat_id": str(uuid4())}),
        404,
        "chat-not-found",
    )
    async with server.account(f"ben-{ada.name}") as ben:
        mine = str((await ben.new_character())["id"])
        chat = str((await ben.new_chat(character_ids=[mine]))["id"])
        for method, options in (("GET", {"params": {"chat_id": chat}}), ("POST", {"json": body})):
            answer = await ben.ask(method, f"/characters/{alda}/memories", **options)
            problem(answer, 404, "character-not-found")
        for method, options in (("GET", {"params": {"chat_id": inn}}), ("POST", {"json": body})):
            answer = await ben.ask(method, f"/characters/{mine}/memories", **options)
            problem(answer, 404, "chat-not-found")


async def test_the_choice_is_stored_and_goes_with_the_card(ada: Account, alda: str) -> None:
    assert not (await ada.get(f"/characters/{alda}"))["keeps_memories"]
    view = await keep(ada, alda)
    assert view["keeps_memories"]
    assert view["revision"] == 2
    card = ok(await ada.ask("GET", f"/characters/{alda}/export", params={"format": "json"}))
    assert card["data"]["extensions"]["talekeeper"] == {"keeps_memories": True}
    answer = await ada.client.post(
        "/api/v1/characters/import",
        files={"file": ("alda.json", json.dumps(card), "application/json")},
    )
    assert ok(answer, 201)["character"]["keeps_memories"]
    assert not (await keep(ada, alda, keeps=False))["keeps_memories"]
    wrong = await ada.ask("PATCH", f"/characters/{alda}", json={"keeps_memories": "yes"})
    problem(wrong, 422, "validation-failed")


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_character_remembers_other_chats_only_if_asked_to(
    server: Running, ada: Account, alda: str, inn: str, *, is_alone: bool
) -> None:
    await add(ada, alda, inn)
    members = [alda] if is_alone else [alda, str((await ada.new_character(name="Cid"))["id"])]
    other = str((await ada.new_chat(character_ids=members))["id"])
    items, prompt = await find_items(server, ada, other, speaker=alda)
    assert items == []
    assert SECRET not in prompt
    assert await summaries(ada, alda, other) == []
    await keep(ada, alda)
    (item,), prompt = await find_items(server, ada, other, speaker=alda)
    assert "(from the chat 'The Inn') " in item["text"]
    assert "from the chat 'The Inn'" in item["reason"]
    assert SECRET in prompt
    (memory,) = (await page(ada, alda, other))["items"]
    assert memory["event"]["summary"] == SECRET
    assert memory["source"]["chat_title"] == "The Inn"
    if not is_alone:
        items, prompt = await find_items(server, ada, other, speaker=members[1])
        assert items == []
        assert SECRET not in prompt
    await keep(ada, alda, keeps=False)
    items, prompt = await find_items(server, ada, other, speaker=alda)
    assert items == []


async def test_only_what_it_knows_is_remembered(
    server: Running, ada: Account, alda: str, bor: str, inn: str
) -> None:
    """The narrator of a chat of one character knows more than the character."""
    await add(ada, bor, inn)
    ok(await ada.ask("PATCH", f"/chats/{inn}/members/{alda}", json={"presence": "absent"}))
    (line,) = await seed(server, ada, inn, ["Bor finds the lens."])
    settings = await ada.get(f"/chats/{inn}/settings")
    path = f"/chronicles/{settings['chronicle_id']}/events"
    missed = f"Without Alda: {SECRET}"
    await ada.post(path, {"summary": missed, "source_message_ids": [str(line.id)]}, 201)
    await ada.post(path, {"summary": f"Narrated: {SECRET}", "audience": "gm"}, 201)
    await keep(ada, alda)
    other = str((await ada.new_chat(character_ids=[alda]))["id"])
    items, prompt = await find_items(server, ada, other)
    assert items == []
    assert SECRET not in prompt
    assert await summaries(ada, alda, other) == []


async def test_the_user_does_not_write_with_its_memories(
    server: Running, ada: Account, alda: str, inn: str
) -> None:
    await add(ada, alda, inn)
    await keep(ada, alda)
    other = str((await ada.new_chat(character_ids=[alda]))["id"])
    items, prompt = await find_items(server, ada, other, viewpoint="public")
    assert items == []
    assert SECRET not in prompt
