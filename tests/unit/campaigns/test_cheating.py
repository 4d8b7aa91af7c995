"""A model that cheats: whatever it calls, nothing changes that it may not change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest

from backend.campaigns.ledger.items import Clock, Entity, Item, World
from backend.campaigns.play.table import Table, enter_downtime
from backend.database.base import new_id
from backend.generation.model import ToolCall
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
    """What a model tries, where, and what it is told."""

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
    # Position and effect are engage's.
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
    # Locked fields, and fields that are not a model's.
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
    # What is not in this campaign, and what is out of bounds.
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
    # What can't be read.
    Attempt(scene, "engage", {}, "can't be read: line 1", "line 1"),
    Attempt(scene, "engage", {"domain": ["social"]}, "domain"),
    Attempt(scene, "finish_turn", {"deltas": "everything"}, "Expected `object`"),
    Attempt(scene, "finish_turn", {"suggested_actions": ["go"] * 99}, "length <= 6"),
    Attempt(scene, "finish_turn", {"cost": "x" * 5_000}, "length <= 1000"),
    Attempt(scene, "finish_turn", {"win": True}, "unknown field `win`"),
    Attempt(scene, "think_as_dm", {"thoughts": 7.5}, "Expected `str`"),
]


@pytest.mark.parametrize("number", range(len(ATTEMPTS)))
async def test_what_a_model_may_not_change_stays(number: int) -> None:
    attempt = ATTEMPTS[number]
    table = await attempt.begin()
    before = said(table)
    call = ToolCall("1", attempt.name, attempt.arguments, problem=attempt.problem)
    result = await table.use(call)
    assert result.kind in {"answer", "end"}
    assert attempt.told in result.result["error"]
    assert result.events == []
    assert said(table) == before


def test_there_are_sixty_of_them() -> None:
    assert len(ATTEMPTS) >= 60


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


async def test_what_follows_the_end_is_dropped() -> None:
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
    """All that a table is, but how often it was called."""
    return msgspec.json.encode(msgspec.structs.replace(table.state, calls=0))
