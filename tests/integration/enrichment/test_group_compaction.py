"""Compactions of a group: what is made of messages is for those who heard them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.campaigns.conftest import table
from tests.integration.campaigns.seagate import Table
from tests.support.compacting import Call, Compactor, Evening, lines_of, model, npc, server
from tests.support.server import Running

__all__ = ["model", "server", "table"]

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


@pytest.fixture(autouse=True)
def fresh(model: Compactor) -> None:
    model.reset()


@dataclass
class Ensemble:
    play: Evening
    ids: dict[str, str]
    people: dict[str, str]

    async def set_presence(self, name: str, presence: str) -> None:
        path = f"/chats/{self.play.chat}/members/{self.ids[name]}"
        await self.play.ada.patch(path, {"presence": presence})

    async def say(self, text: str, **body: Any) -> str:
        return await self.play.turn(text, speaker=self.ids["Alda"], **body)


@pytest.fixture
async def group(server: Running, table: Table) -> Ensemble:
    """A chat of Alda, Bor and Cyd, who has no entity. The user plays Jake."""
    await table.change("", settings={"compaction_interval": 100, "scene_beats": 1_000})
    ada = table.account
    people = {
        name: (await table.add("entities", kind=kind, name=name))["id"]
        for name, kind in (("Jake", "pc"), ("Alda", "npc"), ("Bor", "npc"))
    }
    ids = {
        name: (await ada.new_character(name=name, first_mes=""))["id"]
        for name in ("Alda", "Bor", "Cyd")
    }
    members = list(ids.values())
    chat = await ada.new_chat(campaign_id=table.campaign["id"], character_ids=members)
    await ada.patch(f"/chats/{chat['id']}/settings", {"chronicle_enabled": True})
    return Ensemble(Evening(server, table, str(chat["id"])), ids, people)


DEBT: Call = ("quest_updater_tool", {"name": "The debt", "set": {"summary": "debtq"}})
BRIDGE: Call = ("quest_updater_tool", {"name": "The bridge", "set": {"summary": "newq"}})
FACT: Call = ("fact_recorder_tool", {"name": "Alda", "set": {"text": "factq"}})
EVENT: Call = (
    "chronicle_event_tool",
    {"set": {"summary": "eventq happened.", "kind": "discovery", "who": ["Alda"]}},
)


async def test_stretches_end_where_the_witnesses_change(group: Ensemble, model: Compactor) -> None:
    play, ids, people = group.play, group.ids, group.people
    await play.table.add("threads", title="The bridge", summary="oldq")
    model.finds = {
        "All hear": [npc("Holt", status="well")],
        "Bor is away": [DEBT, BRIDGE, FACT, EVENT],
        "He is back": [npc("Holt", status="hurt")],
    }
    await group.say("All hear this.")
    await group.set_presence("Bor", "absent")
    await group.say("Bor is away now.")
    await group.set_presence("Bor", "present")
    await group.say("He is back.")
    await play.compacted()
    # A refused call is asked for again.
    first, second, third = dict.fromkeys(model.asked)
    assert [len(lines_of(asked)) for asked in (first, second, third)] == [2, 2, 2]
    assert "All hear this." in second  # Alda and Cyd have heard both
    assert "Bor is away now." not in first + third
    assert "debtq" not in third
    heard = [ids["Alda"], ids["Cyd"], people["Alda"], people["Jake"]]
    holt = await play.entity("Holt")
    assert (holt["status"], holt["audience"]) == ("hurt", "public")
    threads = {each["title"]: each for each in await play.items("threads")}
    assert sorted(threads["The debt"]["audience"]) == sorted(heard)
    # Others know of the bridge, so that nothing changes.
    assert (threads["The bridge"]["summary"], threads["The bridge"]["audience"]) == (
        "oldq",
        "public",
    )
    [fact] = await play.items("facts")
    assert sorted(fact["audience"]) == sorted(heard)
    [chronicle] = (await play.ada.get("/chronicles"))["items"]
    [event] = (await play.ada.get(f"/chronicles/{chronicle['id']}/events"))["items"]
    assert sorted(event["audience"]) == sorted([ids["Alda"], ids["Cyd"]])
    refused = {each["reason"] for run in await play.runs() for each in run["refused"]}
    assert "Not everyone who knows of the item may know this." in refused


async def test_a_whisper_is_for_its_listener_and_its_entity(
    group: Ensemble, model: Compactor
) -> None:
    play, ids, people = group.play, group.ids, group.people
    model.finds = {"Psst": [DEBT], "Aloud": [("quest_updater_tool", {"name": "The oath"})]}
    await group.say("Aloud.")
    await play.turn("Psst.", speaker=ids["Bor"], audience=[ids["Bor"]])
    await play.compacted()
    threads = {each["title"]: each["audience"] for each in await play.items("threads")}
    assert threads == {"The debt": [ids["Bor"], people["Bor"]], "The oath": "public"}


async def test_what_a_late_joiner_missed_is_no_context_of_public_changes(
    group: Ensemble, model: Compactor
) -> None:
    """A change by the table's tools is public, but not known to all listeners of a stretch."""
    play = group.play
    thread = await play.table.add("threads", title="The bridge", summary="oldq")
    await group.set_presence("Bor", "absent")
    away = await group.say("Bor is away.")
    path = f"{play.table.path}/threads/{thread['id']}?message_id={away}"
    await play.ada.patch(path, {"summary": "secretq"})
    await play.ada.post(
        f"{play.table.path}/threads?message_id={away}", {"title": "awayq", "tension": "urgent"}, 201
    )
    await group.set_presence("Bor", "present")
    await group.say("The bridge holds, and awayq.")
    await play.compacted()
    away_asked, asked = model.asked
    assert "secretq" in away_asked
    assert "oldq" in asked
    assert "secretq" not in asked
    assert asked.count("awayq") == 1  # in the line that all have heard
