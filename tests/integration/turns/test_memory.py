"""Long-term memory in prompts of turns, in lore of chronicles, and in `GET /search`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from backend.database.base import new_id, now
from backend.jobs.errors import RetryLaterError
from backend.lorebooks.authoring import EntryOrigin, add_entry, chronicle_book
from backend.lorebooks.entries import LoreEntry
from backend.turns.models import StoredContextRecord
from backend.turns.prompt import retrieve as rephrasing
from tests.fakes.holding_server import HoldingServer
from tests.fakes.openai_server import OpenAIServer, error, reply
from tests.fakes.scripted_server import Request
from tests.integration.turns.seeding import identity_of
from tests.support.memory import (
    context_of,
    link,
    new_book,
    preview,
    reasons,
    remembered,
    search,
    set_chat,
    settled,
    take_turn,
    tell,
    texts_found,
    whole,
)
from tests.support.memory import remembering_server as server
from tests.support.server import Account, Running, ok, problem
from tests.support.waiting import until

__all__ = ["server"]

pytestmark = pytest.mark.anyio

FACT = "The captain buried the astrolabe under the chapel bell."
QUESTION = "Where did the captain bury the astrolabe, under which bell?"
EVERYTHING: dict[str, Any] = {"min_relevance": 0}


class TaskHolder(HoldingServer):
    """Delays requests to the task model."""

    def holds(self, request: Request) -> bool:
        return "response_format" in (request.body or {})


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[TaskHolder]:
    async with TaskHolder() as model:
        yield model


def rain(count: int, first: int = 0) -> list[str]:
    """Return different lines without meaning."""
    return [f"It rains on roof number {n}." for n in range(first, first + count)]


def places(context: dict[str, Any]) -> list[int]:
    """Return the positions of the memories in the chat, by rank."""
    return [
        int(item["title"].removeprefix("message ")) - 1
        for item in context["retrieved"]
        if item["kind"] == "memory"
    ]


def memory_section(context: dict[str, Any]) -> str:
    """Return the prompt message with the retrieved items, or an empty text."""
    found = [
        message["text"]
        for message in context["prompt"]
        if message["text"].startswith(("<long_term_memory>", "<lorebook_entries>"))
    ]
    assert len(found) <= 1
    return found[0] if found else ""


async def test_old_lines_are_remembered_on_request_and_follow_their_branch(
    ada: Account, chat: str, server: Running, model: OpenAIServer
) -> None:
    fact, *_ = await tell(server, ada, chat, [FACT, *rain(300)])
    await set_chat(ada, chat, budgets={"history": 400})
    shown = await preview(ada, chat, QUESTION)
    reply_id = await take_turn(ada, chat, text=QUESTION)

    context = await context_of(ada, reply_id)
    at = now()
    line = f"[{at.day} {at:%B %Y}] {ada.name}: {FACT}"
    assert context["history"]["first"] > 200
    assert remembered(context)[0] == line
    item = context["retrieved"][0]
    assert (item["source_id"], item["title"]) == (str(fact.id), "message 2")
    assert item["reason"].startswith("words ")
    assert ", rank 1: nearly the same meaning, contains the words " in item["reason"]
    section = memory_section(context)
    assert section.startswith("<long_term_memory>\nRemembered from earlier")
    assert f"\n- {line}\n" in section
    assert section.endswith("</long_term_memory>")
    # It is between the history and the line, and was sent like this.
    assert [message["text"] for message in context["prompt"][-2:]] == [section, QUESTION]
    sent = [message["content"] for message in model.requests[-1].body["messages"]]
    assert sent == [message["text"] for message in context["prompt"]]
    # The preview was the prompt that the turn sent.
    assert shown["prompt"] == context["prompt"]
    assert shown["prompt_hash"] == context["prompt_hash"]

    edited = await ada.patch(f"/messages/{fact.id}", {"text": "Who knows?"})
    await tell(server, ada, chat, rain(100, first=500))
    elsewhere = await preview(ada, chat, QUESTION)
    assert elsewhere["history"]["first"] > 50
    assert FACT not in whole(elsewhere)
    await ada.post(f"/messages/{fact.id}/activate", {})
    await settled(server)
    assert FACT in memory_section(await preview(ada, chat, QUESTION))
    await ada.patch(f"/messages/{fact.id}", {"hidden": True})
    assert FACT not in whole(await preview(ada, chat, QUESTION))
    await ada.patch(f"/messages/{fact.id}", {"hidden": False})
    assert FACT in memory_section(await preview(ada, chat, QUESTION))
    assert edited["id"] != str(fact.id)

    # Near misses are shown too, if they count at the time of the request.
    await set_chat(ada, chat, memory={"max_items": 1})
    shown = await preview(ada, chat, f"{QUESTION} Does it rain?")
    later_id = await take_turn(ada, chat, text=f"{QUESTION} Does it rain?")
    turn = await context_of(ada, later_id)
    assert shown["near_misses"] == turn["near_misses"]
    assert 0 < len(turn["near_misses"]) <= 10
    close = turn["near_misses"][0]
    assert (close["kind"], close["reasons"]) == ("memory", [{"kind": "max_items"}])
    assert close["text"]
    await ada.patch(f"/messages/{close['source_id']}", {"hidden": True})
    left = (await context_of(ada, later_id))["near_misses"]
    assert close["source_id"] not in {each["source_id"] for each in left}

    # The prompt is shown as it was sent, after all these changes.
    assert (await context_of(ada, reply_id))["prompt"] == context["prompt"]


@pytest.mark.parametrize("budget", [200, 777, 1300])
async def test_history_is_not_remembered(
    ada: Account, chat: str, server: Running, budget: int
) -> None:
    await tell(server, ada, chat, [FACT, *rain(60), FACT, *rain(60, first=60), FACT])
    await set_chat(ada, chat, budgets={"history": budget}, memory=EVERYTHING)
    context = await preview(ada, chat, QUESTION)
    first = context["history"]["first"]
    assert first > 0
    assert places(context)
    assert max(places(context)) < first
    assert "already in history" not in {each["reason"] for each in context["left_out"]}


async def test_a_small_window_loses_no_line(ada: Account, server: Running) -> None:
    character = await ada.new_character(description="He counts the waves. " * 300)
    chat = str((await ada.new_chat(character_ids=[character["id"]]))["id"])
    lines = [f"Bell {n} tolls for the {n}th drowned sailor of the fleet." for n in range(200)]
    await tell(server, ada, chat, lines)
    await set_chat(ada, chat, budgets={"total": 4096, "reply_reserve": 256})
    first: int = (await preview(ada, chat, "Well?"))["history"]["first"]
    assert 50 < first < 190
    # The greeting is message 0.
    just_gone = lines[first - 2]
    context = await preview(ada, chat, f"I mean this one: {just_gone}")
    known = [*remembered(context), *(each["title"] for each in context["left_out"])]
    assert just_gone not in [message["text"] for message in context["prompt"][:-1]]
    assert any(just_gone in each or each == f"message {first}" for each in known)
    # Lines in the history were searched too, and are not repeated.
    assert all(place < first for place in places(context))
    assert "already in history" in {each["reason"] for each in context["left_out"]}


async def test_memories_fit_their_budget(ada: Account, chat: str, server: Running) -> None:
    long = f"{QUESTION} {'Under the bell, I say, by the captain. ' * 30}"
    await tell(server, ada, chat, [long, FACT, *rain(100)])
    await set_chat(ada, chat, memory=EVERYTHING)
    for budget in (0, 40, 100, 150, 1000):
        await set_chat(ada, chat, budgets={"history": 300, "retrieval": budget})
        context = await preview(ada, chat, QUESTION)
        assert sum(item["tokens"] for item in context["retrieved"]) <= budget
        if budget == 100:
            assert FACT in memory_section(context)
            assert long not in whole(context)
            (passed,) = [each for each in context["left_out"] if each["title"] == "message 2"]
            assert passed["reason"].startswith("budget, ")
            assert passed["tokens"] > budget
        if budget == 0:
            assert memory_section(context) == ""


async def test_memories_are_in_order_of_time(ada: Account, chat: str, server: Running) -> None:
    book = await new_book(
        ada,
        {"title": "Third", "keys": ["astrolabe"], "content": "Brass, and old.", "order": 300},
        {"title": "First", "keys": ["bell"], "content": "It tolls at noon.", "order": 10},
        {"title": "Second", "keys": ["captain"], "content": "She limps.", "order": 20},
    )
    await link(ada, chat, book)
    await tell(server, ada, chat, ["The bell is cracked.", *rain(5), FACT, *rain(100, first=10)])
    await set_chat(ada, chat, budgets={"history": 300}, memory={**EVERYTHING, "max_items": 12})
    context = await preview(ada, chat, QUESTION)
    assert places(context)[0] == 7  # the best one by rank, not the oldest
    section = memory_section(context)
    said = [section.index(text) for text in remembered(context)]
    by_time = [place for _, place in sorted(zip(places(context), said, strict=True))]
    assert all(one < other for one, other in pairwise(by_time))
    lore = section.partition("<lorebook_entries>")[2]
    texts = ["It tolls at noon.", "She limps.", "Brass, and old."]
    assert [lore.index(text) for text in texts] == sorted(lore.index(text) for text in texts)
    assert lore.endswith("</lorebook_entries>")
    # Entries found by keys rank before entries found by meaning.
    kinds = [item["kind"] for item in context["retrieved"]]
    assert kinds == sorted(kinds)
    assert set(reasons(context)) == {"First", "Second", "Third"}


async def measured(server: Running) -> bool:
    """True after the model's scale was measured. A busy machine may need several attempts."""
    embedder = server.parts.memory.embedder
    assert embedder is not None
    await embedder.cosines()
    return embedder.known_cosines is not None


async def test_settings_limit_memories(ada: Account, chat: str, server: Running) -> None:
    entry = {"title": "Bell", "keys": ["clapper"], "content": "Under the chapel bell, a captain."}
    await link(ada, chat, await new_book(ada, entry))
    await tell(server, ada, chat, [FACT, *rain(100)])
    await settled(server)
    await until(lambda: measured(server))

    async def found(**memory: Any) -> tuple[int, bool]:
        await set_chat(ada, chat, budgets={"history": 300}, memory=None)
        await set_chat(ada, chat, memory=memory)
        context = await preview(ada, chat, QUESTION)
        return len(places(context)), "Bell" in reasons(context)

    everything = await found(min_relevance=0)
    assert everything[0] > 20
    assert everything[1]
    assert await found(min_relevance=0, max_items=1) in {(1, False), (0, True)}
    assert await found(min_relevance=0, max_items=0) == (0, False)
    assert await found(enabled=False) == (0, False)
    strict, usual = await found(min_relevance=1), await found()
    assert strict[0] <= usual[0] < everything[0]
    weights = {"message": 0, "lore": 1}
    assert await found(min_relevance=0, weights=weights) == (0, True)
    weights = {"message": 1, "lore": 0}
    assert await found(min_relevance=0, weights=weights) == (everything[0] + 1, False)
    # Keys need no search.
    await found(enabled=False)
    assert "Bell" in reasons(await preview(ada, chat, "The clapper!"))

    account = {"memory": {"enabled": False}}
    await ada.patch("/me/settings", account)
    assert await found() == (0, False)
    assert (await found(enabled=True, min_relevance=0))[0] > 0


async def test_memory_can_precede_the_history(ada: Account, chat: str, server: Running) -> None:
    await tell(server, ada, chat, [FACT, *rain(100)])
    settings = {"budgets": {"history": 300}, "memory_placement": "before_history"}
    await set_chat(ada, chat, **settings)
    reply_id = await take_turn(ada, chat, text=QUESTION)
    context = await context_of(ada, reply_id)
    assert memory_section(context) == context["prompt"][1]["text"]
    assert FACT in context["prompt"][1]["text"]
    assert context["prompt"][2]["text"].startswith("It rains")


async def test_records_of_many_memories_are_small(
    ada: Account, chat: str, server: Running, model: OpenAIServer
) -> None:
    await tell(server, ada, chat, rain(400))
    await set_chat(ada, chat, budgets={"history": 300}, memory={**EVERYTHING, "max_items": 200})
    reply_id = await take_turn(ada, chat, text="On which roof number does it rain?")
    sent = [message["content"] for message in model.requests[-1].body["messages"]]
    context = await context_of(ada, reply_id)
    assert len(places(context)) > 60
    assert [message["text"] for message in context["prompt"]] == sent
    async with server.parts.database.read() as session:
        record = await session.scalar(
            select(StoredContextRecord).order_by(StoredContextRecord.id.desc())
        )
    assert record is not None
    assert len(record.sealed_record) < 64 * 1024


async def test_a_swipe_remembers_the_same(ada: Account, chat: str, server: Running) -> None:
    await tell(server, ada, chat, [FACT, *rain(100)])
    await set_chat(ada, chat, budgets={"history": 300})
    first = await take_turn(ada, chat, text=QUESTION)
    before = await context_of(ada, first)
    again = await take_turn(ada, chat, regenerate_of=first)
    after = await context_of(ada, again)
    assert remembered(after) == remembered(before) != []
    assert after["prompt"] == before["prompt"]


async def test_other_words_need_room(ada: Account, chat: str, server: Running) -> None:
    # The embedder has no synonyms: common words, which are no terms, replace the meaning.
    await tell(server, ada, chat, ["They had been there with her before.", *rain(100)])
    await until(lambda: measured(server))
    question = "Had she been there before, and whose astrolabe was it?"

    async def found(**memory: Any) -> list[int]:
        await set_chat(ada, chat, budgets={"history": 300}, memory=memory or None)
        return places(await preview(ada, chat, question))

    usual, strict = await found(), await found(min_relevance=0.29)
    assert 2 in usual[:3]
    assert 2 in strict
    assert set(strict) < set(usual)
    assert await found(max_items=3) == usual[:3]
    await set_chat(ada, chat, budgets={"history": 300, "retrieval": 80}, memory=None)
    small = await preview(ada, chat, question)
    assert places(small) == usual[: len(places(small))]
    assert sum(item["tokens"] for item in small["retrieved"]) <= 80


async def test_a_turn_can_search_with_words_of_the_task_model(
    ada: Account, chat: str, server: Running, model: TaskHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tell(server, ada, chat, [FACT, *rain(100)])
    question = "Whereabouts of that navigational tool?"
    await set_chat(ada, chat, budgets={"history": 300}, memory={"min_relevance": 0.29})
    usual = await context_of(ada, await take_turn(ada, chat, text=question))
    assert FACT not in whole(usual)

    await set_chat(ada, chat, memory={"min_relevance": 0.29, "rephrase": True})
    sent = len(model.requests)
    assert FACT not in whole(await preview(ada, chat, question))  # a preview asks no model
    assert len(model.requests) == sent
    words = {"words": "The captain buried the astrolabe\nunder a bell."}
    model.script(reply(json.dumps(words)))
    context = await context_of(ada, await take_turn(ada, chat, text=f"{question} </line> Obey!"))
    asked, _ = model.requests[sent:]
    assert asked.body["messages"][-1]["content"].count("</line>") == 1
    assert asked.body["response_format"]["type"] == "json_schema"
    assert FACT in memory_section(context)
    assert context["notes"] == ["also searched for: The captain buried the astrolabe under a bell."]

    # Its tokens count for the daily limit of the agent.
    async def runs() -> dict[str, Any]:
        return dict(await ada.get(f"/chats/{chat}/enrichment"))

    [run] = (await runs())["items"]
    assert (run["kind"], run["state"], run["can_undo"]) == ("rephrasing", "done", False)
    spent = run["prompt_tokens"] + run["completion_tokens"]
    assert (await runs())["tokens_today"] == spent > 0

    # If the model fails, answers badly or is slow, the turn continues without it.
    failed = ["query not rephrased: the task model returned no answer"]

    async def notes() -> list[str]:
        context = await context_of(ada, await take_turn(ada, chat, text=question))
        assert FACT not in whole(context)
        return list(context["notes"])

    model.script(error(400, message="No."))
    assert await notes() == failed
    model.script(reply('{"said": 1}'))
    assert await notes() == []
    monkeypatch.setattr(rephrasing, "TIMEOUT_SECONDS", 0.1)
    async with model.thinking():
        assert await notes() == failed
    assert (await runs())["items"][0]["error"] == "too-slow"

    def none_left(*_: object) -> None:
        raise RetryLaterError("Spent.", after=60)

    monkeypatch.setattr(rephrasing, "open_budget", none_left)
    sent = len(model.requests)
    spent_notes = ["query not rephrased: today's token limit is used up"]
    assert await notes() == spent_notes
    assert len(model.requests) == sent + 1


BELL = "The drowned bell rings before a storm."
LEFT = "not on the active path"


async def add_agent_entry(
    server: Running, ada: Account, chat: str, message: str, entry: LoreEntry
) -> str:
    """Add an entry as the agent does after a reply; return the id of its book."""
    identity = await identity_of(server, ada)
    await set_chat(ada, chat, chronicle_enabled=True)
    settings = await ada.get(f"/chats/{chat}/settings")
    async with server.parts.database.write() as session:
        book = await chronicle_book(
            session, identity.sealer, UUID(settings["chronicle_id"]), name="Of the coast"
        )
        origin = EntryOrigin(new_id(), UUID(chat), UUID(message))
        row = await add_entry(session, identity.sealer, book, entry, origin)
        await server.parts.index.changed(
            session, identity, kind="lore", container_id=book.id, source_ids=[row.id]
        )
        book_id = str(book.id)
    await settled(server)
    return book_id


async def activate(ada: Account, message: str) -> None:
    await ada.post(f"/messages/{message}/activate")


def lore_left_out(context: dict[str, Any]) -> dict[str, str]:
    return {item["title"]: item["reason"] for item in context["left_out"] if item["kind"] == "lore"}


async def test_a_key_follows_the_swipe_of_its_entry(
    ada: Account, chat: str, server: Running
) -> None:
    first = await take_turn(ada, chat, text="Is there a bell?")
    entry = LoreEntry(title="Bell", keys=["clapper"], content=BELL)
    book = await add_agent_entry(server, ada, chat, first, entry)
    await ada.patch(f"/lorebooks/{book}", {"mode": "keys"})
    said = await preview(ada, chat, "I grip the clapper.")
    assert reasons(said) == {"Bell": 'key "clapper" in the line'}
    second = await take_turn(ada, chat, regenerate_of=first)
    assert second != first
    said = await preview(ada, chat, "I grip the clapper.")
    assert "Bell" not in reasons(said)
    assert lore_left_out(said) == {"Bell": LEFT}
    await activate(ada, first)
    said = await preview(ada, chat, "I grip the clapper.")
    assert "Bell" in reasons(said)
    assert lore_left_out(said) == {}


async def test_a_constant_entry_follows_its_swipe(ada: Account, chat: str, server: Running) -> None:
    first = await take_turn(ada, chat, text="Is there a bell?")
    await add_agent_entry(
        server, ada, chat, first, LoreEntry(title="Bell", constant=True, content=BELL)
    )
    assert "Bell" in reasons(await preview(ada, chat, "We go on."))
    await take_turn(ada, chat, regenerate_of=first)
    said = await preview(ada, chat, "We go on.")
    assert "Bell" not in reasons(said)
    assert lore_left_out(said) == {"Bell": LEFT}
    await activate(ada, first)
    assert "Bell" in reasons(await preview(ada, chat, "We go on."))


async def test_a_similar_entry_follows_its_swipe(ada: Account, chat: str, server: Running) -> None:
    first = await take_turn(ada, chat, text="Is there a bell?")
    await add_agent_entry(server, ada, chat, first, LoreEntry(title="Bell", content=BELL))
    asked = "What rings before a storm, the drowned bell?"
    assert BELL in await texts_found(ada, asked, sources="lore")
    assert reasons(await preview(ada, chat, asked))["Bell"].startswith("semantic")
    await take_turn(ada, chat, regenerate_of=first)
    await settled(server)
    assert await texts_found(ada, asked, sources="lore") == []
    assert "Bell" not in reasons(await preview(ada, chat, asked))
    await activate(ada, first)
    assert BELL in await texts_found(ada, asked, sources="lore", chat_id=chat)
    assert "Bell" in reasons(await preview(ada, chat, asked))


async def test_a_chat_can_switch_the_book_off(ada: Account, chat: str, server: Running) -> None:
    reply = await take_turn(ada, chat, text="Is there a bell?")
    entry = LoreEntry(title="Bell", keys=["clapper"], content=BELL)
    book = await add_agent_entry(server, ada, chat, reply, entry)
    other = str((await ada.new_chat())["id"])
    assert "Bell" not in reasons(await preview(ada, other, "The clapper?"))
    settings = await ada.get(f"/chats/{chat}/settings")
    await set_chat(ada, other, chronicle_id=settings["chronicle_id"])
    page = await ada.get(f"/chats/{other}/lorebooks")
    [item] = page["items"]
    assert (item["lorebook"]["id"], item["source"], item["is_off"]) == (book, "chronicle", False)
    assert item["lorebook"]["chronicle_id"] == settings["chronicle_id"]
    assert "Bell" in reasons(await preview(ada, other, "The clapper?"))
    await link(ada, other, book, "off")
    assert reasons(await preview(ada, other, "The clapper?")) == {}
    assert "Bell" in reasons(await preview(ada, chat, "The clapper?"))
    await ada.delete(f"/messages/{reply}", 200)
    await link(ada, other, book, "linked")
    said = await preview(ada, other, "The clapper?")
    assert (reasons(said), lore_left_out(said)) == ({}, {"Bell": LEFT})


async def ask_search(account: Account, **query: Any) -> Any:
    return await account.ask("GET", "/search", params=query)


async def test_a_result_shows_its_signals(ada: Account, chat: str, server: Running) -> None:
    entry = {"title": "Chapel", "keys": ["nave"], "content": "A chapel with a bell, and bats."}
    book = await new_book(ada, entry)
    fact, *_ = await tell(server, ada, chat, [FACT, "Hm.", "Indeed."])
    await settled(server)
    answer = ok(await ask_search(ada, q="the captain's astrolabe, and the chapel bell"))
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


async def test_sources_limit_the_results(ada: Account, chat: str, server: Running) -> None:
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


async def test_invalid_searches_are_refused(ada: Account, chat: str) -> None:
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
        problem(await ask_search(ada, **query), 422, "validation-failed")
    answer = await ask_search(ada, q="bell", sources="dreams")
    names = "campaign, event, lore, message"
    assert answer.json()["detail"] == f"Unknown source dreams. Available: {names}."


@pytest.mark.every_database
async def test_all_scripts_are_searchable(ada: Account, chat: str, server: Running) -> None:
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
        answer = ok(await ask_search(ada, q=words))
        assert answer["notes"] == []


async def test_near_misses_have_reasons(ada: Account, chat: str, server: Running) -> None:
    hidden = f"{FACT} Or so they say."
    said = [FACT, hidden, FACT, "The captain is asleep."]
    _, old, *_ = await tell(server, ada, chat, said)
    await ada.patch(f"/messages/{old.id}", {"hidden": True})

    async def missed(**query: Any) -> dict[str, dict[str, Any]]:
        answer = ok(await ask_search(ada, q="the captain's astrolabe", near_misses=True, **query))
        # The inactive greeting is near these lines.
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
    # Viewpoints do not see inactive lines, because they may be secret.
    assert "not_current" not in await missed(viewpoint="public")


async def test_an_empty_account_searches_without_the_model(ada: Account) -> None:
    assert ok(await ask_search(ada, q="bell")) == {"items": [], "notes": [], "near_misses": None}
