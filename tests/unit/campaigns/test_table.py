"""A table: what a model's calls come to, and what they may not change."""

from __future__ import annotations

import re
from typing import Any

import pytest

from backend.campaigns.ledger.changes import Operations
from backend.campaigns.ledger.items import Clock, Echo, Entity, Scene, World
from backend.campaigns.play.guidance import render_guidance
from backend.campaigns.play.table import MAX_CALLS, NoSuchOptionError, Table
from backend.database.base import new_id
from backend.prompts import load_prompts
from tests.support.play import CAMPAIGN, JAKE, SHOP, table_of, town, use

pytestmark = pytest.mark.anyio


@pytest.fixture
def table() -> Table:
    return table_of(town(hp=13, hp_max=13, inventory=["fork"]))


async def test_a_turn_is_thought_told_and_finished(table: Table) -> None:
    assert (await use(table, "think_as_dm", thoughts="She wants something.")).kind == "answer"
    told = await use(table, "speak_as_npc", npc="marlena")
    assert told.result == {
        "name": "Marlena",
        "status": "active",
        "voice": ["drawls"],
        "wants": "her sister back",
    }
    end = await use(
        table,
        "finish_turn",
        connector="but",
        cost="Marlena's trust",
        threat="The watch has heard",
        suggested_actions=["Apologise", "Leave"],
        deltas={
            "changes": [
                {"item": "Jake", "field": "hp", "how": "remove", "amount": 3},
                {"item": "Jake", "field": "inventory", "how": "add", "value": "a brass token"},
                {"item": "Marlena", "field": "disposition", "value": "wary"},
                {"item": "The Fading Muffle", "field": "tension", "value": "urgent"},
            ],
            "facts": [{"text": "Marlena has a sister.", "about": "Marlena"}],
        },
    )
    assert end.kind == "end"
    assert table.is_over
    assert table.list_tools() == []
    assert list(table.suggestions) == ["Apologise", "Leave"]
    assert table.get(JAKE)["attributes"] == {
        "hp": 10,
        "hp_max": 13,
        "inventory": ["fork", "a brass token"],
    }
    kinds = [change.kind for change in table.ledger]
    assert kinds == ["entity", "entity", "entity", "thread", "fact", "echo", "echo", "world"]
    assert table.play.connector == "but"


async def test_a_model_is_told_who_knows_what_it_names() -> None:
    heron = Entity(kind="npc", name="The Heron", wants="the ledger", audience="gm")
    plot = Clock(name="The plot", consequence="Fire.", audience=[JAKE])
    items = town(hp=13, hp_max=13)
    shade, clock = new_id(), new_id()
    table = table_of({**items, shade: heron, clock: plot})
    told = await use(table, "speak_as_npc", npc="the heron")
    assert told.result["who_knows"] == {"The Heron": "secret: game master only"}
    ticked = await use(table, "tick_clock", clock="The plot")
    assert ticked.result["who_knows"] == {"The plot": "known to Jake only"}
    plain = await use(table, "speak_as_npc", npc="Marlena")
    assert "who_knows" not in plain.result
    missing = await use(table, "speak_as_npc", npc="Nobody")
    assert missing.result["error"].endswith("Marlena, (secret: game master only) The Heron.")
    assert "(known to Jake only) The plot 1/6: Fire." in render_guidance(table, load_prompts())


async def test_a_question_waits_for_its_own_answer(table: Table) -> None:
    outcome = await use(table, "ask_player", prompt="Which door?", options=["left", "right"])
    assert outcome.kind == "wait"
    assert table.list_tools() == []
    again = Table.load(table.save())
    waiting = again.waiting
    assert [option.id for option in waiting.options] == ["1.0", "1.1"] if waiting else False
    with pytest.raises(NoSuchOptionError):
        again.choose("2.0")
    assert again.choose("1.1") == {"chosen": "right"}
    assert again.waiting is None
    with pytest.raises(NoSuchOptionError):
        again.choose("1.1")
    await use(again, "ask_player", prompt="And then?", options=["up", "down"])
    with pytest.raises(NoSuchOptionError):
        again.choose("1.0")
    assert again.choose("2.0") == {"chosen": "up"}


async def test_a_clock_that_fills_is_told_and_echoes(table: Table) -> None:
    outcome = await use(table, "tick_clock", clock="The Watch", segments=3)
    assert outcome.result == {"clock": "The Watch", "filled": "4/4"}
    assert [each.text for each in table.happened] == ["The Watch: They search the shop."]
    assert [state["text"] for state in table.list_items("echo").values()] == [
        "The Watch: They search the shop."
    ]
    done = await use(table, "tick_clock", clock="The Watch")
    assert "is done" in done.result["error"]


async def test_flags_are_set_and_threats_resolved_at_the_end_of_a_turn() -> None:
    items = town()
    items[CAMPAIGN] = World(flags={"gate_open": True}, locked=["flags.alarm"])
    hound, loan = new_id(), new_id()
    items |= {
        hound: Echo(text="The hound has their scent", kind="threat"),
        loan: Echo(text="A loan at the Salty Sigil", kind="cost"),
    }
    table = table_of(items, "dnd")

    async def end(**deltas: Any) -> Any:
        return (await use(table, "finish_turn", deltas=deltas)).result

    refused = await end(flags=[{"flag": "gate open", "value": False}], resolved=["the wolf"])
    assert "A loan at the Salty Sigil; The hound has their scent." in refused["error"]
    assert "More than one" in (await end(resolved=["the"]))["error"]
    assert "Locked by the user" in (await end(flags=[{"flag": "alarm"}]))["error"]
    assert "tools of their own" in (await end(flags=[{"flag": "combat"}]))["error"]
    assert table.ledger == []
    await end(
        flags=[{"flag": "Gate open", "value": False}, {"flag": "oath"}],
        resolved=["The hound has their scent", "loan"],
    )
    assert table.world["flags"] == {"gate_open": False, "oath": True}
    assert table.get(hound)["resolved"]
    assert table.get(loan)["resolved"]


async def test_a_hidden_clock_ticks_and_stays_hidden(table: Table) -> None:
    hidden = new_id()
    clock = Clock(name="The Traitor", segments=4, filled=2, visible=False, consequence="She runs.")
    table = table_of({**town(), hidden: clock})
    assert "(secret: game master only) The Traitor 2/4" in render_guidance(table, load_prompts())
    ticked = await use(table, "tick_clock", clock="The Traitor", segments=2)
    assert ticked.result["filled"] == "4/4"
    assert "Traitor" not in str(ticked.events)
    assert [each.audience for each in table.happened] == ["gm"]
    assert [state["audience"] for state in table.list_items("echo").values()] == ["gm"]


async def test_those_who_are_named_go_to_a_scene_and_the_others_stay(table: Table) -> None:
    mara, docks = new_id(), new_id()
    items = town() | {
        mara: Entity(kind="pc", name="Mara", location_id=SHOP),
        docks: Entity(kind="location", name="The Docks"),
        new_id(): Scene(location_id=SHOP),
    }
    table = table_of(items)
    await use(table, "set_scene", location="The Docks", who=["Mara"])
    assert [table.get(each)["location_id"] for each in (JAKE, mara)] == [str(SHOP), str(docks)]
    assert [state["status"] for state in table.list_items("scene").values()] == ["open", "open"]
    await use(table, "set_scene", location="The Docks")
    assert [state["status"] for state in table.list_items("scene").values()] == ["closed", "open"]
    assert table.get(JAKE)["location_id"] == str(docks)


async def test_a_scene_begins_elsewhere_and_players_come_along(table: Table) -> None:
    missing = await use(table, "set_scene", location="The Docks")
    assert "new place needs a `description`" in missing.result["error"]
    assert table.ledger == []
    await use(table, "set_scene", location="The Docks", description="Wet planks.", stakes="The key")
    scene = next(iter(table.list_items("scene").values()))
    assert scene["location_id"] == table.get(JAKE)["location_id"]
    back = await use(table, "set_scene", location="the salty sigil")
    here = "### Current location\n**The Salty Sigil**\n\n### NPCs present\n**Marlena** [active]"
    assert back.result["here"].startswith(here)
    assert "Wants: her sister back" in back.result["here"]
    again = await use(table, "set_scene", location="The Salty Sigil", stakes="The token")
    assert again.result == {"location": "The Salty Sigil"}
    assert [state["status"] for state in table.list_items("scene").values()] == ["closed", "open"]
    assert table.get(JAKE)["location_id"] == str(SHOP)


async def test_time_goes_on(table: Table) -> None:
    outcome = await use(table, "advance_time", days=2, time_of_day="noon")
    assert outcome.result == {"day": 7, "time_of_day": "noon"}
    assert table.ledger[0].operations == Operations(add={"day": 2}, set={"time_of_day": "noon"})


async def test_after_twelve_calls_there_is_none(table: Table) -> None:
    for _ in range(MAX_CALLS):
        assert (await use(table, "think_as_dm", thoughts="Hm.")).kind == "answer"
    assert table.list_tools() == []
    assert "error" in (await use(table, "tick_clock", clock="The Watch")).result
    assert table.ledger == []


async def test_an_unknown_name_lists_near_ones(table: Table) -> None:
    outcome = await use(table, "speak_as_npc", npc="Marlene")
    assert outcome.result["error"] == "There is no 'Marlene' here. There is: Marlena."


async def test_somebody_may_be_called_by_a_title_or_a_part_of_a_name(table: Table) -> None:
    outcome = await use(table, "speak_as_npc", npc="Madam Marlena")
    assert "error" not in outcome.result
    back = await use(table, "set_scene", location="the Sigil")
    assert back.result == {"location": "The Salty Sigil"}


async def test_two_of_one_name_are_told_apart_by_reference() -> None:
    guards = {new_id(): Entity(kind="npc", name="Guard", wants=text) for text in ("beer", "sleep")}
    table = table_of({**town(), **guards})
    outcome = await use(table, "speak_as_npc", npc="Guard")
    refs = re.findall("#[0-9a-f]{6}", outcome.result["error"])
    told = [(await use(table, "speak_as_npc", npc=ref)).result["wants"] for ref in refs]
    assert sorted(told) == ["beer", "sleep"]


async def test_the_guidance_tells_what_lies_on_the_table() -> None:
    scene = Scene(location_id=SHOP, stakes="The token")
    table = table_of({**town(), new_id(): scene})
    text = render_guidance(table, load_prompts())
    assert "HOW THIS TURN IS PLAYED" in text
    assert "At stake: The token" in text
    assert "- Marlena: her sister back" in text
    assert "- The Watch 3/4: They search the shop." in text
