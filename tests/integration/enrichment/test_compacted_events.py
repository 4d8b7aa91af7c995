"""The story that compactions read and write: its events, days and known items."""

from __future__ import annotations

import io
import zipfile
from typing import Any
from uuid import UUID

import pytest

from backend.campaigns.ledger.records import get_campaign
from backend.campaigns.state.snapshot import SnapshotCache
from backend.core.audience import PUBLIC
from backend.enrichment.compaction import reader as module
from backend.enrichment.compaction.reader import KnownWorld, read_world, refresh_world
from backend.enrichment.outbox import TURN
from tests.fakes.scripted_server import Request
from tests.integration.campaigns.conftest import table
from tests.integration.campaigns.seagate import Table, seagate
from tests.integration.turns.seeding import identity_of
from tests.support.compacting import Call, Compactor, Evening, evening, model, npc, server
from tests.support.memory import settled
from tests.support.server import Running

__all__ = ["model", "server", "table"]

pytestmark = pytest.mark.anyio

PROMISE = "Tam promised Mara to bring the silver lamp back before the winter."
AGAIN = "Tam promised Mara that the silver lamp would be back before the winter came."
OTHER = "Tam promised Mara to bring the golden lamp back before the winter."


@pytest.fixture(autouse=True)
def fresh(model: Compactor) -> None:
    model.reset()


@pytest.fixture
async def play(server: Running, table: Table) -> Evening:
    return await evening(server, table)


def study_call(summary: str, **more: Any) -> Call:
    return "create_chronicle_event", {"summary": summary, **more}


def compaction_call(summary: str, *apart: str) -> Call:
    more = {"add": {"differs_from": list(apart)}} if apart else {}
    return "chronicle_event_tool", {"set": {"summary": summary}, **more}


def is_study(request: Request) -> bool:
    messages: list[Any] = (request.body.get("messages") if request.body else None) or []
    return bool(messages) and str(messages[0]["content"]).startswith("You keep the chronicle")


async def studies(play: Evening) -> list[dict[str, Any]]:
    """Return the runs of the agent, newest first."""
    path = f"/chats/{play.chat}/enrichment"
    runs: list[dict[str, Any]] = (await play.ada.get(path))["items"]
    return [each for each in runs if each["kind"] == "turn"]


async def summaries(play: Evening) -> list[str]:
    return [each["summary"] for each in await play.events()]


async def test_a_compaction_repeats_no_event_of_the_agent(play: Evening, model: Compactor) -> None:
    model.records = {"I promise": [study_call(PROMISE)]}
    await play.turn("I promise it.")
    await play.at_rest(kind=TURN)
    model.finds = {
        "I promise": [
            compaction_call(PROMISE),
            compaction_call(AGAIN),
            compaction_call(OTHER, "H1"),
            compaction_call(OTHER, "H1"),
            compaction_call("Rain fell.", "H9"),
        ]
    }
    await play.compacted()
    assert "<known_events>\nH1: Day 5, morning: " + PROMISE in model.asked[0]
    assert await summaries(play) == [PROMISE, OTHER]
    [run] = await play.runs()
    reasons = [each["reason"] for each in run["refused"]]
    assert reasons[0] == f"duplicate of H1: {PROMISE}"
    assert reasons[1].startswith(f"H1 may say the same. H1: {PROMISE} If so, leave it.")
    assert reasons[2] == f"duplicate of H2: {OTHER}"
    assert reasons[3] == "H9 is not an event that you were shown."


async def test_the_agent_repeats_no_event_of_a_compaction(
    play: Evening, model: Compactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "holds", is_study)
    model.records = {"I promise": [study_call(AGAIN)]}
    model.finds = {"I promise": [compaction_call(PROMISE)]}
    async with model.thinking() as is_reached:
        await play.turn("I promise it.")
        await is_reached.wait()
        await play.compacted()
    await play.at_rest(kind=TURN)
    assert await summaries(play) == [PROMISE]
    refused = [each for run in await studies(play) for each in run["refused"]]
    assert refused[0]["reason"].startswith(f"E1 may say the same. E1: {PROMISE}")


async def test_of_two_concurrent_writers_the_second_starts_again(
    play: Evening, model: Compactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_last_step(request: Request) -> bool:
        return is_study(request) and request.body["messages"][-1]["role"] == "tool"

    monkeypatch.setattr(model, "holds", is_last_step)
    model.records = {"I promise": [study_call(AGAIN)]}
    model.finds = {"I promise": [compaction_call(PROMISE)]}
    async with model.thinking() as is_reached:
        await play.turn("I promise it.")
        await is_reached.wait()
        # The event of the agent was compared, but is not written yet.
        await play.compacted()
        assert await summaries(play) == [PROMISE]
    await play.at_rest(kind=TURN)
    assert await summaries(play) == [PROMISE]
    runs = await studies(play)
    assert [(each["state"], each["error"]) for each in runs] == [
        ("done", None),
        ("failed", "events-changed"),
    ]


async def times(play: Evening) -> dict[str, tuple[int | None, str]]:
    return {each["summary"]: (each["day"], each["time"]) for each in await play.events()}


async def test_events_have_the_day_of_their_message(play: Evening, model: Compactor) -> None:
    model.records = {
        "Holt falls": [study_call("Holt fell down the stairs of the chapel.")],
        "Holt wakes": [study_call("Holt woke up among strangers.")],
        "Holt recalls": [study_call("As a boy he stole a boat.", story_day=2)],
        "Holt sails": [study_call("He set sail for the islands.")],
    }
    model.finds = {"Holt falls": [compaction_call("The constables searched everywhere.")]}
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

    # The next compaction finds that a day has passed by the last line.
    model.finds = {
        "Holt sails": [
            ("environment_updater_tool", {"set": {"day": 7, "time_of_day": "dawn"}}),
            compaction_call("The harbour burned to the ground."),
        ]
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


async def test_memories_have_story_days(play: Evening, model: Compactor, server: Running) -> None:
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


async def read_known(
    server: Running, table: Table, *lines: str, since: KnownWorld | None = None
) -> KnownWorld:
    """Return the public world; refresh `since` if it is given."""
    identity = await identity_of(server, table.account)
    async with server.parts.database.read() as session:
        campaign = await get_campaign(session, identity, UUID(table.campaign["id"]))
        place = session, identity.sealer, campaign
        if since is not None:
            return await refresh_world(*place, since, listeners=(PUBLIC,))
        return await read_world(*place, SnapshotCache(), lines, listeners=(PUBLIC,))


@pytest.mark.every_database
async def test_a_refreshed_world_equals_a_new_one(server: Running, table: Table) -> None:
    town = await seagate(table)
    thread = await table.add("threads", title="The Muffle")
    clock = await table.add("clocks", name="Watch", segments=4)
    scene = await table.add("scenes", title="Inside", location_id=town["shop"])
    fact = await table.add("facts", text="The gate is shut.")
    before = await read_known(server, table)
    later = await table.add("facts", text="The gate is open.")
    await table.change(f"/facts/{fact['id']}", superseded_by=later["id"])
    await table.change(f"/entities/{town['jake']}", status="asleep")
    await table.change(f"/entities/{town['holt']}", audience="gm")
    await table.change(f"/scenes/{scene['id']}", status="closed")
    await table.change("", day=6)
    await table.delete(f"/clocks/{clock['id']}")
    await table.add("entities", kind="npc", name="Odd")

    after = await read_known(server, table, since=before)

    assert after == await read_known(server, table)
    assert UUID(thread["id"]) in after.items
    gone = {UUID(each) for each in (town["holt"], clock["id"], scene["id"], fact["id"])}
    assert gone <= before.items.keys()
    assert not gone & after.items.keys()


@pytest.mark.every_database
async def test_a_refreshed_world_reads_only_changes(server: Running, table: Table) -> None:
    town = await seagate(table)
    before = await read_known(server, table)
    await table.change(f"/entities/{town['jake']}", status="asleep")
    after = await read_known(server, table, since=before)
    changed = {one for one, held in after.items.items() if before.items[one] is not held}
    assert changed == {UUID(town["jake"])}


@pytest.mark.every_database
async def test_a_large_world_has_the_latest_and_the_named_items(
    server: Running, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = await seagate(table)
    for number in range(5):
        await table.add("entities", kind="npc", name=f"Guard {number}")
    monkeypatch.setattr(module, "MAX_KNOWN", 4)
    names = {state["name"] for state in (await read_known(server, table)).entities.values()}
    assert names == {"Jake", "Guard 3", "Guard 4"}
    known = await read_known(server, table, "Marlena nods.")
    assert UUID(town["marlena"]) in known.entities
    assert len(known.items) == 5


EVENING_LINES: dict[int, tuple[str, list[Call]]] = {
    1: (
        "We come into Seagate by the north gate, at dusk.",
        [
            (
                "environment_updater_tool",
                {
                    "name": "Seagate",
                    "set": {"description": "A harbour town.", "time_of_day": "dusk"},
                },
            ),
            ("character_updater_tool", {"name": "Jake", "set": {"location": "Seagate"}}),
        ],
    ),
    3: (
        "Inspector Holt stops us: the ledger of the counting house is gone.",
        [
            npc("Inspector Holt", role="the town's inspector", disposition="wary"),
            (
                "quest_updater_tool",
                {
                    "name": "The stolen ledger",
                    "set": {"summary": "Holt wants it back.", "giver": "Inspector Holt"},
                    "add": {"objectives": ["Find the thief", "Bring the ledger back"]},
                },
            ),
        ],
    ),
    5: (
        "At the Salty Sigil, Marlena pours us something strong.",
        [
            ("environment_updater_tool", {"name": "The Salty Sigil", "set": {"role": "an inn"}}),
            npc("Marlena", role="innkeeper", location="The Salty Sigil"),
        ],
    ),
    8: (
        "I promise Marlena forty crowns by the new moon.",
        [
            (
                "fact_recorder_tool",
                {"name": "Jake", "set": {"text": "He owes Marlena forty crowns by the new moon."}},
            ),
            (
                "thread_updater_tool",
                {
                    "name": "Forty crowns",
                    "set": {"summary": "Due at the new moon.", "kind": "threat"},
                },
            ),
        ],
    ),
    11: (
        "I buy a lantern from the chandler.",
        [("character_updater_tool", {"name": "Jake", "add": {"inventory": ["a lantern"]}})],
    ),
    12: (
        "The watch begins to search the harbour.",
        [
            (
                "clock_updater_tool",
                {"name": "The watch closes in", "set": {"segments": 6}, "add": {"filled": 1}},
            )
        ],
    ),
    14: (
        "Holt is stabbed in the alley, and bleeds.",
        [
            npc("Inspector Holt", status="wounded"),
            ("chronicle_event_tool", {"set": {"summary": "Inspector Holt was stabbed."}}),
        ],
    ),
    18: (
        "It was Marlena who took the ledger, all along.",
        [
            npc("Marlena", disposition="hostile"),
            (
                "quest_updater_tool",
                {"name": "The stolen ledger", "add": {"done": "Find the thief"}},
            ),
        ],
    ),
    23: (
        "The bell rings: the watch is on the stairs.",
        [("clock_updater_tool", {"name": "The watch closes in", "add": {"filled": 3}})],
    ),
    28: (
        "We lay the ledger on Holt's bed.",
        [
            (
                "quest_updater_tool",
                {
                    "name": "The stolen ledger",
                    "set": {"status": "resolved"},
                    "add": {"done": "Bring the ledger back"},
                },
            ),
            npc("Inspector Holt", disposition="grateful"),
        ],
    ),
}
ELSEWHERE = "We leave Seagate by boat, and Holt waves."


async def notes(play: Evening) -> dict[str, dict[str, Any]]:
    """Return the items of the campaign by name, title or text."""
    items = [
        *await play.items("entities"),
        *await play.items("threads"),
        *await play.items("clocks"),
        *await play.items("facts"),
    ]
    return {each.get("name") or each.get("title") or each["text"]: each for each in items}


@pytest.mark.every_database
async def test_going_back_restores_notes(server: Running, table: Table, model: Compactor) -> None:
    model.reset()
    model.finds = dict(EVENING_LINES.values())
    model.finds[ELSEWHERE] = [npc("Inspector Holt", disposition="friendly")]
    play = await evening(server, table, compaction_interval=5)
    await table.add("entities", kind="pc", name="Jake", attributes={"hp": 13, "inventory": []})
    lines: dict[str, int] = {}
    for number in range(1, 31):
        text, _ = EVENING_LINES.get(number, (f"We go on for a while, {number}.", []))
        await play.turn(text)
        lines[(await play.ada.messages(play.chat))[-2]["id"]] = number
    assert len(model.asked) == 6

    told = await notes(play)
    holt, marlena, jake = (told[name] for name in ("Inspector Holt", "Marlena", "Jake"))
    assert (holt["role"], holt["status"]) == ("the town's inspector", "wounded")
    assert holt["disposition"] == "grateful"
    assert (marlena["disposition"], marlena["location_id"]) == (
        "hostile",
        told["The Salty Sigil"]["id"],
    )
    assert jake["attributes"] == {"hp": 13, "inventory": ["a lantern"]}
    assert told["Seagate"]["description"] == "A harbour town."
    ledger = told["The stolen ledger"]
    assert (ledger["status"], ledger["giver_id"]) == ("resolved", holt["id"])
    assert all(each["done"] for each in ledger["objectives"])
    assert told["Forty crowns"]["kind"] == "threat"
    assert told["The watch closes in"]["filled"] == 4
    assert told["He owes Marlena forty crowns by the new moon."]["about_id"] == jake["id"]
    assert len(told) == 9

    changes = await play.changes()
    came_from = [(lines[each["message_id"]], each["because"]) for each in changes]
    for number, because in came_from:
        assert because.endswith(EVENING_LINES[number][0])
    assert sorted({number for number, _ in came_from}) == sorted(EVENING_LINES)

    [thirteenth] = [each for each, number in lines.items() if number == 13]
    await play.ada.delete(f"/messages/{thirteenth}", 200)
    told = await notes(play)
    assert (told["Inspector Holt"]["status"], told["Inspector Holt"]["disposition"]) == (
        "active",
        "wary",
    )
    assert told["Marlena"]["disposition"] == ""
    assert told["The stolen ledger"]["status"] == "open"
    assert not any(each["done"] for each in told["The stolen ledger"]["objectives"])
    assert told["The watch closes in"]["filled"] == 1
    assert told["Jake"]["attributes"]["inventory"] == ["a lantern"]
    [chronicle] = (await play.ada.get("/chronicles"))["items"]
    events = await play.ada.get(f"/chronicles/{chronicle['id']}/events")
    assert [each for each in events["items"] if each["counts"]] == []

    await play.turn(ELSEWHERE)
    await play.compacted()
    told = await notes(play)
    assert told["Inspector Holt"]["disposition"] == "friendly"
    assert told["Inspector Holt"]["status"] == "active"
    assert len(told) == 9
    counted = {each["message_id"] for each in await play.changes()}
    path = {each["id"] for each in await play.ada.messages(play.chat)}
    assert counted <= path
