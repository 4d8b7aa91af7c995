"""`POST /lorebooks/{id}/test`: what a text would bring in, and why the rest stays out."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.support.memory import API, link, new_book, set_chat, take_turn
from tests.support.server import Account, Running, ok, problem

pytestmark = pytest.mark.anyio


async def tried(account: Account, book: str, *messages: str, **options: Any) -> dict[str, Any]:
    body = {"texts": messages, **options}
    return await account.post(f"/lorebooks/{book}/test", body)


def why(answer: dict[str, Any]) -> dict[str, list[str]]:
    return {entry["title"]: entry["reason"].split("; ") for entry in answer["entries"]}


def why_not(answer: dict[str, Any]) -> dict[str, str]:
    return {entry["title"]: entry["reason"] for entry in answer["left_out"]}


def marked(entry: dict[str, Any], *messages: str) -> dict[str, str]:
    """What stands where a key was found, by key."""
    return {
        match["key"]: messages[match["message"]][match["start"] : match["end"]]
        for match in entry["matches"]
    }


async def test_entries_come_in_by_their_keys_and_the_text_says_where(ada: Account) -> None:
    book = await new_book(
        ada,
        {"title": "Light", "keys": ["lighthouse"], "content": "Maud keeps the lighthouse."},
        {"title": "Maud", "keys": ["maud"], "content": "She counts ships."},
        {"title": "Season", "content": "It is November.", "constant": True, "order": 10},
        {
            "title": "Lamp",
            "keys": ["/dark (night|lamp)s?/i"],
            "secondary_keys": ["navy", "war"],
            "content": "The navy put it out.",
        },
        {"title": "Ship", "keys": [r"/(?<=the )meridian\w*/i"], "content": "Ninety men."},
        {"title": "Street", "keys": ["strasse"], "content": "A street."},
        {"title": "Cat", "keys": ["cat"], "content": "A cat."},
    )
    text = "Die STRAẞE to the Lighthouse: the Meridians, Dark Nights, the WAR. Concatenate."
    answer = await tried(ada, book, text)
    assert why(answer) == {
        "Season": ["constant"],
        "Light": ['key "lighthouse" in the text'],
        "Maud": ['key "maud" in entry "Light" (recursion 1)'],
        "Lamp": ["key /dark (night|lamp)s?/i in the text", 'secondary key "war" in the text'],
        "Ship": [r"key /(?<=the )meridian\w*/i in the text"],
        "Street": ['key "strasse" in the text'],
    }
    entries = {entry["title"]: entry for entry in answer["entries"]}
    assert marked(entries["Light"], text) == {"lighthouse": "Lighthouse"}
    assert marked(entries["Street"], text) == {"strasse": "STRAẞE"}
    assert marked(entries["Lamp"], text) == {"/dark (night|lamp)s?/i": "Dark Nights", "war": "WAR"}
    assert marked(entries["Ship"], text) == {r"/(?<=the )meridian\w*/i": "Meridians,"}
    assert marked(entries["Maud"], text) == {}
    assert answer["not_found"] == 1
    assert answer["tokens"] == sum(entry["tokens"] for entry in answer["entries"])
    assert answer["budget"] > answer["tokens"]


async def test_what_nearly_came_in_is_listed_with_the_reason(ada: Account) -> None:
    inn = {"keys": ["inn"], "content": "An inn."}
    book = await new_book(
        ada,
        {**inn, "title": "off", "enabled": False},
        {**inn, "title": "rare", "probability": 0},
        {**inn, "title": "late", "delay": 5},
        {**inn, "title": "choosy", "secondary_keys": ["ale"]},
        {**inn, "title": "his", "character_filter": {"names": ["Bob"]}},
        {**inn, "title": "one", "group": "inns", "group_override": True},
        {**inn, "title": "two", "group": "inns"},
        {**inn, "title": "long", "content": "word " * 200, "order": 1},
        token_budget=100,
    )
    answer = await tried(ada, book, "To the inn!")
    assert why(answer) == {"one": ['key "inn" in the text']}
    left = why_not(answer)
    assert left["rare"] == "probability 0%"
    assert left["late"] == "delay, 4 messages to go"
    assert left["two"] == 'group "inns" lost to "one"'
    assert left["long"].startswith("budget of the book")
    assert {left["off"], left["choosy"], left["his"]} == {
        "disabled",
        "secondary keys",
        "character filter",
    }
    missed = {entry["title"]: entry for entry in answer["left_out"]}
    assert marked(missed["off"], "To the inn!") == {"inn": "inn"}
    assert 0 <= missed["rare"]["roll"] < 100
    assert missed["long"]["tokens"] > 100
    assert answer["budget"] == 100


async def test_a_seed_makes_the_same_draw_again(ada: Account) -> None:
    book = await new_book(ada, {"keys": ["coin"], "content": "Heads.", "probability": 50})
    rolls: dict[int, float] = {}
    for seed in range(12):
        answer = await tried(ada, book, "A coin.", seed=seed)
        (entry,) = answer["entries"] + answer["left_out"]
        rolls[seed] = entry["roll"]
        assert bool(answer["entries"]) == (entry["roll"] < 50)
        again = await tried(ada, book, "A coin.", seed=seed)
        assert again == answer
    assert len(set(rolls.values())) > 6


async def test_older_messages_count_as_far_as_the_scan_looks_back(ada: Account) -> None:
    book = await new_book(ada, {"title": "Inn", "keys": ["inn"], "content": "An inn."})
    messages = ("The inn is near.", "Is it?", "It is.")
    assert why(await tried(ada, book, *messages)) == {}
    book = await new_book(
        ada, {"title": "Inn", "keys": ["inn"], "content": "An inn.", "scan_depth": 3}
    )
    answer = await tried(ada, book, *messages)
    assert why(answer) == {"Inn": ['key "inn" in message 1']}
    assert marked(answer["entries"][0], *messages) == {"inn": "inn"}


async def test_in_a_chat_its_cast_its_settings_and_its_past_count(ada: Account) -> None:
    character = await ada.new_character(name="Bob", description="He owns the Gilded Eel.")
    chat = str((await ada.new_chat(character_ids=[character["id"]]))["id"])
    book = await new_book(
        ada,
        {"title": "his", "keys": ["{{char}}"], "content": "{{char}} owes {{user}} money."},
        {
            "title": "filtered",
            "keys": ["inn"],
            "content": "x",
            "character_filter": {"names": ["Bob"]},
        },
        {
            "title": "field",
            "keys": ["eel"],
            "content": "x",
            "match_fields": ["character_description"],
        },
        {"title": "rests", "keys": ["inn"], "content": "An inn.", "cooldown": 9},
    )
    text = "Bob waits at the inn."
    assert set(why(await tried(ada, book, text))) == {"rests"}
    answer = await tried(ada, book, text, chat_id=chat)
    assert set(why(answer)) == {"his", "filtered", "field", "rests"}
    await link(ada, chat, book)
    await take_turn(ada, chat, text=text)
    answer = await tried(ada, book, text, chat_id=chat)
    assert why_not(answer)["rests"].startswith("cooldown")
    await set_chat(ada, chat, lore={"budget_cap": 2})
    answer = await tried(ada, book, text, chat_id=chat)
    assert answer["budget"] <= 3
    assert "budget" in why_not(answer).values()


async def test_the_text_is_not_said_in_the_chat(ada: Account, chat: str) -> None:
    book = await new_book(ada, {"keys": ["inn"], "content": "An inn."})
    before = await ada.messages(chat)
    assert (await tried(ada, book, "The inn.", "", chat_id=chat))["entries"]
    assert await ada.messages(chat) == before
    assert (await ada.get(f"/chats/{chat}/lorebooks"))["items"] == []


async def test_texts_books_and_chats_that_can_t_be_tried_are_refused(ada: Account) -> None:
    book = await new_book(ada, {"keys": ["inn"], "content": "An inn."})
    account = ada

    async def ask(book_id: Any, **body: Any) -> Any:
        return await account.ask("POST", f"/lorebooks/{book_id}/test", json=body)

    problem(await ask(uuid4(), texts=["x"]), 404, "lorebook-not-found")
    problem(await ask(book, texts=["x"], chat_id=str(uuid4())), 404, "chat-not-found")
    problem(await ask(book, texts=[]), 422, "validation-failed")
    problem(await ask(book, texts=["x" * 60_000] * 2), 422, "validation-failed")


async def test_a_lorebook_is_not_tried_in_somebody_elses_chat(
    ada: Account, chat: str, server: Running
) -> None:
    async with server.account(f"eve-of-{ada.name}") as eve:
        book = await new_book(eve, {"keys": ["inn"], "content": "An inn."})
        body = {"texts": ["The inn."], "chat_id": chat}
        answer = await eve.ask("POST", f"/lorebooks/{book}/test", json=body)
        problem(answer, 404, "chat-not-found")


async def test_a_key_that_only_looks_may_try_a_lorebook(ada: Account, server: Running) -> None:
    book = await new_book(ada, {"keys": ["inn"], "content": "An inn."})
    key = {"label": "looks", "scope": "read"}
    made = await ada.post("/api-keys", key, 201)
    async with server.program(made["token"]) as program:
        answer = await program.post(f"{API}/lorebooks/{book}/test", json={"texts": ["The inn."]})
    assert len(ok(answer)["entries"]) == 1
