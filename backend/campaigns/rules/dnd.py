"""Rules in the manner of the game with a twenty-sided die: checks, attacks, hit points, combat.

The server rolls every die. The rules' text is our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args
from uuid import UUID

import msgspec
from msgspec import Meta

from backend.campaigns.ledger.changes import Operations, State
from backend.campaigns.ledger.items import Entity, Kind, World
from backend.campaigns.play.attributes import (
    attributes_of,
    check_number,
    check_numbers,
    check_texts,
    members,
    number,
    texts,
)
from backend.campaigns.play.deltas import Named, Short
from backend.campaigns.play.dice import parse_notation
from backend.campaigns.play.references import called
from backend.campaigns.play.story_tools import (
    ADVANCE_TIME,
    ASK,
    FINISH_TURN,
    SET_SCENE,
    SPEAK,
    THINK,
    TICK_CLOCK,
)
from backend.campaigns.play.table import Table
from backend.campaigns.play.tools import Outcome, PlayTool, ToolRefusedError, answer
from backend.campaigns.rules import AttributeType, Mood, Rules
from backend.campaigns.state.state_block import player_line
from backend.errors import ValidationError

MAX_HP = 10_000
MAX_AC = 40
MAX_LEVEL = 20
MAX_ABILITY = 30
MAX_GOLD = 10**9
QUIET_TURNS = 3
"""Turns in a row without a roll after which a fight is over."""

USUAL = 10
"""An ability, or an armour class, that nothing is said of."""

D20 = 20

Ability = Literal[
    "strength", "dexterity", "constitution", "intelligence", "wisdom", "charisma"
]  # fmt: skip
Condition = Literal[
    "blinded", "charmed", "deafened", "exhausted", "frightened", "grappled", "incapacitated",
    "invisible", "paralysed", "petrified", "poisoned", "prone", "restrained", "stunned",
    "unconscious",
]  # fmt: skip
Edge = Annotated[
    Literal["none", "advantage", "disadvantage"],
    Meta(description="Two dice: the better, or worse."),
]
Who = Annotated[Named, Meta(description="A player's character, or somebody who is here.")]
Dice = Annotated[str, Meta(min_length=2, max_length=12, description="Such as 2d6+3.")]


class AbilityCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Somebody tries what may fail: the server rolls a check against a difficulty."""

    character: Who
    ability: Ability
    dc: Annotated[int, Meta(ge=1, le=40, description="5 easy, 10 fair, 15 hard, 20 very hard.")]
    proficient: bool = False
    edge: Edge = "none"
    because: Short = ""


class Attack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Somebody attacks: the server rolls against armour class, and takes the damage off."""

    attacker: Who
    target: Who
    ability: Ability
    damage: Dice
    edge: Edge = "none"


class Harm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Damage without an attack, a fall say: the server rolls it, and takes it off."""

    target: Who
    damage: Dice
    because: Short = ""


class Heal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hit points come back: the server rolls how many."""

    target: Who
    healing: Dice
    because: Short = ""


class SetCondition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Somebody comes under a condition, or it ends."""

    target: Who
    condition: Condition
    ends: bool = False


class StartCombat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fight breaks out: what you said is dropped, and the turn goes on as a fight."""

    because: Short = ""


class EndCombat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fight is over: what you said is dropped, and the turn goes on without it."""

    because: Short = ""


def check(table: Table, asked: AbilityCheck) -> Outcome:
    """A check of an ability."""
    who = table.references.in_play(asked.character, _PEOPLE)
    state = table.get(who.id)
    bonus = _modifier(state, asked.ability) + (_proficiency(state) if asked.proficient else 0)
    die = _d20(table, asked.edge)
    total = die + bonus
    is_success = total >= asked.dc
    said = f"{who.name}, {asked.ability}: {die}{bonus:+} = {total} against {asked.dc}"
    result = {"die": die, "bonus": bonus, "total": total, "success": is_success}
    return answer(result, f"{said}, {'success' if is_success else 'failure'}")


def attack(table: Table, asked: Attack) -> Outcome:
    """An attack, and its damage: a 20 always hits, with twice the dice; a 1 never does."""
    attacker = table.references.in_play(asked.attacker, _PEOPLE)
    target = table.references.in_play(asked.target, _PEOPLE)
    count, sides, more = parse_notation(asked.damage)
    state = table.get(attacker.id)
    bonus = _modifier(state, asked.ability) + _proficiency(state)
    die = _d20(table, asked.edge)
    armour = number(table.get(target.id), "ac", USUAL)
    is_hit = die == D20 or (die > 1 and die + bonus >= armour)
    said = f"{attacker.name} attacks {target.name}: {die}{bonus:+} against {armour}"
    result: dict[str, Any] = {"die": die, "bonus": bonus, "ac": armour, "hit": is_hit}
    if not is_hit:
        return answer(result, f"{said}, a miss")
    dice = table.roll(2 * count if die == D20 else count, sides=sides)
    damage = max(0, sum(dice) + more)
    result |= {"damage": damage, **_lose(table, target.id, damage)}
    return answer(result, f"{said}, a hit for {damage}")


def harm(table: Table, asked: Harm) -> Outcome:
    """Damage without an attack."""
    target = table.references.in_play(asked.target, _PEOPLE)
    damage = max(0, _rolled(table, asked.damage))
    result = {"damage": damage, **_lose(table, target.id, damage)}
    return answer(result, f"{target.name} takes {damage}")


def heal(table: Table, asked: Heal) -> Outcome:
    """Hit points come back, up to the most that there are."""
    target = table.references.in_play(asked.target, _PEOPLE)
    state = table.get(target.id)
    _has_points(state)
    healing = max(0, _rolled(table, asked.healing))
    if "hp_max" in attributes_of(state):
        healing = min(healing, max(0, number(state, "hp_max") - number(state, "hp")))
    operations = Operations()
    if healing:
        operations.add["attributes.hp"] = healing
        if number(state, "hp") == 0 and "unconscious" in texts(state, "conditions"):
            operations.remove["attributes.conditions"] = ["unconscious"]
        state = table.change(target.id, operations)
    result = {"healed": healing, "hp": number(state, "hp")}
    return answer(result, f"{target.name} regains {healing}")


def set_condition(table: Table, asked: SetCondition) -> Outcome:
    """A condition begins or ends."""
    target = table.references.in_play(asked.target, _PEOPLE)
    named = {"attributes.conditions": [asked.condition]}
    after = table.change(
        target.id, Operations(remove=named) if asked.ends else Operations(add=named)
    )
    summary = f"{target.name} is {'no longer ' if asked.ends else ''}{asked.condition}"
    return answer({"conditions": texts(after, "conditions")}, summary)


def start_combat(table: Table, asked: StartCombat) -> Outcome:
    """Into a fight."""
    return _fight(table, "combat", asked.because or "A fight")


def end_combat(table: Table, asked: EndCombat) -> Outcome:
    """Out of it."""
    return _fight(table, "explore", asked.because or "The fight is over")


def leave_fight(table: Table) -> None:
    """End a fight without a roll."""
    _fight(table, "explore", "The fight is over")


def _fight(table: Table, mood: str, summary: str) -> Outcome:
    table.change(table.state.campaign_id, Operations(set={"flags.combat": mood == "combat"}))
    table.turn_to(mood)
    return Outcome(kind="break", result={"mood": mood}, summary=summary)


def _d20(table: Table, edge: str) -> int:
    dice = table.roll(1 if edge == "none" else 2, sides=D20)
    return min(dice) if edge == "disadvantage" else max(dice)


def _rolled(table: Table, notation: str) -> int:
    count, sides, more = parse_notation(notation)
    return sum(table.roll(count, sides=sides)) + more


def _modifier(state: State, ability: str) -> int:
    score = members(attributes_of(state).get("abilities")).get(ability, USUAL)
    return (score - USUAL) // 2 if isinstance(score, int) else 0


def _proficiency(state: State) -> int:
    return 2 + (max(1, number(state, "level", 1)) - 1) // 4


def _has_points(state: State) -> None:
    value = attributes_of(state).get("hp")
    if not isinstance(value, int) or isinstance(value, bool):
        raise ToolRefusedError(f"{called(state)} has no hit points that are counted.")


def _lose(table: Table, target_id: UUID, damage: int) -> dict[str, Any]:
    """Take hit points off; at none, somebody is unconscious."""
    state = table.get(target_id)
    _has_points(state)
    lost = min(damage, number(state, "hp"))
    operations = Operations()
    if lost:
        operations.remove["attributes.hp"] = lost
        if lost == number(state, "hp"):
            operations.add["attributes.conditions"] = ["unconscious"]
        state = table.change(target_id, operations)
    return {"hp": number(state, "hp"), "conditions": texts(state, "conditions")}


_PEOPLE = ("pc", "npc")
CHECK = PlayTool("ability_check", AbilityCheck, check, is_private=True)
ATTACK = PlayTool("attack", Attack, attack)
HARM = PlayTool("damage", Harm, harm)
HEAL = PlayTool("heal", Heal, heal)
SET_CONDITION = PlayTool("set_condition", SetCondition, set_condition)
START_COMBAT = PlayTool("start_combat", StartCombat, start_combat)
END_COMBAT = PlayTool("end_combat", EndCombat, end_combat)

_MOODS = {
    "explore": Mood("explore", needs_calls=True),
    "combat": Mood(
        "combat", is_unsettled=True, needs_calls=True, leave=leave_fight, max_turns=QUIET_TURNS
    ),
}
_DICE = (CHECK, HARM, HEAL, SET_CONDITION)
_TOOLS: Mapping[str, Sequence[PlayTool]] = {
    "explore": (
        THINK, SPEAK, ASK, SET_SCENE, ADVANCE_TIME, TICK_CLOCK, *_DICE, START_COMBAT, FINISH_TURN,
    ),
    "combat": (THINK, SPEAK, ASK, TICK_CLOCK, *_DICE, ATTACK, END_COMBAT, FINISH_TURN),
}  # fmt: skip


class Dnd(Rules):
    """Abilities, armour class, hit points, and fights."""

    def schema(self, kind: Kind) -> dict[str, Any]:
        """Hit points, armour class, level, abilities, conditions and gold of people."""
        if kind != "entity":
            return {"type": "object", "title": f"Attributes of a {kind}"}
        ability = {"type": "integer", "minimum": 1, "maximum": MAX_ABILITY}
        return {
            "type": "object",
            "title": "Attributes of an entity",
            "properties": {
                "class": {"type": "string"},
                "level": {"type": "integer", "minimum": 1, "maximum": MAX_LEVEL},
                "hp": {"type": "integer", "minimum": 0, "maximum": MAX_HP},
                "hp_max": {"type": "integer", "minimum": 1, "maximum": MAX_HP},
                "ac": {"type": "integer", "minimum": 1, "maximum": MAX_AC},
                "gold": {"type": "integer", "minimum": 0, "maximum": MAX_GOLD},
                "abilities": {
                    "type": "object",
                    "properties": dict.fromkeys(get_args(Ability), ability),
                },
                "conditions": {"type": "array", "items": {"type": "string"}},
                "inventory": {"type": "array", "items": {"type": "string"}},
            },
        }

    def validate(self, kind: Kind, before: State, after: State) -> None:
        """Keep the numbers within their bounds."""
        if kind != "entity":
            return
        check_number(before, after, "hp_max", 1, MAX_HP)
        check_number(before, after, "hp", 0, number(after, "hp_max", MAX_HP))
        check_number(before, after, "ac", 1, MAX_AC)
        check_number(before, after, "level", 1, MAX_LEVEL)
        check_number(before, after, "gold", 0, MAX_GOLD)
        check_numbers(before, after, "abilities", 1, MAX_ABILITY)
        check_texts(before, after, "conditions")
        if unknown := members(attributes_of(after).get("abilities")).keys() - {*get_args(Ability)}:
            raise ValidationError(f"`attributes.abilities`: unknown ability {min(unknown)[:50]}.")

    def changeable(self, kind: Kind, state: State) -> Mapping[str, AttributeType]:
        """What players carry. Hit points and conditions change by tools of their own."""
        is_player = kind == "entity" and state["kind"] == "pc"
        return {"inventory": "list", "gold": "number"} if is_player else {}

    def moods(self) -> Mapping[str, Mood]:
        """Exploring, and fighting."""
        return _MOODS

    def tools(self, mood: str) -> Sequence[PlayTool]:
        """The mood's own."""
        return _TOOLS[mood]

    def precarity(self, players: Sequence[Entity], world: World) -> dict[str, Any] | None:
        """Nothing but hit points, which are shown."""
        del players, world
        return None

    def light_line(self, player: Entity) -> str:
        """Name and hit points."""
        return player_line(player)

    def spend_downtime(self, table: Table, activity: str, target: str) -> dict[str, Any]:
        """There is no downtime."""
        del table, target
        raise ValidationError(f"Unknown activity {activity}.")


RULES = Dnd()
