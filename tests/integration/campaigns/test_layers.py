"""The layers of a campaign's prompt: a summary of what is over, and the last rounds in full."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from backend.generation.registry import ModelRegistry
from tests.fakes.openai_server import MODEL_ID
from tests.integration.campaigns.seagate import Table, seagate
from tests.integration.enrichment.storytelling import (
    Storyteller,
    at_rest,
    numbers_in,
    preview,
    set_chat,
    summaries_in,
    summary_of,
)
from tests.support.server import Account, Running, ok, running

pytestmark = [pytest.mark.anyio]

TICK = "The clock in the hall went on and on, and nobody minded it any more, for it rained. "


@pytest.fixture(scope="module")
async def teller() -> AsyncGenerator[Storyteller]:
    async with Storyteller() as teller:
        yield teller


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, teller: Storyteller
) -> AsyncGenerator[Running]:
    registry = ModelRegistry(demo_tokens_per_second=0, openai=teller.config(), default=MODEL_ID)
    folder = tmp_path_factory.mktemp("data")
    async with running(shared_url, folder, registry=registry) as server:
        yield server


@pytest.fixture(autouse=True)
def fresh(teller: Storyteller) -> None:
    teller.requests.clear()
    teller.summing_up.clear()


async def _play(ada: Account, server: Running, chat: str, rounds: range) -> None:
    for number in rounds:
        await ada.turn(chat, text=f"Round {number} begins.")
        await at_rest(server, chat)


def _history(context: dict[str, Any]) -> list[str]:
    said = [each["text"] for each in context["prompt"] if each["role"] == "user"]
    return [text for text in said if text.startswith("Round")]


async def test_the_summary_tells_all_but_the_last_rounds(
    ada: Account, server: Running, table: Table, teller: Storyteller
) -> None:
    await seagate(table)
    chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
    await _play(ada, server, chat, range(1, 8))
    assert teller.summed_up == []
    context = await preview(ada, chat)
    assert _history(context) == [f"Round {number} begins." for number in range(1, 8)]
    assert summaries_in(context) == []

    await _play(ada, server, chat, range(8, 9))
    summary = await summary_of(ada, chat)
    assert summary is not None
    assert (summary["through_position"], summary["is_used"]) == (7, True)
    assert numbers_in(teller.summed_up[0]) == list(range(1, 9))
    assert "150" in teller.summed_up[0].body["messages"][0]["content"]
    context = await preview(ada, chat)
    assert _history(context) == [f"Round {number} begins." for number in range(5, 9)]
    assert "PREVIOUSLY\nTold up to 8." in context["prompt"][0]["text"]
    layers = context["layers"]
    assert sum(layers.values()) == context["totals"]["prompt"]
    assert layers["cold"] == sum(item["tokens"] for item in summaries_in(context))

    await _play(ada, server, chat, range(9, 12))
    assert len(teller.summed_up) == 1
    await _play(ada, server, chat, range(12, 13))
    assert numbers_in(teller.summed_up[1]) == list(range(9, 17))


async def test_rounds_that_would_be_lost_are_summed_up_first(
    ada: Account, server: Running, table: Table, teller: Storyteller
) -> None:
    chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
    await set_chat(ada, chat, budgets={"history": 300})
    for number in range(1, 9):
        await ada.turn(chat, text=f"Round {number} begins. {TICK * 2}")
    assert teller.summed_up
    for message in await ada.messages(chat):
        if message["role"] == "assistant":
            context = await ada.get(f"/messages/{message['id']}/context")
            history = context["history"] or {"first": 0}
            told = [item["reasons"][0]["count"] for item in summaries_in(context)]
            assert history["first"] <= sum(told)
            assert not any("no room" in note for note in context["notes"])


async def test_without_summaries_the_history_is_whole(
    ada: Account, server: Running, table: Table, teller: Storyteller
) -> None:
    settings = {**table.campaign["settings"], "summaries": False}
    await table.change("", settings=settings)
    chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
    await _play(ada, server, chat, range(1, 10))
    assert teller.summed_up == []
    assert len(_history(await preview(ada, chat))) == 9


async def test_closed_scenes_are_told_and_the_open_one_is_now(ada: Account, table: Table) -> None:
    ids = await seagate(table)
    for number in range(1, 4):
        await table.add(
            "scenes", title=f"Scene {number}", status="closed", summary=f"It rained {number} times."
        )
    scene = await table.add(
        "scenes", location_id=ids["hills"], present=[ids["marlena"]], stakes="A cart"
    )
    chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
    context = await preview(ada, chat)
    head = context["prompt"][0]["text"]
    assert "- Scene 2: It rained 2 times.\n- Scene 3: It rained 3 times." in head
    assert "Scene 1" not in head
    state = next(item["text"] for item in context["items"] if item["kind"] == "state")
    assert "**Sunfall Hills**" in state
    assert "**Marlena**" in state
    assert "Holt" not in state
    texts = "\n".join(each["text"] for each in context["prompt"])
    assert texts.count("At stake: A cart") == 1
    ok(await table.ask("PATCH", f"/scenes/{scene['id']}", json={"status": "closed"}))
    state = next(
        item["text"] for item in (await preview(ada, chat))["items"] if item["kind"] == "state"
    )
    assert "**Sunfall Hills**" in state
    assert "**Inspector Holt**" in state
    assert "Marlena" not in state
