"""`GET /search`: what people find, where, and what they are told about it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.support.memory import (
    embedding,
    link,
    new_book,
    remembering,
    search,
    settled,
    tell,
)
from tests.support.server import Account, Running, ok, problem

pytestmark = pytest.mark.anyio

FACT = "The captain buried the astrolabe under the chapel bell."


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    folder = tmp_path_factory.mktemp("data")
    async with (
        OpenAIServer() as vectors,
        remembering(shared_url, folder, **embedding(vectors)) as server,
    ):
        yield server


async def ask(account: Account, **query: Any) -> Any:
    return await account.ask("GET", "/search", params=query)


async def test_a_find_says_what_it_is_where_it_stands_and_what_each_signal_gave(
    ada: Account, chat: str, server: Running
) -> None:
    entry = {"title": "Chapel", "keys": ["nave"], "content": "A chapel with a bell, and bats."}
    book = await new_book(ada, entry)
    fact, *_ = await tell(server, ada, chat, [FACT, "Hm.", "Indeed."])
    await settled(server)
    answer = ok(await ask(ada, q="the captain's astrolabe, and the chapel bell"))
    assert answer["notes"] == []
    found = {item["text"]: item for item in answer["items"]}
    first, lore = answer["items"][0], found["A chapel with a bell, and bats."]
    assert (first["kind"], first["text"], first["title"]) == ("message", FACT, ada.name)
    assert (first["source_id"], first["container_id"]) == (str(fact.id), chat)
    assert (first["position"], first["rank"]) == (1, 1)
    assert first["said_at"]
    assert first["scores"].keys() == {"dense", "sparse", "dense_window", "sparse_window"}
    assert first["scores"]["dense"] > 0.5
    assert {each["kind"] for each in first["signals"]} >= {"meaning", "words"}
    assert first["reason"].startswith("nearly the same meaning, contains the word")
    assert (lore["kind"], lore["title"], lore["container_id"]) == ("lore", "Chapel", book)
    assert (lore["position"], lore["said_at"]) == (None, None)
    ranks = [item["rank"] for item in answer["items"]]
    scores = [item["score"] for item in answer["items"]]
    assert ranks == list(range(1, len(ranks) + 1))
    assert max(scores) == scores[0]


async def test_sources_a_chat_and_a_limit_narrow_the_search(
    ada: Account, chat: str, server: Running
) -> None:
    book = await new_book(ada, {"title": "Bell", "keys": ["clapper"], "content": "A chapel bell."})
    elsewhere = str((await ada.new_chat())["id"])
    for each in (chat, elsewhere):
        await tell(server, ada, each, ["The chapel bell is silent.", f"Not in {each}."])
    await settled(server)

    async def containers(**query: Any) -> set[str]:
        return {item["container_id"] for item in await search(ada, "chapel bell", **query)}

    assert await containers() == {chat, elsewhere, book}
    assert await containers(sources="lore") == {book}
    assert await containers(sources="message") == {chat, elsewhere}
    assert await containers(sources="message, lore") == {chat, elsewhere, book}
    assert await containers(chat_id=chat) == {chat}
    assert await containers(chat_id=chat, sources="lore") == set()
    await link(ada, chat, book)
    assert await containers(chat_id=chat) == {chat, book}
    assert await containers(chat_id=chat, sources="lore") == {book}
    assert len(await search(ada, "chapel bell", limit=1)) == 1


async def test_what_is_no_search_is_refused(ada: Account, chat: str) -> None:
    assert chat
    for query in (
        {},
        {"q": ""},
        {"q": "   "},
        {"q": "x" * 2001},
        {"q": "bell", "limit": 0},
        {"q": "bell", "limit": 101},
        {"q": "bell", "limit": "many"},
        {"q": "bell", "sources": "dreams"},
        {"q": "bell", "sources": "lore,scene"},
        {"q": "bell", "chat_id": "no id"},
        {"q": "bell", "min_relevance": 1.1},
    ):
        problem(await ask(ada, **query), 422, "validation-failed")
    answer = await ask(ada, q="bell", sources="dreams")
    names = "campaign, event, lore, message"
    assert answer.json()["detail"] == f"Unknown source dreams. Available: {names}."


@pytest.mark.every_database
async def test_odd_words_are_looked_for_like_others(
    ada: Account, chat: str, server: Running
) -> None:
    odd = [
        "Die Königin schläft in Århus.",
        "その鍵は鐘の下にある。",
        "Ключ лежит под колоколом.",
        "🗝️🔔",
    ]
    await tell(server, ada, chat, [*odd, "Yes."])
    for words, text in (("königin", odd[0]), ("鐘の下", odd[1]), ("колокол", odd[2])):
        found = await search(ada, words)
        assert [item["text"] for item in found if "sparse" in item["scores"]] == [text]
    for words in ("🗝️", "\u0000", "'; DROP TABLE messages; --", "a" * 2000, "%_\\", "\ud7ff"):
        answer = ok(await ask(ada, q=words))
        assert answer["notes"] == []


async def test_what_came_close_is_told_with_the_reason_why_it_stayed_out(
    ada: Account, chat: str, server: Running
) -> None:
    hidden = f"{FACT} Or so they say."
    said = [FACT, hidden, FACT, "The captain is asleep."]
    _, old, *_ = await tell(server, ada, chat, said)
    await ada.patch(f"/messages/{old.id}", {"hidden": True})

    async def missed(**query: Any) -> dict[str, dict[str, Any]]:
        answer = ok(await ask(ada, q="the captain's astrolabe", near_misses=True, **query))
        # The greeting that was not chosen stands beside these lines.
        found = [each for each in answer["near_misses"] if each["position"]]
        return {each["why"]["kind"]: each for each in found}

    found = await missed()
    assert found.keys() == {"repeats", "not_current"}
    assert (found["repeats"]["text"], found["repeats"]["why"]["rank"]) == (FACT, 1)
    assert found["repeats"]["reason"] == "repeats rank 1"
    gone = found["not_current"]
    assert (gone["source_id"], gone["text"], gone["position"]) == (str(old.id), "", 2)
    assert (await missed(limit=1))["max_items"]["text"] == "The captain is asleep."
    far = (await missed(min_relevance=1))["not_near"]
    assert far["text"] in said
    assert far["why"]["score"] < 1
    # What does not count is not named to a viewpoint, for it may not be its to know.
    assert "not_current" not in await missed(viewpoint="public")


async def test_somebody_new_finds_nothing_and_asks_no_model(ada: Account) -> None:
    assert ok(await ask(ada, q="bell")) == {"items": [], "notes": [], "near_misses": None}
