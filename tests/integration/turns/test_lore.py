"""Lorebooks in prompts: positions, timed effects, and `POST /lorebooks/{id}/test`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select

from backend.turns.models import StoredContextRecord
from tests.fakes.openai_server import OpenAIServer
from tests.support.memory import (
    API,
    context_of,
    link,
    new_book,
    preview,
    reasons,
    set_chat,
    take_turn,
    whole,
)
from tests.support.models import asking
from tests.support.server import Account, Running, ok, problem, running
from tests.support.shared import vendor as model

__all__ = ["model"]

pytestmark = pytest.mark.anyio

WORLD = Path(__file__).parents[2] / "fixtures" / "lorebooks" / "drowned_coast.json"


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: OpenAIServer
) -> AsyncGenerator[Running]:
    """A server without an index, so that entries are only found by their keys."""
    folder = tmp_path_factory.mktemp("data")
    async with running(
        shared_url, folder, embedder="none", job_workers=0, **asking(model)
    ) as server:
        yield server


async def import_world(account: Account, data: bytes) -> str:
    """Import a file; return the id of its book."""
    files = {"file": ("world.json", data)}
    made = ok(await account.ask("POST", "/lorebooks/import", files=files), 201)
    assert made["skipped"] == 0
    book_id: str = made["lorebook"]["id"]
    return book_id


async def add_linked_book(
    account: Account, chat: str, *entries: dict[str, Any], **fields: Any
) -> str:
    """Create a book with these entries and link it to the chat; return its id."""
    book = await new_book(account, *entries, **fields)
    await link(account, chat, book)
    return book


def read_texts(context: dict[str, Any]) -> list[str]:
    """Return the texts of the prompt."""
    return [message["text"] for message in context["prompt"]]


async def test_entries_of_a_file_are_found_by_their_keys(ada: Account, chat: str) -> None:
    await link(ada, chat, await import_world(ada, WORLD.read_bytes()))
    assert reasons(await preview(ada, chat, "Good evening.")) == {"The coast": "constant"}
    context = await preview(ada, chat, "We sail past Skerrow Light to the Salt Market.")
    assert reasons(context) == {
        "The coast": "constant",
        "Skerrow Light": 'key "skerrow" in the line',
        "Salt Market": 'key "salt market" in the line',
        # The lighthouse speaks of its keeper.
        "Keeper": 'key "Oda Fenwick" in entry "Skerrow Light" (recursion 1)',
    }
    assert "Oda Fenwick lost two fingers" in whole(context)
    await set_chat(ada, chat, lore={"scan_depth": 3})
    await take_turn(ada, chat, text="I ask for the Salt Market.")
    context = await preview(ada, chat, "How much for the lantern?")
    assert reasons(context)["Salt Market"] == 'key "salt market" in message 2'


async def test_hidden_messages_do_not_count_for_the_scan_depth(ada: Account, chat: str) -> None:
    await add_linked_book(
        ada, chat, {"title": "Market", "content": "It is loud.", "keys": ["salt market"]}
    )
    await set_chat(ada, chat, lore={"scan_depth": 3})
    await take_turn(ada, chat, text="I ask for the Salt Market.")
    await take_turn(ada, chat, text="I wait.")
    for message in (await ada.messages(chat))[-2:]:
        path = f"/messages/{message['id']}"
        await ada.patch(path, {"hidden": True})
    context = await preview(ada, chat, "How much for the lantern?")
    assert reasons(context)["Market"] == 'key "salt market" in message 2'


async def test_entries_have_their_positions_in_the_prompt(
    ada: Account, model: OpenAIServer
) -> None:
    character = await ada.new_character(
        description="She keeps an inn. {{outlet::weather}}",
        mes_example="<START>\n{{user}}: A room?\n{{char}}: Upstairs.",
    )
    chat = str((await ada.new_chat(character_ids=[character["id"]]))["id"])
    note = {"text": "NOTE", "depth": 1, "role": "system"}
    await set_chat(ada, chat, authors_note=note)
    for line in ("One.", "Two."):
        await take_turn(ada, chat, text=line)
    constant = {"constant": True}
    await add_linked_book(
        ada,
        chat,
        {"title": "a", "content": "BEFORE", "position": "before_character", **constant},
        {"title": "b", "content": "AFTER", "position": "after_character", **constant},
        {"title": "c", "content": "EXAMPLE-TOP", "position": "examples_top", **constant},
        {"title": "d", "content": "EXAMPLE-BOTTOM", "position": "examples_bottom", **constant},
        {"title": "e", "content": "NOTE-TOP", "position": "note_top", **constant},
        {"title": "f", "content": "NOTE-BOTTOM", "position": "note_bottom", **constant},
        {
            "title": "g",
            "content": "DEEP {{user}}",
            "position": "at_depth",
            "depth": 3,
            "role": "assistant",
            **constant,
        },
        {
            "title": "h",
            "content": "IT RAINS",
            "position": "outlet",
            "outlet": "weather",
            **constant,
        },
        {"title": "i", "content": "UNREAD", "position": "outlet", "outlet": "nobody", **constant},
        {"title": "k", "content": "BY KEY", "position": "before_character", "keys": ["three"]},
    )
    reply_id = await take_turn(ada, chat, text="Three.")
    context = await context_of(ada, reply_id)
    head, *rest = read_texts(context)
    order = ["BEFORE", "keeps an inn. IT RAINS", "AFTER", "EXAMPLE-TOP", "A room?"]
    places = [head.index(text) for text in [*order, "EXAMPLE-BOTTOM"]]
    assert places == sorted(places)
    # Greeting, One., reply, Two., reply, and the line: depth counts the line.
    deep = next(place for place, text in enumerate(rest) if text == f"DEEP {ada.name}")
    assert rest[deep - 1] == "The rain has stopped."
    assert rest[deep + 1] == "Two."
    assert context["prompt"][deep + 1]["role"] == "assistant"
    around = rest.index("NOTE-TOP\nNOTE\nNOTE-BOTTOM")
    assert rest[around + 1].startswith("<lorebook_entries>\nBY KEY\n")
    assert rest[-1] == "Three."
    assert "UNREAD" not in whole(context)
    (unread,) = [each for each in context["left_out"] if "outlet" in each["reason"]]
    assert unread["reason"] == 'no field reads the outlet "nobody"'
    assert unread["title"] == "i"
    sent = [message["content"] for message in model.requests[-1].body["messages"]]
    assert sent == read_texts(context)


async def test_lore_can_keep_its_written_position(ada: Account, chat: str) -> None:
    example = "<START>\n{{user}}: A bed?\n<START>\n{{user}}: A meal?"
    await add_linked_book(
        ada,
        chat,
        {"title": "Inn", "content": "BY KEY", "position": "before_character", "keys": ["inn"]},
        {"title": "Talk", "content": example, "position": "examples_top", "keys": ["inn"]},
    )
    behind = read_texts(await preview(ada, chat, "The inn."))
    assert "BY KEY" not in behind[0]
    assert "BY KEY" in behind[-2]

    await set_chat(ada, chat, lore_placement="as_written")
    head, *rest = read_texts(await preview(ada, chat, "The inn."))
    assert head.index("BY KEY") < head.index(f"{ada.name}: A bed?\n\n{ada.name}: A meal?")
    assert "BY KEY" not in "".join(rest)
    assert "<START>" not in "".join([*behind, head, *rest])


async def test_a_regenerated_reply_is_a_swipe_for_triggers(ada: Account, chat: str) -> None:
    kinds = ("normal", "swipe", "regenerate", "continue", "other")
    entries = (
        {"title": kind, "constant": True, "content": kind, "triggers": [kind]} for kind in kinds
    )
    await add_linked_book(ada, chat, *entries)
    reply_id = await take_turn(ada, chat, text="Hello.")
    assert set(reasons(await context_of(ada, reply_id))) == {"normal"}
    again = await take_turn(ada, chat, regenerate_of=reply_id)
    assert set(reasons(await context_of(ada, again))) == {"regenerate", "swipe"}


async def test_sticky_and_cooldown_follow_their_branch(ada: Account, chat: str) -> None:
    entry = {"title": "Bell", "keys": ["bell"], "content": "It tolls.", "sticky": 4, "cooldown": 4}
    await add_linked_book(ada, chat, entry)
    await set_chat(ada, chat, lore={"scan_depth": 1})

    async def is_in(text: str) -> str:
        return reasons(await preview(ada, chat, text)).get("Bell", "")

    async def left_out() -> str:
        context = await preview(ada, chat, "The bell!")
        return "".join(each["reason"] for each in context["left_out"] if each["title"] == "Bell")

    quiet = await take_turn(ada, chat, text="Hush.")
    assert await is_in("Hush.") == ""
    rung = await take_turn(ada, chat, text="The bell!")
    assert await is_in("Go on.") == "sticky, 2 messages left"
    # The bell was not rung on the other branch.
    await ada.post(f"/messages/{quiet}/activate", {"follow": False})
    assert await is_in("Go on.") == ""
    await take_turn(ada, chat, text="No bells here, but hush.")
    assert await is_in("Go on.") == ""
    # And back.
    await ada.post(f"/messages/{rung}/activate", {})
    assert "sticky" in await is_in("Go on.")
    await take_turn(ada, chat, text="Go on.")
    assert await is_in("Go on.") == ""
    assert "cooldown" in await left_out()
    for line in ("Still.", "Quiet."):
        await take_turn(ada, chat, text=line)
    assert await is_in("The bell!") == 'key "bell" in the line'
    # A swipe of the first reply keeps the effect.
    await ada.post(f"/messages/{rung}/activate", {"follow": False})
    again = await take_turn(ada, chat, regenerate_of=rung)
    assert again != rung
    assert "sticky" in await is_in("Go on.")


async def test_random_choices_are_the_same_in_all_prompts(ada: Account, chat: str) -> None:
    entries = [
        {"title": f"c{n}", "keys": ["coin"], "content": f"Coin {n}.", "probability": 50}
        for n in range(24)
    ]
    group = [
        {"title": f"g{n}", "keys": ["coin"], "content": f"Group {n}.", "group": "one"}
        for n in range(6)
    ]
    await add_linked_book(ada, chat, *entries, *group)
    draws: set[tuple[str, ...]] = set()
    why: set[str] = set()
    for _ in range(3):
        shown = await preview(ada, chat, "A coin!")
        reply_id = await take_turn(ada, chat, text="A coin!")
        turn = await context_of(ada, reply_id)
        again = await context_of(ada, await take_turn(ada, chat, regenerate_of=reply_id))
        assert shown["prompt"] == turn["prompt"] == again["prompt"]
        assert shown["left_out"] == turn["left_out"] == again["left_out"]
        titles = tuple(sorted(reasons(turn)))
        assert 1 <= sum(title[0] == "c" for title in titles) < 24
        assert sum(title[0] == "g" for title in titles) == 1
        draws.add(titles)
        why |= {each["reason"] for each in turn["left_out"] if each["kind"] == "lore"}
    assert len(draws) > 1
    assert any("probability" in each for each in why)
    assert any("group" in each for each in why)


@pytest.mark.every_database
async def test_macros_in_lore_write_variables_with_the_turn(ada: Account, chat: str) -> None:
    entry = {
        "title": "Ledger",
        "keys": ["pay"],
        "content": "{{incvar::paid}}Paid {{getvar::paid}}.",
    }
    await add_linked_book(ada, chat, entry)
    for _ in range(2):  # a preview writes nothing
        assert "Paid 1." in whole(await preview(ada, chat, "I pay."))
    await take_turn(ada, chat, text="I pay.")
    assert "Paid 2." in whole(await preview(ada, chat, "I pay."))


@pytest.mark.every_database
async def test_five_thousand_entries_fit(ada: Account, chat: str, server: Running) -> None:
    entries = {
        str(n): {
            "uid": n,
            "key": ["everything" if n < 900 else f"word{n}"],
            "comment": f"Entry number {n} of the great book",
            "content": f"What there is to know of {n}. " * 10,
            "order": 500 if n == 1234 else 100,
            "probability": 50 if n < 600 else 100,
            "useProbability": True,
        }
        for n in range(5_000)
    }
    await link(ada, chat, await import_world(ada, json.dumps({"entries": entries}).encode()))
    shown = await preview(ada, chat, "Tell me everything of word1234.")
    reply_id = await take_turn(ada, chat, text="Tell me everything of word1234.")
    context = await context_of(ada, reply_id)
    assert context["prompt"] == shown["prompt"]
    assert "Entry number 1234 of the great book" in reasons(context)
    assert len(reasons(context)) > 50
    assert len(context["left_out"]) <= 202
    assert {"probability", "budget"} & {
        word for each in context["left_out"] for word in each["reason"].split()
    }
    async with server.parts.database.read() as session:
        record = await session.scalar(
            select(StoredContextRecord).order_by(StoredContextRecord.id.desc())
        )
    assert record is not None
    assert len(record.sealed_record) < 64 * 1024


async def test_an_author_s_note_and_its_lore_have_an_interval(ada: Account, chat: str) -> None:
    await add_linked_book(
        ada, chat, {"title": "Top", "content": "TOP", "position": "note_top", "constant": True}
    )
    await set_chat(ada, chat, authors_note={"text": "NOTE {{user}}", "interval": 3})
    sent = []
    for line in ("One.", "Two.", "Three.", "Four."):
        before = whole(await preview(ada, chat, line))
        reply_id = await take_turn(ada, chat, text=line)
        context = await context_of(ada, reply_id)
        sent.append(f"TOP\nNOTE {ada.name}" in read_texts(context))
        assert sent[-1] == ("NOTE" in whole(context)) == ("NOTE" in before)
        read_left_out = {each["title"]: each["reason"] for each in context["left_out"]}
        assert read_left_out.get("Top") == (None if sent[-1] else "author's note, not due")
    assert sent == [False, False, True, False]
    again = await take_turn(ada, chat, regenerate_of=reply_id)
    assert "NOTE" not in whole(await context_of(ada, again))
    await set_chat(ada, chat, authors_note={"interval": 0})
    assert "NOTE" not in whole(await preview(ada, chat, "Five."))


@pytest.mark.parametrize("position", ["before_prompt", "after_prompt"])
async def test_the_note_can_wrap_the_system_prompt(ada: Account, chat: str, position: str) -> None:
    await add_linked_book(
        ada, chat, {"title": "End", "content": "END", "position": "note_bottom", "constant": True}
    )
    note = {"text": "NOTE", "position": position}
    await set_chat(ada, chat, system_prompt="SYSTEM", authors_note=note)
    head = read_texts(await preview(ada, chat, "Hello."))[0]
    order = ["NOTE\n\nEND", "SYSTEM"] if position == "before_prompt" else ["SYSTEM", "NOTE\n\nEND"]
    places = [head.index(text) for text in order]
    assert places == sorted(places)


async def test_lorebooks_can_scan_the_author_s_note(ada: Account, chat: str) -> None:
    await add_linked_book(ada, chat, {"title": "Bell", "keys": ["bell"], "content": "It tolls."})
    await set_chat(ada, chat, authors_note={"text": "Mind the bell."})
    assert reasons(await preview(ada, chat, "Hello.")) == {}
    await set_chat(ada, chat, authors_note={"scan": True})
    found = reasons(await preview(ada, chat, "Hello."))
    assert found == {"Bell": 'key "bell" in the author\'s note'}


async def test_a_card_can_contain_an_author_s_note(ada: Account) -> None:
    note = {"text": "CARD'S NOTE", "depth": 0, "role": "user"}
    extensions = {"talekeeper": {"authors_note": note}}
    character = await ada.new_character(extensions=extensions)
    chat = str((await ada.new_chat(character_ids=[character["id"]]))["id"])
    shown = await preview(ada, chat, "Hello.")
    assert read_texts(shown)[-2:] == ["Hello.", "CARD'S NOTE"]
    (item,) = [each for each in shown["items"] if each["kind"] == "authors_note"]
    assert (item["reason"], item["role"]) == ("card", "user")
    await set_chat(ada, chat, authors_note={"text": "OWN"})
    assert "CARD'S NOTE" not in whole(await preview(ada, chat, "Hello."))

    other = {"talekeeper": {"authors_note": {"text": 7}}}
    character = await ada.new_character(extensions=other)
    chat = str((await ada.new_chat(character_ids=[character["id"]]))["id"])
    shown = await preview(ada, chat, "Hello.")
    assert not [each for each in shown["items"] if each["kind"] == "authors_note"]


async def test_books_of_members_are_used_in_their_own_replies(ada: Account) -> None:
    members: dict[str, str] = {}
    for name in ("Mags", "Alda"):
        entry = {"keys": ["lamp"], "content": f"{name}'s lamp.", "name": f"{name}'s card"}
        card = await ada.new_character(name=name, character_book={"entries": [entry]})
        members[name] = card["id"]
        book = await new_book(ada, {"title": f"{name}'s book", "keys": ["lamp"], "content": "Lit."})
        path = f"/characters/{card['id']}/lorebooks/{book}"
        await ada.put(path, status=204)
    chat = str((await ada.new_chat(character_ids=list(members.values())))["id"])
    await add_linked_book(ada, chat, {"title": "Shared", "keys": ["lamp"], "content": "Dark."})

    async def used_by(name: str) -> set[str]:
        reply = await take_turn(ada, chat, text="The lamp?", speaker=members[name])
        return set(reasons(await context_of(ada, reply)))

    assert await used_by("Alda") == {"Shared", "Alda's card", "Alda's book"}
    assert await used_by("Mags") == {"Shared", "Mags's card", "Mags's book"}
    await set_chat(ada, chat, lore={"member_books": "all"})
    assert await used_by("Alda") == {
        "Shared",
        *(f"{name}'s {place}" for name in members for place in ("card", "book")),
    }


async def try_book(account: Account, book: str, *messages: str, **options: Any) -> dict[str, Any]:
    body = {"texts": messages, **options}
    return await account.post(f"/lorebooks/{book}/test", body)


def read_reasons(answer: dict[str, Any]) -> dict[str, list[str]]:
    return {entry["title"]: entry["reason"].split("; ") for entry in answer["entries"]}


def read_left_out(answer: dict[str, Any]) -> dict[str, str]:
    return {entry["title"]: entry["reason"] for entry in answer["left_out"]}


def read_matches(entry: dict[str, Any], *messages: str) -> dict[str, str]:
    """Return the matched texts by key."""
    return {
        match["key"]: messages[match["message"]][match["start"] : match["end"]]
        for match in entry["matches"]
    }


async def test_a_test_shows_found_entries_and_their_keys(ada: Account) -> None:
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
    answer = await try_book(ada, book, text)
    assert read_reasons(answer) == {
        "Season": ["constant"],
        "Light": ['key "lighthouse" in the text'],
        "Maud": ['key "maud" in entry "Light" (recursion 1)'],
        "Lamp": ["key /dark (night|lamp)s?/i in the text", 'secondary key "war" in the text'],
        "Ship": [r"key /(?<=the )meridian\w*/i in the text"],
        "Street": ['key "strasse" in the text'],
    }
    entries = {entry["title"]: entry for entry in answer["entries"]}
    assert read_matches(entries["Light"], text) == {"lighthouse": "Lighthouse"}
    assert read_matches(entries["Street"], text) == {"strasse": "STRAẞE"}
    assert read_matches(entries["Lamp"], text) == {
        "/dark (night|lamp)s?/i": "Dark Nights",
        "war": "WAR",
    }
    assert read_matches(entries["Ship"], text) == {r"/(?<=the )meridian\w*/i": "Meridians,"}
    assert read_matches(entries["Maud"], text) == {}
    assert answer["not_found"] == 1
    assert answer["tokens"] == sum(entry["tokens"] for entry in answer["entries"])
    assert answer["budget"] > answer["tokens"]


async def test_a_test_shows_why_entries_are_left_out(ada: Account) -> None:
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
    answer = await try_book(ada, book, "To the inn!")
    assert read_reasons(answer) == {"one": ['key "inn" in the text']}
    left = read_left_out(answer)
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
    assert read_matches(missed["off"], "To the inn!") == {"inn": "inn"}
    assert 0 <= missed["rare"]["roll"] < 100
    assert missed["long"]["tokens"] > 100
    assert answer["budget"] == 100


async def test_a_test_with_a_seed_is_repeatable(ada: Account) -> None:
    book = await new_book(ada, {"keys": ["coin"], "content": "Heads.", "probability": 50})
    rolls: dict[int, float] = {}
    for seed in range(12):
        answer = await try_book(ada, book, "A coin.", seed=seed)
        (entry,) = answer["entries"] + answer["left_out"]
        rolls[seed] = entry["roll"]
        if entry["roll"] != 50:  # it is rounded
            assert bool(answer["entries"]) == (entry["roll"] < 50)
        again = await try_book(ada, book, "A coin.", seed=seed)
        assert again == answer
    assert len(set(rolls.values())) > 6


async def test_a_test_scans_older_messages_up_to_the_depth(ada: Account) -> None:
    book = await new_book(ada, {"title": "Inn", "keys": ["inn"], "content": "An inn."})
    messages = ("The inn is near.", "Is it?", "It is.")
    assert read_reasons(await try_book(ada, book, *messages)) == {}
    book = await new_book(
        ada, {"title": "Inn", "keys": ["inn"], "content": "An inn.", "scan_depth": 3}
    )
    answer = await try_book(ada, book, *messages)
    assert read_reasons(answer) == {"Inn": ['key "inn" in message 1']}
    assert read_matches(answer["entries"][0], *messages) == {"inn": "inn"}


async def test_a_test_in_a_chat_uses_its_cast_and_settings(ada: Account) -> None:
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
    assert set(read_reasons(await try_book(ada, book, text))) == {"rests"}
    answer = await try_book(ada, book, text, chat_id=chat)
    assert set(read_reasons(answer)) == {"his", "filtered", "field", "rests"}
    await link(ada, chat, book)
    await take_turn(ada, chat, text=text)
    answer = await try_book(ada, book, text, chat_id=chat)
    assert read_left_out(answer)["rests"].startswith("cooldown")
    await set_chat(ada, chat, lore={"budget_cap": 2})
    answer = await try_book(ada, book, text, chat_id=chat)
    assert answer["budget"] <= 3
    assert "budget" in read_left_out(answer).values()


async def test_a_test_adds_no_message(ada: Account, chat: str) -> None:
    book = await new_book(ada, {"keys": ["inn"], "content": "An inn."})
    before = await ada.messages(chat)
    assert (await try_book(ada, book, "The inn.", "", chat_id=chat))["entries"]
    assert await ada.messages(chat) == before
    assert (await ada.get(f"/chats/{chat}/lorebooks"))["items"] == []


async def test_invalid_tests_are_refused(ada: Account) -> None:
    book = await new_book(ada, {"keys": ["inn"], "content": "An inn."})
    account = ada

    async def ask(book_id: Any, **body: Any) -> Any:
        return await account.ask("POST", f"/lorebooks/{book_id}/test", json=body)

    problem(await ask(uuid4(), texts=["x"]), 404, "lorebook-not-found")
    problem(await ask(book, texts=["x"], chat_id=str(uuid4())), 404, "chat-not-found")
    problem(await ask(book, texts=[]), 422, "validation-failed")
    problem(await ask(book, texts=["x" * 60_000] * 2), 422, "validation-failed")


async def test_foreign_chats_are_not_tested(ada: Account, chat: str, server: Running) -> None:
    async with server.account(f"eve-of-{ada.name}") as eve:
        book = await new_book(eve, {"keys": ["inn"], "content": "An inn."})
        body = {"texts": ["The inn."], "chat_id": chat}
        answer = await eve.ask("POST", f"/lorebooks/{book}/test", json=body)
        problem(answer, 404, "chat-not-found")


async def test_a_read_only_key_may_test(ada: Account, server: Running) -> None:
    book = await new_book(ada, {"keys": ["inn"], "content": "An inn."})
    key = {"label": "looks", "scope": "read"}
    made = await ada.post("/api-keys", key, 201)
    async with server.program(made["token"]) as program:
        answer = await program.post(f"{API}/lorebooks/{book}/test", json={"texts": ["The inn."]})
    assert len(ok(answer)["entries"]) == 1
