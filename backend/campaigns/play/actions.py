"""Risky actions: position and effect first, then outcomes, then the player's die, then its price.

What each outcome costs is committed to before a die is chosen. The die fixes which outcome it is,
and that fixes the aftermath; a model that says otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Literal, cast
from uuid import UUID

import msgspec
from msgspec import Meta

from backend.campaigns.ledger.changes import Operations
from backend.campaigns.ledger.items import Clock, Entity
from backend.campaigns.play.echoes import add_echo
from backend.campaigns.play.references import get_name
from backend.campaigns.play.story_tools import Short
from backend.campaigns.play.table import Table
from backend.campaigns.rules.attributes import get_attributes, get_number, read_mapping
from backend.campaigns.rules.blades import (
    MAX_STRESS,
    POOL,
    TIERS,
    ActionCost,
    CommittedOutcome,
    Tier,
    add_stress,
    pay,
    render_cost,
    srd_tier,
    tier_of,
)
from backend.campaigns.rules.protocol import PlayTool, ToolOutcome, ToolRefusedError
from backend.campaigns.rules.state import Option, PlayState
from backend.errors import ValidationError

POOL_SIZE = 4
PUSH = 2
"""The stress of pushing oneself for one more die."""

MAX_RATING = 4

Domain = Literal["infiltration", "social", "violence", "pursuit", "arcane"]
Position = Literal["controlled", "risky", "desperate"]
Effect = Literal["limited", "standard", "great"]
Variant = Literal["encounter", "opportunity", "discovery"]


class Engage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The player attempts something risky: fix how dangerous it is, and what it can achieve."""

    domain: Domain
    position: Annotated[Position, Meta(description="How bad it is if it goes wrong.")]
    effect: Annotated[Effect, Meta(description="How much it achieves if it goes well.")]
    stakes: Annotated[str, Meta(min_length=1, max_length=1_000, description="What may be lost.")]
    character: Annotated[str, Meta(max_length=200, description="Who attempts it.")] = ""
    clock: Annotated[
        str, Meta(max_length=200, description="What draws nearer: begins where there is none yet.")
    ] = ""


class OutcomeOf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens at one tier."""

    tier: Tier
    hint: Annotated[
        str, Meta(min_length=1, max_length=300, description="In a few words, for the player.")
    ]
    costs: Annotated[
        list[ActionCost],
        Meta(max_length=5, description="Of partial and bad at least one; else none."),
    ] = []
    narrative: Annotated[Short, Meta(description="What you will tell then.")] = ""


class SpendDie(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Commit to an outcome for every tier, and let the player choose a die. It can't be changed."""

    situation: Annotated[str, Meta(min_length=1, max_length=1_000)]
    outcomes: Annotated[list[OutcomeOf], Meta(min_length=1, max_length=len(TIERS))]


class Resolve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Go on to the aftermath that the die has fixed; or `withdrawn`, if no die was spent."""

    tier: Literal["critical", "success", "partial", "bad", "withdrawn"]
    outcome: Annotated[Short, Meta(description="The hint that was committed to.")] = ""


class Accept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing is risky now, or what came of it is told: go on with the scene."""

    variant: Variant = "encounter"


def engage(table: Table, asked: Engage) -> ToolOutcome:
    """Fix position and effect, and go into the action."""
    if not table.players:
        # A campaign can be played before its user has added a character.
        table.create(Entity(kind="pc", name=asked.character.strip() or "You"))
    name = table.get(_player(table, asked.character))["name"]
    clocks = {get_name(state).casefold() for state in table.of_kind("clock").values()}
    if (clock := asked.clock.strip()) and clock.casefold() not in clocks:
        table.create(Clock(name=clock))
    if table.state.dice == "pool" and not table.pool:
        fill_pool(table)
    table.turn_to(
        "action",
        variant=asked.position,
        character=name,
        domain=asked.domain,
        position=asked.position,
        effect=asked.effect,
        stakes=asked.stakes,
    )
    summary = f"{name}: {asked.domain}, {asked.position}, {asked.effect} effect"
    return ToolOutcome(kind="break", result={"mood": "action"}, summary=summary)


def fill_pool(table: Table) -> None:
    """Roll a new pool of dice."""
    dice = sorted(table.roll(POOL_SIZE), reverse=True)
    table.change(table.state.campaign_id, Operations(set={f"attributes.{POOL}": dice}))


def spend_die(table: Table, asked: SpendDie) -> ToolOutcome:
    """Commit to outcomes, and wait for the player's die."""
    play = table.play
    if play.tier:
        raise ToolRefusedError(f"A die is spent: it is {play.tier}. Call resolve.")
    outcomes: dict[Tier, OutcomeOf] = {each.tier: each for each in asked.outcomes}
    if len(outcomes) < len(asked.outcomes):
        raise ToolRefusedError("Each tier has one outcome.")
    player_id = _player(table, play.character)
    rating = _rating(table, player_id)
    _check_outcomes(table, outcomes, _possible_tiers(table, rating), player_id)
    table.state.committed = [
        CommittedOutcome(
            tier=tier,
            hint=each.hint,
            narrative=each.narrative,
            costs=[msgspec.to_builtins(cost) for cost in each.costs],
        )
        for tier in TIERS
        if (each := outcomes.get(tier))
    ]
    if table.state.dice == "pool":
        with _tried(table):
            _spend(table, table.pool[0])
        options = [
            Option(id="", label=str(die), die=die, detail=_detail(outcomes[tier_of(die)]))
            for die in sorted(set(table.pool), reverse=True)
        ]
    else:
        every = " / ".join(_detail(outcomes[tier]) for tier in TIERS if tier in outcomes)
        options = [Option(id="", label=_dice(rating), detail=every)]
        if _may_push(table, player_id):
            label = f"{_dice(rating + 1)}, for {PUSH} stress"
            options.append(Option(id="", label=label, detail=every))
    return table.wait("spend_die", "die", asked.situation, options)


def die_chosen(table: Table, index: int) -> dict[str, Any]:
    """The die fixes the outcome, and the outcome's costs are paid."""
    waiting, play = table.waiting, table.play
    assert waiting is not None  # noqa: S101  # the table has checked it
    player_id = _player(table, play.character)
    if table.state.dice == "pool":
        dice = [waiting.options[index].die]
        die, tier = dice[0], tier_of(dice[0])
        _spend(table, die)
    else:
        rating = _rating(table, player_id) + index
        if index:
            add_stress(table, player_id, PUSH)
        dice = table.roll(rating or 2)
        die, tier = srd_tier(dice, none=rating == 0)
    fixed = next(each for each in table.state.committed if each.tier == tier)
    costs = [msgspec.convert(cost, ActionCost) for cost in fixed.costs]
    for cost in costs:
        pay(table, cost, player_id)
    if costs:
        add_echo(table, "cost", f"{fixed.hint} ({', '.join(map(render_cost, costs))})")
    table.state.die = die
    table.state.play = msgspec.structs.replace(play, tier=tier, outcome=fixed.hint, die=die)
    return {
        "dice": dice,
        "die": die,
        "tier": tier,
        "outcome": fixed.hint,
        "narrative": fixed.narrative,
        "paid": [render_cost(cost) for cost in costs],
        "aftermath": aftermath_of(tier, play.position),
        "next": f"Call resolve with tier {tier}.",
    }


def resolve(table: Table, asked: Resolve) -> ToolOutcome:
    """Go into the aftermath of what the die has fixed."""
    play = table.play
    if not play.tier:
        if asked.tier != "withdrawn":
            raise ToolRefusedError("No die is spent yet: call spend_die first.")
        table.turn_to("scene", variant="encounter")
        return ToolOutcome(kind="break", result={"mood": "scene"}, summary="Gives it up")
    if asked.tier != play.tier:
        raise ToolRefusedError(f"The die has fixed {play.tier} ({play.outcome}), not {asked.tier}.")
    if asked.outcome and asked.outcome.strip().casefold() != play.outcome.strip().casefold():
        raise ToolRefusedError(f"The outcome that was committed to is: {play.outcome}.")
    _go_to_aftermath(table)
    summary = f"{play.tier}: {table.play.variant}"
    return ToolOutcome(kind="break", result={"mood": "aftermath"}, summary=summary)


def _go_to_aftermath(table: Table) -> None:
    play = table.play
    variant = aftermath_of(cast("Tier", play.tier), play.position)
    table.state.play = msgspec.structs.replace(play, mood="aftermath", variant=variant, turns=0)


def leave_action(table: Table) -> None:
    """Go on to the aftermath that the die has fixed; without a die, give the action up."""
    if table.play.tier:
        _go_to_aftermath(table)
    else:
        table.turn_to("scene", variant="encounter")


def leave_aftermath(table: Table) -> None:
    """Go back to the scene."""
    table.turn_to("scene", variant="encounter")


def accept(table: Table, asked: Accept) -> ToolOutcome:
    """Go on with the scene."""
    table.state.play = PlayState(mood="scene", variant=asked.variant)
    return ToolOutcome(kind="break", result={"mood": "scene"}, summary=f"Goes on: {asked.variant}")


def aftermath_of(tier: Tier, position: str) -> str:
    """The variant of the aftermath that a tier leads to."""
    if tier == "bad":
        return "disaster" if position == "desperate" else "setback"
    return "costly" if tier == "partial" else "clean"


def _player(table: Table, name: str) -> UUID:
    """The character who acts: the one of this name, or the only one there is."""
    if not name:
        there = list(table.players)
        if len(there) == 1:
            return there[0]
        raise ToolRefusedError("Say which `character` acts.")
    return table.references.in_play(name, {"pc"}).id


def _rating(table: Table, player_id: UUID) -> int:
    """How many dice a character has for a roll in the action's domain; 1 where nothing says so."""
    ratings = read_mapping(get_attributes(table.get(player_id)).get("ratings"))
    value = ratings.get(table.play.domain, 1)
    return min(max(value, 0), MAX_RATING) if isinstance(value, int) else 1


def _possible_tiers(table: Table, rating: int) -> set[Tier]:
    """The tiers that a die can give which the player can choose."""
    if table.state.dice == "pool":
        if not table.pool:
            raise ToolRefusedError("There are no dice left.")
        return {tier_of(die) for die in table.pool}
    # Critical takes two dice, but the player may push for another one.
    return set(TIERS) if rating else set(TIERS) - {"critical"}


def _check_outcomes(
    table: Table, outcomes: dict[Tier, OutcomeOf], needed: set[Tier], player_id: UUID
) -> None:
    """Raise `ToolRefusedError` where a tier is missing, or a cost is none or can't be paid."""
    if missing := [tier for tier in TIERS if tier in needed and tier not in outcomes]:
        shown = f" The player's dice: {table.pool}." if table.state.dice == "pool" else ""
        raise ToolRefusedError(f"These tiers need an outcome too: {', '.join(missing)}.{shown}")
    for tier, each in outcomes.items():
        is_clean = tier in {"critical", "success"}
        if is_clean and each.costs:
            raise ToolRefusedError(f"{tier} costs nothing.")
        if not is_clean and not each.costs:
            raise ToolRefusedError(f"{tier} needs at least one cost.")
        with _tried(table):
            for cost in each.costs:
                pay(table, cost, player_id)


@contextmanager
def _tried(table: Table) -> Generator[None]:
    """Whatever is done within leaves the table as it was."""
    before = table.state.copied()
    try:
        yield
    finally:
        table.state = before


def _may_push(table: Table, player_id: UUID) -> bool:
    """Whether a character can take the stress of another die, and is not broken by it."""
    if get_number(table.get(player_id), "stress") + PUSH >= MAX_STRESS:
        return False
    with _tried(table), suppress(ToolRefusedError, ValidationError):
        add_stress(table, player_id, PUSH)
        return True
    return False


def _spend(table: Table, die: int) -> None:
    """Take a die out of the pool."""
    left = list(table.pool)
    left.remove(die)
    table.change(table.state.campaign_id, Operations(set={f"attributes.{POOL}": left}))


def _detail(outcome: OutcomeOf) -> str:
    costs = ", ".join(render_cost(cost) for cost in outcome.costs)
    said = f"{outcome.tier}: {outcome.hint}"
    return f"{said} ({costs})" if costs else said


def _dice(rating: int) -> str:
    if rating == 0:
        return "Roll two dice, the lower counts"
    return f"Roll {rating} dice" if rating > 1 else "Roll one die"


ENGAGE = PlayTool("engage", Engage, engage)
SPEND_DIE = PlayTool("spend_die", SpendDie, spend_die, die_chosen)
RESOLVE = PlayTool("resolve", Resolve, resolve)
ACCEPT = PlayTool("accept", Accept, accept)
