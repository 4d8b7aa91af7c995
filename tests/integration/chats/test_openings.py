"""Chats that open with many greetings, with long ones, and with ones that grow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.characters.cards.model import MAX_GREETINGS_CHARACTERS
from tests.support.memory import API
from tests.support.server import Account, ok, problem

pytestmark = pytest.mark.anyio

LONGEST = 100_000
"""The default of `max_message_chars`."""


async def imported(ada: Account, **data: Any) -> dict[str, Any]:
    card = {"spec": "chara_card_v3", "spec_version": "3.0", "data": {"name": "Mara", **data}}
    files = {"file": ("card.json", json.dumps(card).encode())}
    made: dict[str, Any] = ok(await ada.client.post(f"{API}/characters/import", files=files), 201)
    return made


async def refused(ada: Account, character_id: str, slug: str) -> dict[str, Any]:
    """The problem that opening a chat meets; no chat is left behind."""
    answer = await ada.client.post(f"{API}/chats", json={"character_ids": [character_id]})
    assert ok(await ada.client.get(f"{API}/chats"))["items"] == []
    return problem(answer, 422, slug)


async def swipes(ada: Account, chat: dict[str, Any]) -> list[dict[str, Any]]:
    url = f"{API}/messages/{chat['leaf_id']}/siblings"
    query, found = {"limit": "200"}, list[dict[str, Any]]()
    while True:
        page = ok(await ada.client.get(url, params=query))
        found += page["items"]
        if page["next"] is None:
            return found
        query["after"] = page["next"]


async def test_a_small_card_whose_greetings_grow_to_megabytes_opens_no_chat(ada: Account) -> None:
    greeting = "{{description}}" * 4
    card = await imported(
        ada, description="x" * 199_000, first_mes=greeting, alternate_greetings=[greeting] * 39
    )
    body = await refused(ada, card["character"]["id"], "message-too-long")
    assert (body["greeting"], body["length"], body["limit"]) == (1, 796_000, LONGEST)


async def test_greetings_that_each_are_short_enough_are_bounded_together(ada: Account) -> None:
    greeting = "{{description}}{{description}}"
    card = await imported(
        ada, description="x" * 45_000, first_mes=greeting, alternate_greetings=[greeting] * 39
    )
    body = await refused(ada, card["character"]["id"], "opening-too-long")
    assert (body["greeting"], body["limit"]) == (12, MAX_GREETINGS_CHARACTERS)


async def test_greetings_whose_macros_come_to_nothing_are_bounded_together(ada: Account) -> None:
    greeting = "{{if {{description}}}}Hello.{{/if}}"
    card = await imported(
        ada, description="x" * 150_000, first_mes=greeting, alternate_greetings=[greeting] * 39
    )
    body = await refused(ada, card["character"]["id"], "macro-limit")
    assert (body["limit"], body["scope"]) == ("characters", "request")


@pytest.mark.every_database
async def test_a_greeting_that_is_too_long_costs_a_warning_on_import_and_names_itself_on_opening(
    ada: Account,
) -> None:
    long = "x" * (LONGEST + 1)
    made = await imported(ada, first_mes="Hello.", alternate_greetings=["Hm.", long])
    (warning,) = made["warnings"]
    assert warning.startswith("`alternate_greetings` 2 has 100,001 characters; a message may have")
    character = made["character"]
    assert character["alternate_greetings"][1] == long
    body = await refused(ada, character["id"], "message-too-long")
    assert body["detail"].startswith("Greeting 3 has 100,001 characters; 100,000 are allowed.")
    # It stays a character like any other, that can be changed, and shortened.
    url = f"{API}/characters/{character['id']}"
    ok(await ada.client.patch(url, json={"tags": ["long"], "first_mes": "Well?"}))
    ok(await ada.client.patch(url, json={"alternate_greetings": ["Hm.", long, "Ah."]}))
    ok(await ada.client.patch(url, json={"alternate_greetings": ["Hm.", long[1:]]}))
    chat = await ada.new_chat(character_ids=[character["id"]])
    assert [len(each["text"]) for each in await swipes(ada, chat)] == [5, 3, LONGEST]


async def test_greetings_that_are_too_long_together_cost_a_warning_on_import(ada: Account) -> None:
    made = await imported(ada, alternate_greetings=["x" * 99_000] * 11)
    (warning,) = made["warnings"]
    assert warning.startswith("The greetings have 1,089,000 characters together; a chat opens with")
    await refused(ada, made["character"]["id"], "opening-too-long")


async def test_a_greeting_that_is_too_long_cannot_be_typed_in(ada: Account) -> None:
    long = "x" * (LONGEST + 1)
    body = {"name": "Mara", "first_mes": long}
    answer = problem(await ada.client.post(f"{API}/characters", json=body), 422, "card-limit")
    assert (answer["limit"], answer["allowed"]) == ("greeting_characters", LONGEST)
    character = await ada.new_character()
    url = f"{API}/characters/{character['id']}"
    for patch in ({"first_mes": long}, {"group_only_greetings": ["Hm.", long]}):
        problem(await ada.client.patch(url, json=patch), 422, "card-limit")
    assert ok(await ada.client.get(url))["revision"] == character["revision"]


@pytest.mark.every_database
async def test_a_thousand_greetings_are_swipes_of_one_message(ada: Account) -> None:
    greetings = [f"{{{{char}}}} says {number}." for number in range(1_000)]
    character = await ada.new_character(alternate_greetings=greetings)
    chat = await ada.new_chat(character_ids=[character["id"]])
    (line,) = await ada.messages(chat["id"])
    assert (line["text"], line["sibling"], line["sibling_count"]) == (
        "The door creaks open.",
        1,
        1_001,
    )
    found = await swipes(ada, chat)
    assert [each["text"] for each in found[1:]] == [f"Mara says {n}." for n in range(1_000)]
    assert [each["is_active"] for each in found] == [True, *[False] * 1_000]
    # Another one can be chosen, and answered.
    ok(await ada.client.post(f"{API}/messages/{found[7]['id']}/activate"))
    await ada.turn(chat["id"], text="Why?")
    lines = await ada.messages(chat["id"])
    assert [each["text"] for each in lines[:2]] == ["Mara says 6.", "Why?"]
