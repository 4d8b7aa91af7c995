"""Tests of small worlds: relevant facts and entries are found, and few others."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from backend.memory.index.edge import EdgeIndex
from backend.memory.index.protocol import IndexUnavailableError
from tests.integration.campaigns.seagate import Table
from tests.support.memory import (
    API,
    MODEL_FOLDER,
    link,
    new_book,
    new_entry,
    preview,
    remembered,
    remembering,
    set_chat,
    settled,
    tell,
    whole,
)
from tests.support.server import Account, Running, ok
from tests.support.shared import ada, shared_url

__all__ = ["ada", "shared_url"]

pytestmark = pytest.mark.anyio

# Limits were fitted to `tuning` and `checked`, never to `held_out`.
WORLDS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "young_worlds.json").read_text(encoding="utf-8")
)
KING = "The king is Ironcrown."
OTHERS = [fact["text"] for fact in WORLDS["checked"]["facts"]]
BEFORE = {
    "none": [],
    "of something else": WORLDS["checked"]["before"],
    "of kings": [f"Long live the king, say I, and king number {n} as well!" for n in range(12)],
}


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    async with remembering(shared_url, tmp_path_factory.mktemp("data")) as server:
        yield server


async def make_campaign(account: Account, facts: list[str]) -> Table:
    made = await account.client.post(f"{API}/campaigns", json={"name": "Seagate"})
    table = Table(account, ok(made, 201))
    for fact in facts:
        await table.add("facts", text=fact)
    return table


async def make_chat(table: Table, lines: list[str], server: Running) -> str:
    character = await table.account.new_character()
    chat = await table.account.new_chat(
        character_ids=[character["id"]], campaign_id=table.campaign["id"]
    )
    await tell(server, table.account, str(chat["id"]), lines)
    return str(chat["id"])


async def make_world(account: Account, server: Running, world: dict[str, Any]) -> str:
    """Make a chat with the facts, the entries and the earlier lines of a world."""
    table = await make_campaign(account, [fact["text"] for fact in world["facts"]])
    entries = [
        {"title": each["title"], "content": each["content"], "vectorized": True}
        for each in world["entries"]
    ]
    book = await new_book(account, *entries)
    chat = await make_chat(table, world["before"], server)
    await link(account, chat, book)
    await settled(server)
    return chat


async def find_answered(account: Account, chat: str, world: dict[str, Any]) -> list[str]:
    """Return the questions with an answer in the prompt of their turn."""
    answered: list[str] = []
    for kind, text in (("facts", "text"), ("entries", "content")):
        for each in world[kind]:
            context = await preview(account, chat, each["asked"])
            found = remembered(context, "campaign" if kind == "facts" else "lore")
            if any(each[text] in one for one in found):
                assert each[text] in whole(context)
                answered.append(each["asked"])
    return answered


async def find_lore_by_words(account: Account, chat: str, lines: list[str]) -> dict[str, list[str]]:
    """Return the titles of entries that words activate, by line."""
    found: dict[str, list[str]] = {}
    for line in lines:
        context = await preview(account, chat, line)
        items = [*context["items"], *context["retrieved"]]
        lore = [each for each in items if each["kind"] == "lore"]
        if by_words := [each["title"] for each in lore if each["reasons"][0]["kind"] == "words"]:
            found[line] = by_words
    return found


@pytest.mark.parametrize("name", WORLDS)
async def test_words_find_answers_and_ordinary_words_activate_no_lore(
    ada: Account, server: Running, name: str
) -> None:
    world = WORLDS[name]
    chat = await make_world(ada, server, world)
    assert len(await find_answered(ada, chat, world)) >= 36
    assert await find_lore_by_words(ada, chat, [*world["ordinary"], *world["before"]]) == {}


async def test_a_model_finds_all_answers(sqlite_url: str, tmp_path: Path) -> None:
    if not (MODEL_FOLDER / "model.onnx").is_file():
        pytest.skip("there is no embedding model on this machine")
    settings = {"embedder": "local", "embedding_model_path": MODEL_FOLDER}
    world = WORLDS["held_out"]
    async with remembering(sqlite_url, tmp_path, **settings) as server, server.account() as account:
        chat = await make_world(account, server, world)
        asked = [each["asked"] for kind in ("facts", "entries") for each in world[kind]]
        assert await find_answered(account, chat, world) == asked
        assert await find_lore_by_words(account, chat, [*world["ordinary"], *world["before"]]) == {}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 20])
async def test_the_king_of_a_young_world_is_found_after_any_chat(
    ada: Account, server: Running, size: int
) -> None:
    table = await make_campaign(ada, [KING, *OTHERS[: size - 1]])
    for lines in BEFORE.values():
        chat = await make_chat(table, lines, server)
        context = await preview(ada, chat, "Who is the king?")
        assert remembered(context, "campaign")[0] == KING
        [reason] = [each["reason"] for each in context["retrieved"] if each["text"] == KING]
        assert reason.endswith(', rank 1: contains the word "king"'), reason
        assert KING not in [each["title"] for each in context["near_misses"]]


async def test_an_entry_that_is_not_near_enough_says_how_much_it_has(
    ada: Account, server: Running
) -> None:
    book = await new_book(ada)
    await new_entry(ada, book, title="Moonwheat", content="Bread of it keeps for a hundred years.")
    chat = str((await ada.new_chat(character_ids=[(await ada.new_character())["id"]]))["id"])
    await link(ada, chat, book)
    await settled(server)
    context = await preview(ada, chat, "Could you pass me the bread, please?")
    assert remembered(context, "lore") == []
    [missed] = [each for each in context["near_misses"] if each["kind"] == "lore"]
    assert missed["reasons"][0]["kind"] == "not_near"
    assert 0.5 < missed["reasons"][0]["score"] < 1
    # A budget without room does not raise the score.
    await set_chat(ada, chat, budgets={"retrieval": 0})
    context = await preview(ada, chat, "Could you pass me the bread, please?")
    assert remembered(context, "lore") == []


async def test_a_search_without_terms_uses_the_index_s_scores(
    ada: Account, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = await make_campaign(ada, [KING])
    chat = await make_chat(table, [], server)
    await settled(server)
    monkeypatch.setattr(EdgeIndex, "term_vectors", unavailable)
    context = await preview(ada, chat, "Who is the king?")
    assert remembered(context, "campaign") == [KING]
    assert context["notes"] == []


async def unavailable(*_: object) -> None:
    raise IndexUnavailableError("The engine is gone.")
