"""Blades: a risky action from engaging to its aftermath, and numbers within their bounds."""

from __future__ import annotations

import asyncio
from collections import Counter
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.campaigns.ledger.changes import EXISTS, fold
from backend.campaigns.ledger.items import Entity, World
from backend.campaigns.play.guidance import render_guidance
from backend.campaigns.play.table import DowntimeError, Table, enter_downtime, leave_downtime, tick
from backend.campaigns.rules.blades import (
    RULES,
    TRAUMAS,
    add_heat,
    add_stress,
    find_pool_tier,
    find_roll_tier,
    get_pool,
    get_state,
)
from backend.campaigns.rules.dice import new_seed, parse_notation, roll
from backend.errors import ValidationError
from backend.prompts import load_prompts
from tests.support.play import (
    CAMPAIGN,
    JAKE,
    OUTCOMES,
    WATCH,
    attributes,
    choose_die,
    commit_to,
    engage,
    table_of,
    town,
    use,
)

pytestmark = pytest.mark.anyio

POOL = [6, 4, 2, 1]


@pytest.fixture
def table() -> Table:
    return blades(stress=3, coin=1, inventory=["pick"])


def blades(*, dice: str = "pool", pool: list[int] | None = None, **more: Any) -> Table:
    world = {"heat": 1, "dice": POOL if pool is None else pool, **more.pop("world", {})}
    return table_of(town(world=world, **more), "blades", dice=dice)


def folded(table: Table) -> dict[Any, dict[str, Any]]:
    """The items as their changes lead to them, which is what the ledger makes of them."""
    start = town(world={"heat": 1, "dice": POOL}, stress=3, coin=1, inventory=["pick"])
    begun = table_of(start, "blades").state.items
    states = {item_id: held.state for item_id, held in begun.items()}
    kinds = {item_id: held.kind for item_id, held in begun.items()}
    for change in table.ledger:
        kinds.setdefault(change.item_id, change.kind)
        before = states.get(change.item_id, {})
        states[change.item_id] = fold(change.kind, [change.operations], before)
    return states


async def test_a_partial_success_costs_what_was_committed_to(table: Table) -> None:
    outcome = await engage(table)
    assert outcome.kind == "break"
    assert outcome.events[1] == (
        "mood.changed",
        {"mood": "action", "variant": "risky", "position": "risky", "effect": "standard"},
    )
    assert "Position: risky. Effect: standard." in render_guidance(table, load_prompts())
    assert (await commit_to(table)).kind == "wait"
    waiting = table.waiting
    assert waiting is not None
    assert [(each.id, each.die, each.detail) for each in waiting.options] == [
        ("1.0", 6, "critical: the lock sings"),
        ("1.1", 4, "success: it opens"),
        ("1.2", 2, "partial: it opens, loudly (2 stress, The Watch +1)"),
        ("1.3", 1, "bad: the pick snaps (2 heat)"),
    ]
    again = Table.load(table.save())
    result = choose_die(again, 2)
    assert result["tier"] == "partial"
    assert (get_state(again).play.tier, get_state(again).play.die) == ("partial", 2)
    assert result["aftermath"] == "costly"
    assert attributes(again, JAKE)["stress"] == 5
    assert attributes(again, CAMPAIGN)["dice"] == [6, 4, 1]
    assert again.get(WATCH)["filled"] == 4
    wrong = await use(again, "resolve", tier="success")
    assert "fixed partial" in wrong.result["error"]
    other = await use(again, "resolve", tier="partial", outcome="it opens")
    assert "it opens, loudly" in other.result["error"]
    assert (await use(again, "resolve", tier="partial")).kind == "break"
    assert (again.play.mood, again.play.variant) == ("aftermath", "costly")
    assert "it opens, loudly" in render_guidance(again, load_prompts())
    assert (await use(again, "accept", variant="discovery")).kind == "break"
    assert (again.play.mood, again.play.variant, get_state(again).play.tier) == (
        "scene",
        "discovery",
        "",
    )
    assert [tool.name for tool in again.list_tools()] == ["finish_turn"]
    expected = {item_id: held.state for item_id, held in again.state.items.items()}
    found = folded(again)
    found[CAMPAIGN]["attributes"].pop("play")
    assert found == expected


@pytest.mark.parametrize(
    ("die", "position", "variant"),
    [
        (6, "risky", "clean"),
        (4, "controlled", "clean"),
        (2, "desperate", "costly"),
        (1, "controlled", "setback"),
        (1, "risky", "setback"),
        (1, "desperate", "disaster"),
    ],
)
async def test_the_die_and_the_position_fix_the_aftermath(
    table: Table, die: int, position: str, variant: str
) -> None:
    await engage(table, position=position)
    await commit_to(table)
    tier = choose_die(table, die)["tier"]
    await use(table, "resolve", tier=tier)
    assert table.play.variant == variant


async def test_every_tier_that_a_visible_die_can_give_needs_an_outcome(table: Table) -> None:
    await engage(table)
    outcome = await commit_to(table, [each for each in OUTCOMES if each["tier"] != "partial"])
    assert "These tiers need an outcome too: partial." in outcome.result["error"]
    few = blades(pool=[5, 5])
    await engage(few)
    assert (await commit_to(few, [OUTCOMES[1]])).kind == "wait"
    assert few.waiting is not None
    assert [each.die for each in few.waiting.options] == [5]


async def test_an_empty_pool_is_rolled_anew_from_a_seed_that_is_kept() -> None:
    table = blades(pool=[])
    await engage(table)
    rolled = table.ledger[-1].operations.set["attributes.roll"]
    dice = roll(rolled["seed"], 0, 4)
    assert rolled["dice"] == dice
    assert get_pool(table) == sorted(dice, reverse=True)


async def test_a_turn_that_ends_amid_an_action_goes_on_with_it(table: Table) -> None:
    await engage(table)
    await commit_to(table)
    choose_die(table, 1)
    await use(table, "finish_turn")
    world = folded(table)[CAMPAIGN]
    fields = {key: value for key, value in world.items() if key != EXISTS}
    following = table_of({**town(), CAMPAIGN: World(**fields)}, "blades")
    assert get_state(following).play.tier == "bad"
    assert "A die is spent" in (await commit_to(following)).result["error"]
    assert (await use(following, "resolve", tier="bad")).kind == "break"
    assert following.play.variant == "setback"


async def test_an_action_can_be_given_up_before_a_die_is_spent(table: Table) -> None:
    await engage(table)
    assert (await use(table, "resolve", tier="withdrawn")).kind == "break"
    assert table.play.mood == "scene"


async def test_an_action_is_not_given_up_after_a_die_is_spent(table: Table) -> None:
    await engage(table)
    await commit_to(table)
    choose_die(table, 6)
    assert "fixed critical" in (await use(table, "resolve", tier="withdrawn")).result["error"]


async def test_the_roll_of_the_srd_offers_to_push() -> None:
    table = blades(dice="srd", stress=3, ratings={"infiltration": 2})
    await engage(table)
    await commit_to(table)
    waiting = table.waiting
    assert waiting is not None
    assert [each.label for each in waiting.options] == ["Roll 2 dice", "Roll 3 dice, for 2 stress"]
    result = table.choose("1.1")
    assert len(result["dice"]) == 3
    assert result["tier"] == find_roll_tier(result["dice"])[1]
    assert attributes(table, JAKE)["stress"] >= 5


@given(st.lists(st.integers(1, 6), max_size=40), st.integers(0, 8))
def test_stress_stays_below_nine_and_each_ninth_is_a_trauma(gains: list[int], start: int) -> None:
    table = blades(stress=start)
    total = start
    for gain in gains:
        add_stress(table, JAKE, gain)
        total = 0 if total + gain >= 9 else total + gain
        assert attributes(table, JAKE)["stress"] == total
    traumas = attributes(table, JAKE).get("trauma", [])
    assert len(set(traumas)) == len(traumas)
    assert set(TRAUMAS[: len(traumas)]) <= set(traumas)


@given(st.lists(st.integers(1, 6), max_size=40))
def test_heat_that_overflows_makes_wanted_up_to_four(gains: list[int]) -> None:
    table = blades(world={"heat": 0})
    for gain in gains:
        before = attributes(table, CAMPAIGN)
        add_heat(table, gain)
        after = attributes(table, CAMPAIGN)
        assert 0 <= after["heat"] <= 9
        assert before.get("wanted", 0) <= after.get("wanted", 0) <= 4
        if after.get("wanted", 0) < 4:
            held = before["heat"] + 9 * before.get("wanted", 0) + gain
            assert after["heat"] + 9 * after.get("wanted", 0) == held


@given(st.lists(st.integers(-8, 8), max_size=20))
def test_a_clock_never_leaves_its_bounds_and_fills_once(ticks: list[int]) -> None:
    table = blades()
    for segments in ticks:
        if table.get(WATCH)["filled"] == 4:
            break
        tick(table, WATCH, segments)
        assert 0 <= table.get(WATCH)["filled"] <= 4
    assert len(table.happened) == (table.get(WATCH)["filled"] == 4)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 4))
def test_precarity_has_four_bands(stress: int, heat: int, wanted: int) -> None:
    player = Entity(kind="pc", name="Jake", attributes={"stress": stress})
    world = World(attributes={"heat": heat, "wanted": wanted})
    found = RULES.precarity([player], world)
    score = stress + heat + 2 * wanted
    assert found["score"] == score
    bands = ["operating from strength", "room to manoeuvre", "walls closing in"]
    assert found["label"] == (bands[score // 5] if score < 15 else "hanging by a thread")


def test_dice_of_the_srd_fall_as_often_as_they_should() -> None:
    for count in (1, 2, 3):
        rolls = Counter(find_roll_tier(dice)[1] for dice in product(range(1, 7), repeat=count))
        assert Fraction(rolls["bad"], 6**count) == Fraction(1, 2) ** count
        sixes = Fraction(5**count + count * 5 ** (count - 1), 6**count)
        assert Fraction(rolls["critical"], 6**count) == 1 - sixes
    none = Counter(find_roll_tier(dice, none=True)[1] for dice in product(range(1, 7), repeat=2))
    assert none == {"bad": 27, "partial": 8, "success": 1}
    assert [find_pool_tier(die) for die in range(1, 7)] == [
        "bad", "partial", "partial", "success", "success", "critical",
    ]  # fmt: skip


@given(st.integers(2, 100), st.integers(1, 30))
def test_a_seed_always_gives_the_same_dice(sides: int, count: int) -> None:
    seed = new_seed()
    dice = roll(seed, 0, count, sides=sides)
    assert all(1 <= die <= sides for die in dice)
    assert roll(seed, 3, count, sides=sides)[: max(0, count - 3)] == dice[3:]


def test_dice_are_fair() -> None:
    seen = Counter(roll("00" * 16, 0, 60_000))
    assert all(abs(seen[die] - 10_000) < 500 for die in range(1, 7))


@given(st.text(max_size=20))
def test_notation_is_read_or_refused(text: str) -> None:
    try:
        count, sides, more = parse_notation(text)
    except ValidationError:
        return
    assert 1 <= count <= 20
    assert 2 <= sides <= 100
    assert -999 <= more <= 999


@pytest.mark.parametrize("activity", ["recovery", "entanglement"])
def test_downtime_is_entered_and_left(activity: str) -> None:
    table = blades(stress=7, harm=["a broken rib"], world={"heat": 7, "wanted": 1})
    result = enter_downtime(table, activity)
    assert table.play.mood == "downtime"
    assert result["entanglement"] in [state["text"] for state in table.list_items("echo").values()]
    if activity == "recovery":
        assert attributes(table, JAKE)["stress"] == 7 - result["die"]
        assert attributes(table, JAKE)["harm"] == []
    else:
        assert attributes(table, CAMPAIGN)["heat"] == 7 - result["die"]
    with pytest.raises(DowntimeError):
        enter_downtime(table, activity)
    leave_downtime(table)
    assert table.play.mood == "scene"
    with pytest.raises(DowntimeError):
        leave_downtime(table)


def test_a_project_fills_its_clock() -> None:
    table = blades()
    with pytest.raises(ValidationError, match="There is no"):
        enter_downtime(table, "project", "the Wotch Tower")
    assert enter_downtime(table, "project", "The Watch")["filled"] == "4/4"
    with pytest.raises(ValidationError, match="must be one of"):
        enter_downtime(blades(), "holiday")


def test_downtime_does_not_begin_amid_an_action(table: Table) -> None:
    asyncio.run(engage(table))
    with pytest.raises(DowntimeError):
        enter_downtime(table, "recovery")


def test_rules_keep_numbers_in_bounds_that_a_user_sets() -> None:
    player = {"exists": True, "kind": "pc", "name": "Jake"}
    for wrong in ({"stress": 10}, {"stress": "much"}, {"coin": -1}, {"trauma": "cold"},
                  {"ratings": {"social": 5}}, {"ratings": 3}, {"harm": [1]}):  # fmt: skip
        with pytest.raises(ValidationError):
            RULES.validate("entity", player, {**player, "attributes": wrong})
        RULES.validate("entity", {**player, "attributes": wrong}, {**player, "attributes": wrong})
    for wrong in ({"heat": 10}, {"wanted": 5}, {"dice": [7]}, {"dice": 3}, {"dice": [1] * 5}):
        with pytest.raises(ValidationError):
            RULES.validate("world", {}, {"attributes": wrong})
