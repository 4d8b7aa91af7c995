"""Campaigns brought up to date by a scripted compactor: what is kept, when, whose, never twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from backend.generation.registry import ModelRegistry
from backend.jobs import running as running_jobs
from tests.fakes.openai_server import MODEL_ID
from tests.integration.campaigns.conftest import table
from tests.integration.campaigns.seagate import Table, seagate
from tests.support.compacting import API, Call, Compactor, Evening, evening, lines_of, npc
from tests.support.memory import working
from tests.support.server import Running, ok, running

__all__ = ["table"]

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again at once, not after seconds."""
    monkeypatch.setattr(running_jobs, "FIRST_DELAY", 0.2)


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[Compactor]:
    async with Compactor() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: Compactor
) -> AsyncGenerator[Running]:
    registry = ModelRegistry(demo_tokens_per_second=0, openai=model.config(), default=MODEL_ID)
    folder = tmp_path_factory.mktemp("data")
    async with running(shared_url, folder, registry=registry) as server, working(server.parts):
        yield server


@pytest.fixture(autouse=True)
def fresh(model: Compactor) -> None:
    model.reset()


@pytest.fixture
async def play(server: Running, table: Table) -> Evening:
    return await evening(server, table)


HOLT = npc("Inspector Holt", status="wounded")
DEBT: Call = ("thread_updater_tool", {"name": "The debt", "set": {"summary": "It is due."}})


@pytest.mark.every_database
async def test_after_so_many_rounds_what_was_told_is_in_the_state(
    play: Evening, model: Compactor
) -> None:
    await play.table.change("", settings={"compaction_interval": 3})
    model.finds = {"Holt falls": [HOLT]}
    first = await play.turn("Holt falls down the stairs.")
    await play.turn()
    assert model.asked == []
    await play.turn()
    [asked] = model.asked
    assert len(lines_of(asked)) == 6
    holt = await play.entity("Inspector Holt")
    assert holt is not None
    assert (holt["status"], holt["kind"]) == ("wounded", "npc")
    [change] = await play.changes()
    line = (await play.ada.messages(play.chat))[0]
    assert line["id"] != first
    assert change["message_id"] == line["id"]
    assert change["because"].endswith(": Holt falls down the stairs.")
    [run] = await play.runs()
    assert (run["state"], run["from_position"], run["to_position"]) == ("done", 0, 5)
    assert [each["title"] for each in run["written"]] == ["Inspector Holt"]
    for _ in range(3):
        await play.turn()
    assert len(model.asked) == 2
    assert "Inspector Holt (npc)" not in model.asked[0]
    assert len(lines_of(model.asked[1])) == 6


async def test_all_tools_keep_what_they_are_for(play: Evening, model: Compactor) -> None:
    town = await seagate(play.table)
    thread = await play.table.add("threads", title="The Fading Muffle", kind="quest")
    clock = await play.table.add("clocks", name="The alarm", segments=6, filled=1)
    fact = await play.table.add("facts", text="The gate is shut.")
    model.finds = {
        "everything": [
            (
                "character_updater_tool",
                {
                    "name": "Jake",
                    "set": {"location": "Sunfall Hills", "hp": 7},
                    "add": {"inventory": ["a brass key"], "gold": 5},
                    "remove": {"inventory": ["fork"]},
                },
            ),
            (
                "npc_updater_tool",
                {"name": "marlena", "set": {"wants": "The key."}, "add": {"voice": ["Whispers"]}},
            ),
            (
                "environment_updater_tool",
                {"name": "The crypt", "set": {"description": "Cold.", "day": 6}},
            ),
            ("environment_updater_tool", {"set": {"time_of_day": "dusk"}}),
            (
                "quest_updater_tool",
                {
                    "name": "the fading muffle",
                    "set": {"tension": "urgent", "giver": "Marlena"},
                    "add": {"objectives": ["Find the key", "Open the crypt"]},
                },
            ),
            ("quest_updater_tool", {"name": "The Fading Muffle", "add": {"done": "Find the key"}}),
            ("ability_updater_tool", {"name": "Lockwhisper", "set": {"role": "Jake's"}}),
            ("item_updater_tool", {"name": "The brass key", "set": {"location": "The crypt"}}),
            (
                "scene_narrative_updater_tool",
                {"set": {"title": "Below"}, "add": {"present": ["Jake", "Marlena"]}},
            ),
            DEBT,
            (
                "fact_recorder_tool",
                {"set": {"text": "The gate is open.", "supersedes": "F1"}},
            ),
            ("fact_recorder_tool", {"name": "Marlena", "set": {"text": "She owes 40 crowns."}}),
            ("clock_updater_tool", {"name": "The alarm", "add": {"filled": 2}}),
            (
                "chronicle_event_tool",
                {"set": {"summary": "Jake found the key.", "kind": "discovery", "who": ["Jake"]}},
            ),
        ]
    }
    await play.turn("Then everything happens.")
    await play.compacted()
    [run] = await play.runs()
    assert run["refused"] == []
    jake, marlena = await play.entity("Jake"), await play.entity("Marlena")
    assert jake is not None
    assert marlena is not None
    attributes = jake["attributes"]
    assert (attributes["hp"], attributes["gold"]) == (7, 20)
    assert (attributes["class"], attributes["inventory"]) == ("Wizard", ["a brass key"])
    assert jake["location_id"] == town["hills"]
    assert (marlena["wants"], marlena["voice"]) == (
        "The key.",
        ["Speaks in a slow drawl", "Whispers"],
    )
    world = await play.table.get()
    assert (world["day"], world["time_of_day"]) == (6, "dusk")
    quest = await play.table.get(f"/threads/{thread['id']}")
    assert (quest["tension"], quest["giver_id"]) == ("urgent", town["marlena"])
    assert {each["text"]: each["done"] for each in quest["objectives"]} == {
        "Find the key": True,
        "Open the crypt": False,
    }
    made = {each["name"]: each["kind"] for each in await play.items("entities")}
    assert (made["Lockwhisper"], made["The brass key"]) == ("ability", "item")
    [scene] = await play.items("scenes")
    assert (scene["title"], set(scene["present"])) == ("Below", {town["jake"], town["marlena"]})
    assert {each["title"] for each in await play.items("threads")} == {
        "The Fading Muffle",
        "The debt",
    }
    facts = {each["text"]: each for each in await play.items("facts")}
    # What the user has said stays, until they say otherwise.
    assert facts["The gate is shut."]["superseded_by"] is None
    assert facts["She owes 40 crowns."]["about_id"] == town["marlena"]
    assert (await play.table.get(f"/clocks/{clock['id']}"))["filled"] == 3
    assert fact["id"] == facts["The gate is shut."]["id"]
    [chronicle] = ok(await play.ada.client.get(f"{API}/chronicles"))["items"]
    path = f"{API}/chronicles/{chronicle['id']}/events"
    events = ok(await play.ada.client.get(path))["items"]
    assert [each["summary"] for each in events] == ["Jake found the key."]
    versions = {each["version"] for each in await play.changes()}
    assert len(versions) == 1
