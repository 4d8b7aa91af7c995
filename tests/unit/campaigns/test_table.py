"""Tool calls of a model at the table, and the limits of these calls."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest

from backend.campaigns.ledger.changes import Operations
from backend.campaigns.ledger.items import Clock, Echo, Entity, Item, Scene, World
from backend.campaigns.play.guidance import render_guidance
from backend.campaigns.play.table import MAX_CALLS, NoSuchOptionError, Table, enter_downtime
from backend.database.base import new_id
from backend.generation.model import ToolCall
from backend.prompts import load_prompts
from tests.support.play import (
    CAMPAIGN,
    JAKE,
    MARLENA,
    OUTCOMES,
    SHOP,
    WATCH,
    choose_die,
    commit_to,
    engage,
    table_of,
    town,
    use,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def table() -> Table:
    return table_of(town(hp=13, hp_max=13, inventory=["fork"]))


async def test_a_turn_has_thoughts_speech_and_an_end(table: Table) -> None:
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


async def test_a_model_sees_the_audience_of_every_item_it_names() -> None:
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


async def test_a_clock_that_fills_is_reported_and_makes_an_echo(table: Table) -> None:
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


async def test_named_characters_go_to_a_scene_and_the_others_stay(table: Table) -> None:
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


async def test_a_title_or_a_part_of_a_name_finds_a_character(table: Table) -> None:
    outcome = await use(table, "speak_as_npc", npc="Madam Marlena")
    assert "error" not in outcome.result
    back = await use(table, "set_scene", location="the Sigil")
    assert back.result == {"location": "The Salty Sigil"}


async def test_two_characters_of_one_name_have_different_references() -> None:
    guards = {new_id(): Entity(kind="npc", name="Guard", wants=text) for text in ("beer", "sleep")}
    table = table_of({**town(), **guards})
    outcome = await use(table, "speak_as_npc", npc="Guard")
    refs = re.findall("#[0-9a-f]{6}", outcome.result["error"])
    told = [(await use(table, "speak_as_npc", npc=ref)).result["wants"] for ref in refs]
    assert sorted(told) == ["beer", "sleep"]


async def test_the_guidance_describes_the_table() -> None:
    scene = Scene(location_id=SHOP, stakes="The token")
    table = table_of({**town(), new_id(): scene})
    text = render_guidance(table, load_prompts())
    assert "HOW THIS TURN IS PLAYED" in text
    assert "At stake: The token" in text
    assert "- Marlena: her sister back" in text
    assert "- The Watch 3/4: They search the shop." in text


ELSEWHERE = new_id()
DONE = new_id()


def crew() -> Table:
    """Jake's stress and Marlena's wants are locked; one clock is done."""
    items = town(world={"heat": 8, "wanted": 4, "dice": [6, 4, 2, 1]})
    items[JAKE] = Entity(
        kind="pc",
        name="Jake",
        location_id=SHOP,
        attributes={"stress": 8, "coin": 1, "inventory": ["pick"]},
        locked=["attributes.harm", "status"],
    )
    items[MARLENA] = Entity(kind="npc", name="Marlena", location_id=SHOP, locked=["wants"])
    items[DONE] = Clock(name="The Tide", segments=4, filled=4)
    return table_of(items, "blades")


async def scene() -> Table:
    return crew()


async def action() -> Table:
    table = crew()
    await engage(table)
    return table


async def waits() -> Table:
    table = await action()
    await commit_to(table)
    return table


async def fixed() -> Table:
    """The die has fixed a partial success."""
    table = await waits()
    choose_die(table, 2)
    return table


async def aftermath() -> Table:
    table = await fixed()
    await use(table, "resolve", tier="partial")
    return table


async def downtime() -> Table:
    table = crew()
    enter_downtime(table, "entanglement")
    return table


async def last() -> Table:
    """After three breaks."""
    table = crew()
    for _ in range(3):
        await use(table, "accept")
    return table


async def over() -> Table:
    table = crew()
    await use(table, "finish_turn")
    return table


async def story() -> Table:
    items = crew_items()
    items[CAMPAIGN] = World(locked=["day"])
    return table_of(items, "freeform")


async def dungeon() -> Table:
    return table_of(town(hp=13, hp_max=13, ac=12, gold=5), "dnd")


def crew_items() -> dict[UUID, Item]:
    return {
        **town(hp=13, hp_max=13),
        MARLENA: Entity(kind="npc", name="Marlena", location_id=SHOP, locked=["disposition"]),
    }


def outcome(tier: str, *costs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"tier": tier, "hint": "so it goes", "costs": list(costs), **more}


def with_bad(*costs: dict[str, Any]) -> dict[str, Any]:
    """Outcomes of which the bad one costs this."""
    return {"situation": "Now.", "outcomes": [*OUTCOMES[:3], outcome("bad", *costs)]}


def delta(item: str, field: str, **more: Any) -> dict[str, Any]:
    return {"deltas": {"changes": [{"item": item, "field": field, **more}]}}


def clock(name: str, segments: Any = 1) -> dict[str, Any]:
    return {"deltas": {"clocks": [{"clock": name, "segments": segments}]}}


RISK = {"domain": "social", "position": "risky", "effect": "standard", "stakes": "face"}


class Attempt(NamedTuple):
    """A forbidden call of a model, the table where it is made, and the answer."""

    begin: Callable[[], Awaitable[Table]]
    name: str
    arguments: dict[str, Any]
    told: str
    problem: str = ""


ATTEMPTS = [
    # Another outcome than the die's.
    Attempt(fixed, "resolve", {"tier": "success"}, "fixed partial"),
    Attempt(fixed, "resolve", {"tier": "critical"}, "fixed partial"),
    Attempt(fixed, "resolve", {"tier": "bad"}, "fixed partial"),
    Attempt(fixed, "resolve", {"tier": "withdrawn"}, "fixed partial"),
    Attempt(fixed, "resolve", {"tier": "partial", "outcome": "it opens"}, "committed to"),
    Attempt(fixed, "resolve", {"tier": "triumph"}, "Invalid enum value"),
    Attempt(fixed, "resolve", {}, "missing required field"),
    Attempt(fixed, "spend_die", {"situation": "Again.", "outcomes": OUTCOMES}, "die is spent"),
    Attempt(fixed, "engage", RISK, "no such tool"),
    Attempt(fixed, "accept", {}, "no such tool"),
    Attempt(action, "resolve", {"tier": "critical"}, "No die is spent"),
    Attempt(aftermath, "resolve", {"tier": "critical"}, "no such tool"),
    # A die that the model chooses, or an answer that it gives itself.
    Attempt(waits, "resolve", {"tier": "critical"}, "waits for its player"),
    Attempt(waits, "spend_die", {"situation": "No.", "outcomes": OUTCOMES}, "waits for its player"),
    Attempt(waits, "finish_turn", {}, "waits for its player"),
    Attempt(action, "choose", {"option": "1.0"}, "no such tool"),
    # Costs that are unpaid, cannot be paid, or are paid back.
    Attempt(action, "spend_die", with_bad(), "at least one cost"),
    Attempt(action, "spend_die", {"situation": "x", "outcomes": OUTCOMES[:2]}, "partial, bad"),
    Attempt(
        action,
        "spend_die",
        {"situation": "x", "outcomes": [*OUTCOMES, OUTCOMES[0]]},
        "Expected `array` of length <= 4",
    ),
    Attempt(
        action,
        "spend_die",
        {"situation": "x", "outcomes": [OUTCOMES[0], OUTCOMES[0], *OUTCOMES[2:]]},
        "Each tier has one outcome",
    ),
    Attempt(
        action,
        "spend_die",
        {"situation": "x", "outcomes": [outcome("success", {"kind": "heat"}), *OUTCOMES[2:]]},
        "need an outcome too: critical",
    ),
    Attempt(
        action,
        "spend_die",
        {"situation": "x", "outcomes": [outcome("critical", {"kind": "heat"}), *OUTCOMES[1:]]},
        "critical costs nothing",
    ),
    Attempt(action, "spend_die", with_bad({"kind": "coin", "amount": 5}), "has 1 coin"),
    Attempt(action, "spend_die", with_bad({"kind": "item", "what": "moon"}), "has no 'moon'"),
    Attempt(action, "spend_die", with_bad({"kind": "clock", "what": "Nought"}), "There is no"),
    Attempt(action, "spend_die", with_bad({"kind": "clock", "what": "The Tide"}), "is done"),
    Attempt(action, "spend_die", with_bad({"kind": "harm", "what": "a rib"}), "Locked"),
    Attempt(action, "spend_die", with_bad({"kind": "harm"}), "says in `what`"),
    Attempt(action, "spend_die", with_bad({"kind": "stress", "amount": 0}), ">= 1"),
    Attempt(action, "spend_die", with_bad({"kind": "stress", "amount": -3}), ">= 1"),
    Attempt(action, "spend_die", with_bad({"kind": "stress", "amount": 99}), "<= 6"),
    Attempt(action, "spend_die", with_bad({"kind": "goodwill"}), "Invalid enum value"),
    Attempt(aftermath, "finish_turn", clock("The Watch", -4), "cost of this turn"),
    Attempt(aftermath, "finish_turn", delta("Jake", "stress", how="remove", amount=9), "can't be"),
    # Position and effect are chosen by engage.
    Attempt(scene, "engage", {**RISK, "position": "safe"}, "Invalid enum value"),
    Attempt(scene, "engage", {**RISK, "effect": "total"}, "Invalid enum value"),
    Attempt(scene, "engage", {**RISK, "character": "Marlena"}, "There is no 'Marlena'"),
    Attempt(scene, "engage", {**RISK, "character": "Nobody"}, "There is no 'Nobody'"),
    Attempt(scene, "engage", {key: RISK[key] for key in RISK if key != "stakes"}, "missing"),
    Attempt(action, "engage", {**RISK, "position": "controlled"}, "no such tool"),
    # Tools of another mood, or of none.
    Attempt(scene, "spend_die", {"situation": "x", "outcomes": OUTCOMES}, "no such tool"),
    Attempt(scene, "resolve", {"tier": "critical"}, "no such tool"),
    Attempt(scene, "tick_clock", {"clock": "The Watch"}, "no such tool"),
    Attempt(scene, "downtime", {"activity": "recovery"}, "no such tool"),
    Attempt(downtime, "engage", RISK, "no such tool"),
    Attempt(downtime, "accept", {}, "no such tool"),
    Attempt(last, "accept", {}, "no such tool"),
    Attempt(last, "engage", RISK, "no such tool"),
    Attempt(dungeon, "attack", {"attacker": "Jake"}, "no such tool"),
    Attempt(scene, "", {}, "no such tool"),
    # After the end.
    Attempt(over, "finish_turn", {"cost": "more"}, "turn is over"),
    Attempt(over, "think_as_dm", {"thoughts": "more"}, "turn is over"),
    # Locked fields, and fields that no model may change.
    Attempt(scene, "finish_turn", delta("Jake", "status", value="dead"), "Locked"),
    Attempt(scene, "finish_turn", delta("Marlena", "wants", value="me"), "Locked"),
    Attempt(story, "advance_time", {"days": 3}, "Locked"),
    Attempt(story, "finish_turn", delta("Marlena", "disposition", value="kind"), "Locked"),
    Attempt(scene, "finish_turn", delta("Jake", "locked", value="none"), "can't be changed"),
    Attempt(scene, "finish_turn", delta("Jake", "attributes", value="x"), "can't be changed"),
    Attempt(scene, "finish_turn", delta("Jake", "play", value="x"), "can't be changed"),
    Attempt(scene, "finish_turn", delta("Jake", "name", value="Bob"), "can't be changed"),
    Attempt(scene, "finish_turn", delta("Jake", "audience", value="gm"), "can't be changed"),
    Attempt(scene, "finish_turn", delta("Jake", "trauma", how="remove", value="cold"), "can't be"),
    Attempt(scene, "finish_turn", delta("world", "heat", amount=0), "There is no 'world'"),
    Attempt(dungeon, "finish_turn", delta("Jake", "hp", how="add", amount=9), "can't be changed"),
    # Items of another campaign, and numbers out of bounds.
    Attempt(scene, "finish_turn", delta(str(ELSEWHERE), "status", value="x"), "There is no"),
    Attempt(scene, "finish_turn", delta("Marlena", "location", value="Mars"), "There is no"),
    Attempt(scene, "finish_turn", clock("The Tide"), "is done"),
    Attempt(scene, "finish_turn", clock("The Watch", 10**9), "<= 8"),
    Attempt(scene, "finish_turn", delta("Jake", "coin", how="remove", amount=9), "from 0 to"),
    Attempt(scene, "finish_turn", delta("Jake", "inventory", value="all"), "use add or remove"),
    Attempt(
        scene,
        "finish_turn",
        {"deltas": {"facts": [{"text": "x", "about": str(ELSEWHERE)}]}},
        "There is no",
    ),
    Attempt(story, "tick_clock", {"clock": "The Watch", "segments": 99}, "<= 8"),
    Attempt(story, "advance_time", {"days": -1}, ">= 0"),
    Attempt(dungeon, "damage", {"target": "Jake", "damage": "9**9"}, "Write dice"),
    Attempt(dungeon, "finish_turn", delta("Jake", "gold", how="remove", amount=6), "from 0 to"),
    # Arguments that cannot be read.
    Attempt(scene, "engage", {}, "can't be read: line 1", "line 1"),
    Attempt(scene, "engage", {"domain": ["social"]}, "domain"),
    Attempt(scene, "finish_turn", {"deltas": "everything"}, "Expected `object`"),
    Attempt(scene, "finish_turn", {"suggested_actions": ["go"] * 99}, "length <= 6"),
    Attempt(scene, "finish_turn", {"cost": "x" * 5_000}, "length <= 1000"),
    Attempt(scene, "finish_turn", {"win": True}, "unknown field `win`"),
    Attempt(scene, "think_as_dm", {"thoughts": 7.5}, "Expected `str`"),
]


@pytest.mark.parametrize("number", range(len(ATTEMPTS)))
async def test_a_forbidden_call_changes_nothing(number: int) -> None:
    attempt = ATTEMPTS[number]
    table = await attempt.begin()
    before = said(table)
    call = ToolCall("1", attempt.name, attempt.arguments, problem=attempt.problem)
    result = await table.use(call)
    assert result.kind in {"answer", "end"}
    assert attempt.told in result.result["error"]
    assert result.events == []
    assert said(table) == before


async def test_a_hundred_calls_are_twelve() -> None:
    table = crew()
    results = [(await use(table, "think_as_dm", thoughts="Hm.")).result for _ in range(100)]
    assert results[:12] == [{"ok": True}] * 12
    assert all("no more calls" in result["error"] for result in results[12:])
    assert table.ledger == []


async def test_a_hundred_breaks_are_three() -> None:
    table = crew()
    kinds = [(await use(table, "accept")).kind for _ in range(100)]
    assert kinds.count("break") == 3
    assert table.play.mood == "scene"


async def test_calls_after_the_end_are_dropped() -> None:
    table = crew()
    await use(table, "finish_turn", cost="A witness")
    before = said(table)
    for _ in range(20):
        assert (await use(table, "finish_turn", cost="Another")).kind == "end"
    assert said(table) == before


async def test_a_call_that_fails_amid_its_changes_changes_nothing() -> None:
    table = crew()
    before = said(table)
    changes = [
        {"item": "Jake", "field": "inventory", "how": "add", "value": "a crown"},
        {"item": "The Watch", "field": "filled", "amount": 0},
    ]
    asked = {"cost": "x", "deltas": {"changes": changes, "clocks": [{"clock": "The Watch"}]}}
    assert "can't be changed" in (await use(table, "finish_turn", **asked)).result["error"]
    assert said(table) == before
    assert table.get(WATCH)["filled"] == 3


def said(table: Table) -> bytes:
    """The state of a table without its number of calls."""
    return msgspec.json.encode(msgspec.structs.replace(table.state, calls=0))
