"""An evening of thirty turns, and the notes that it leaves; and going back to its twelfth."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.campaigns.conftest import table
from tests.integration.campaigns.seagate import Table
from tests.support.compacting import Call, Compactor, Evening, evening, model, npc, server
from tests.support.server import Running

__all__ = ["model", "server", "table"]

pytestmark = pytest.mark.anyio

TOLD: dict[int, tuple[str, list[Call]]] = {
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
    """What the campaign says of everyone and everything, by what it is called."""
    items = [
        *await play.items("entities"),
        *await play.items("threads"),
        *await play.items("clocks"),
        *await play.items("facts"),
    ]
    return {each.get("name") or each.get("title") or each["text"]: each for each in items}


@pytest.mark.every_database
async def test_an_evening_leaves_notes_and_going_back_leaves_those_of_then(
    server: Running, table: Table, model: Compactor
) -> None:
    model.reset()
    model.finds = dict(TOLD.values())
    model.finds[ELSEWHERE] = [npc("Inspector Holt", disposition="friendly")]
    play = await evening(server, table, compaction_interval=5)
    await table.add("entities", kind="pc", name="Jake", attributes={"hp": 13, "inventory": []})
    lines: dict[str, int] = {}
    for number in range(1, 31):
        text, _ = TOLD.get(number, (f"We go on for a while, {number}.", []))
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
        assert because.endswith(TOLD[number][0])
    assert sorted({number for number, _ in came_from}) == sorted(TOLD)

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
