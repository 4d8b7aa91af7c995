"""The story's day at a message: in events, in memories of prompts, in searches and exports."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest

from backend.enrichment.outbox import TURN
from tests.integration.campaigns.conftest import table
from tests.integration.campaigns.seagate import Table
from tests.support.compacting import Call, Compactor, Evening, evening, model, server
from tests.support.memory import settled
from tests.support.server import Running

__all__ = ["model", "server", "table"]

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def fresh(model: Compactor) -> None:
    model.reset()


@pytest.fixture
async def play(server: Running, table: Table) -> Evening:
    return await evening(server, table)


def recorded(summary: str, **more: Any) -> Call:
    return "create_chronicle_event", {"summary": summary, **more}


def compacted(summary: str) -> Call:
    return "chronicle_event_tool", {"set": {"summary": summary}}


async def times(play: Evening) -> dict[str, tuple[int | None, str]]:
    return {each["summary"]: (each["day"], each["time"]) for each in await play.events()}


async def test_events_have_the_day_of_their_message_and_not_the_day_on_which_they_are_read(
    play: Evening, model: Compactor
) -> None:
    model.records = {
        "Holt falls": [recorded("Holt fell down the stairs of the chapel.")],
        "Holt wakes": [recorded("Holt woke up among strangers.")],
        "Holt recalls": [recorded("As a boy he stole a boat.", story_day=2)],
        "Holt sails": [recorded("He set sail for the islands.")],
    }
    model.finds = {"Holt falls": [compacted("The constables searched everywhere.")]}
    await play.turn("Holt falls.")
    await play.at_rest(kind=TURN)
    await play.table.change("", day=6, time_of_day="dusk")
    await play.compacted()
    for line in ("Holt wakes.", "Holt recalls.", "Holt sails."):
        await play.turn(line)
        await play.at_rest(kind=TURN)
    early = {
        "Holt fell down the stairs of the chapel.": (5, "morning"),
        "The constables searched everywhere.": (5, "morning"),
        "Holt woke up among strangers.": (6, "dusk"),
        "As a boy he stole a boat.": (2, ""),
        "He set sail for the islands.": (6, "dusk"),
    }
    assert await times(play) == early

    # That a day had passed by the last line is known once that is compacted.
    model.finds = {
        "Holt sails": [
            ("environment_updater_tool", {"set": {"day": 7, "time_of_day": "dawn"}}),
            compacted("The harbour burned to the ground."),
        ],
    }
    await play.compacted()
    assert await times(play) == {
        **early,
        "He set sail for the islands.": (7, "dawn"),
        "The harbour burned to the ground.": (7, "dawn"),
    }
    full: str = (await play.table.get("/context", chat_id=play.chat))["full"]
    today = full.partition("### Today\n")[2].partition("\n\n")[0].splitlines()
    assert today == ["- He set sail for the islands.", "- The harbour burned to the ground."]

    vault = await play.table.ask("GET", "/export", params={"format": "vault"})
    with zipfile.ZipFile(io.BytesIO(vault.content)) as files:
        [name] = [each for each in files.namelist() if "timeline" in each]
        timeline = files.read(name).decode()
    days = [line for line in timeline.splitlines() if line.startswith("## ")]
    assert days == ["## Day 2", "## Day 5", "## Day 6", "## Day 7"]
    run = (await play.runs())[0]
    await play.ada.post(f"/enrichment/runs/{run['id']}/undo", {})
    assert await times(play) == early


async def test_memories_of_a_campaign_carry_the_day_of_the_story(
    play: Evening, model: Compactor, server: Running
) -> None:
    await play.turn("The lighthouse keeper hid the brass compass.")
    await play.table.change("", day=6)
    for number in range(12):
        await play.turn(f"It rains on roof number {number}, on and on without an end.")
    fact = await play.table.add("facts", text="The brass compass points to the islands.")
    await settled(server)
    path = f"/chats/{play.chat}/settings"
    await play.ada.patch(path, {"budgets": {"history": 200}})
    prompt = str(await play.prompt("Who hid the brass compass of the lighthouse?"))
    assert "[Day 5] " in prompt
    assert "The lighthouse keeper hid the brass compass." in prompt
    assert "2026]" not in prompt
    query = {"q": "Who hid the brass compass?", "chat_id": play.chat}
    found = (await play.ada.get("/search", **query))["items"]
    days = {each["source_id"]: each["story_time"] for each in found}
    lines = await play.ada.messages(play.chat)
    assert days[lines[0]["id"]] == "Day 5"
    assert days[fact["id"]] == ""
