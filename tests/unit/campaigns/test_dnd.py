"""The twenty-sided die: what the server rolls is what happens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.campaigns.ledger.changes import apply_operations
from backend.campaigns.ledger.items import Entity
from backend.campaigns.play.guidance import render_guidance
from backend.campaigns.play.table import Table
from backend.campaigns.rules.dnd import RULES
from backend.campaigns.rules.state import roll
from backend.errors import ValidationError
from backend.prompts import load_prompts
from tests.support.play import CAMPAIGN, JAKE, MARLENA, SHOP, attributes, table_of, town, use

pytestmark = pytest.mark.anyio

SEEDS = [f"{number:032x}" for number in range(400)]


def fight(seed: str = "", **rat: Any) -> Table:
    jake: dict[str, Any] = {
        "hp": 13,
        "hp_max": 13,
        "ac": 12,
        "level": 5,
        "abilities": {"strength": 16},
    }
    items = town(**jake)
    attributes = {"hp": 7, "hp_max": 7, "ac": 12, **rat}
    items[MARLENA] = Entity(kind="npc", name="Rat", location_id=SHOP, attributes=attributes)
    return table_of(items, "dnd", seed=seed)


def seed_of(die: int) -> str:
    """A seed whose first twenty-sided die is this."""
    return next(seed for seed in SEEDS if roll(seed, 0, 1, sides=20) == [die])


async def swing(table: Table, **more: Any) -> dict[str, Any]:
    await use(table, "start_combat")
    asked = {"attacker": "Jake", "target": "Rat", "ability": "strength", "damage": "1d6+3"}
    result: dict[str, Any] = (await use(table, "attack", **{**asked, **more})).result
    return result


async def test_a_check_has_the_modifiers_of_who_tries() -> None:
    table = fight(seed_of(9))
    asked = {"character": "Jake", "ability": "strength", "dc": 15}
    outcome = await use(table, "ability_check", **asked, proficient=True)
    assert outcome.result == {"die": 9, "bonus": 6, "total": 15, "success": True}
    assert outcome.summary == "Jake, strength: 9+6 = 15 against 15, success"
    rolled = table.ledger[-1].operations.set["attributes.roll"]
    assert rolled == {"seed": table.state.seed, "first": 0, "dice": [9], "sides": [20]}


async def test_however_many_dice_fall_the_last_are_kept() -> None:
    table = fight(hp=10_000, hp_max=10_000)
    for _ in range(12):
        await use(table, "damage", target="Rat", damage="20d6")
    world = table.ledger[-1]
    rolled = world.operations.set["attributes.roll"]
    assert (rolled["first"], len(rolled["dice"])) == (40, 200)
    assert roll(rolled["seed"], 40, 200) == rolled["dice"]
    apply_operations("world", table.world, world.operations)


@pytest.mark.parametrize(("die", "is_hit"), [(1, False), (5, False), (6, True), (20, True)])
async def test_an_attack_meets_armour(die: int, *, is_hit: bool) -> None:
    table = fight(seed_of(die))
    result = await swing(table)
    assert result["hit"] is is_hit
    hp = attributes(table, MARLENA)["hp"]
    assert hp == max(0, 7 - result.get("damage", 0))
    assert (hp == 0) == ("unconscious" in attributes(table, MARLENA).get("conditions", []))


async def test_a_twenty_has_twice_the_dice() -> None:
    table = fight(seed_of(20), hp=100, hp_max=100)
    result = await swing(table, damage="4d6")
    assert [len(each.dice) for each in table.state.rolls] == [1, 8]
    assert attributes(table, MARLENA)["hp"] == 100 - result["damage"]


async def test_a_fight_is_a_mood_and_a_flag() -> None:
    table = fight()
    assert "attack" not in {tool.name for tool in table.list_tools()}
    assert (await use(table, "start_combat", because="It bites")).kind == "break"
    assert table.get(CAMPAIGN)["flags"] == {"combat": True}
    assert "A FIGHT" in render_guidance(table, load_prompts())
    await use(table, "end_combat")
    assert table.get(CAMPAIGN)["flags"] == {"combat": False}


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=12))
async def test_hit_points_stay_within_bounds(steps: list[tuple[bool, int]]) -> None:
    table = fight()
    for is_heal, count in steps:
        name, key = ("heal", "healing") if is_heal else ("damage", "damage")
        await use(table, name, target="Jake", **{key: f"{count}d8-2"})
        jake = attributes(table, JAKE)
        assert 0 <= jake["hp"] <= 13
        assert ("unconscious" in jake.get("conditions", [])) == (jake["hp"] == 0)


async def test_what_cannot_be_is_refused() -> None:
    table = fight()
    for wrong in ("d", "0d6", "99d6", "2d1", "1d6*9", "(1d6)", "1d6+9999"):
        outcome = await use(table, "damage", target="Rat", damage=wrong)
        assert "error" in outcome.result
    ghost = fight()
    await use(ghost, "speak_as_npc", npc="Rat")
    no_points = table_of(town(), "dnd")
    outcome = await use(no_points, "damage", target="Marlena", damage="1d6")
    assert "no hit points" in outcome.result["error"]
    assert no_points.state.changes == []


def test_rules_keep_numbers_in_bounds_that_a_user_sets() -> None:
    jake = {"exists": True, "kind": "pc", "name": "Jake"}
    for wrong in ({"hp": -1}, {"hp": 14, "hp_max": 13}, {"ac": 0}, {"level": 21}, {"gold": -1},
                  {"abilities": {"strength": 31}}, {"abilities": {"luck": 10}}, {"hp": "13"},
                  {"conditions": "prone"}):  # fmt: skip
        with pytest.raises(ValidationError):
            RULES.validate("entity", jake, {**jake, "attributes": wrong})
