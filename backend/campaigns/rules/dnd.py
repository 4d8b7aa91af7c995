"""Rules with a twenty-sided die: checks, attacks, hit points, combat.

The server rolls every die. The rules' text is our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args
from uuid import UUID

import msgspec
from msgspec import Meta

from backend.campaigns.ledger.changes import Operations, State
from backend.campaigns.ledger.items import Kind
from backend.campaigns.play.references import get_name
from backend.campaigns.play.story_tools import (
    ADVANCE_TIME,
    ASK,
    FINISH_TURN,
    SET_SCENE,
    SPEAK,
    THINK,
    TICK_CLOCK,
    Named,
    Short,
)
from backend.campaigns.play.table import Table
from backend.campaigns.rules.protocol import (
    AttributeType,
    Mood,
    PlayTool,
    RuleSystem,
    ToolOutcome,
    ToolRefusedError,
    make_answer,
)
from backend.campaigns.rules.state import (
    check_number,
    check_numbers,
    check_texts,
    get_attributes,
    get_number,
    get_texts,
    parse_notation,
    read_mapping,
)
from backend.errors import ValidationError

MAX_HP = 10_000
MAX_AC = 40
MAX_LEVEL = 20
MAX_ABILITY = 30
MAX_GOLD = 10**9
QUIET_TURNS = 3
"""Turns in a row without a roll after which a fight is over."""

DEFAULT_SCORE = 10
"""Default of abilities and armour class."""

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
    """A character tries something that may fail: the server rolls a check against a difficulty."""

    character: Who
    ability: Ability
    dc: Annotated[int, Meta(ge=1, le=40, description="5 easy, 10 fair, 15 hard, 20 very hard.")]
    proficient: bool = False
    edge: Edge = "none"
    because: Short = ""


class Attack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A character attacks: the server rolls against armour class, and subtracts the damage."""

    attacker: Who
    target: Who
    ability: Ability
    damage: Dice
    edge: Edge = "none"


class Harm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Damage without an attack, for example a fall: the server rolls and subtracts it."""

    target: Who
    damage: Dice
    because: Short = ""


class Heal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hit points are restored: the server rolls how many."""

    target: Who
    healing: Dice
    because: Short = ""


class SetCondition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Add a condition to a character, or end it."""

    target: Who
    condition: Condition
    ends: bool = False


class StartCombat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fight begins: your text is dropped, and the turn continues as a fight."""

    because: Short = ""


class EndCombat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fight is over: your text is dropped, and the turn continues without it."""

    because: Short = ""


def check(table: Table, asked: AbilityCheck) -> ToolOutcome:
    who = table.references.find_in_play(asked.character, _PEOPLE)
    state = table.get(who.id)
    bonus = _get_modifier(state, asked.ability) + (
        _get_proficiency(state) if asked.proficient else 0
    )
    die = _roll_d20(table, asked.edge)
    total = die + bonus
    is_success = total >= asked.dc
    said = f"{who.name}, {asked.ability}: {die}{bonus:+} = {total} against {asked.dc}"
    result = {"die": die, "bonus": bonus, "total": total, "success": is_success}
    return make_answer(result, f"{said}, {'success' if is_success else 'failure'}")


def attack(table: Table, asked: Attack) -> ToolOutcome:
    """Roll an attack and its damage. A 20 always hits with double dice; a 1 always misses."""
    attacker = table.references.find_in_play(asked.attacker, _PEOPLE)
    target = table.references.find_in_play(asked.target, _PEOPLE)
    count, sides, more = parse_notation(asked.damage)
    state = table.get(attacker.id)
    bonus = _get_modifier(state, asked.ability) + _get_proficiency(state)
    die = _roll_d20(table, asked.edge)
    armour = get_number(table.get(target.id), "ac", DEFAULT_SCORE)
    is_hit = die == D20 or (die > 1 and die + bonus >= armour)
    said = f"{attacker.name} attacks {target.name}: {die}{bonus:+} against {armour}"
    result: dict[str, Any] = {"die": die, "bonus": bonus, "ac": armour, "hit": is_hit}
    if not is_hit:
        return make_answer(result, f"{said}, a miss")
    dice = table.roll(2 * count if die == D20 else count, sides=sides)
    damage = max(0, sum(dice) + more)
    result |= {"damage": damage, **_take_damage(table, target.id, damage)}
    return make_answer(result, f"{said}, a hit for {damage}")


def harm(table: Table, asked: Harm) -> ToolOutcome:
    target = table.references.find_in_play(asked.target, _PEOPLE)
    damage = max(0, _roll(table, asked.damage))
    result = {"damage": damage, **_take_damage(table, target.id, damage)}
    return make_answer(result, f"{target.name} takes {damage}")


def heal(table: Table, asked: Heal) -> ToolOutcome:
    target = table.references.find_in_play(asked.target, _PEOPLE)
    state = table.get(target.id)
    _require_points(state)
    healing = max(0, _roll(table, asked.healing))
    if "hp_max" in get_attributes(state):
        healing = min(healing, max(0, get_number(state, "hp_max") - get_number(state, "hp")))
    operations = Operations()
    if healing:
        operations.add["attributes.hp"] = healing
        if get_number(state, "hp") == 0 and "unconscious" in get_texts(state, "conditions"):
            operations.remove["attributes.conditions"] = ["unconscious"]
        state = table.change(target.id, operations)
    result = {"healed": healing, "hp": get_number(state, "hp")}
    return make_answer(result, f"{target.name} regains {healing}")


def set_condition(table: Table, asked: SetCondition) -> ToolOutcome:
    target = table.references.find_in_play(asked.target, _PEOPLE)
    named = {"attributes.conditions": [asked.condition]}
    after = table.change(
        target.id, Operations(remove=named) if asked.ends else Operations(add=named)
    )
    summary = f"{target.name} is {'no longer ' if asked.ends else ''}{asked.condition}"
    return make_answer({"conditions": get_texts(after, "conditions")}, summary)


def start_combat(table: Table, asked: StartCombat) -> ToolOutcome:
    return _change_mood(table, "combat", asked.because or "A fight")


def end_combat(table: Table, asked: EndCombat) -> ToolOutcome:
    return _change_mood(table, "explore", asked.because or "The fight is over")


def leave_fight(table: Table) -> None:
    _change_mood(table, "explore", "The fight is over")


def _change_mood(table: Table, mood: str, summary: str) -> ToolOutcome:
    table.change(table.state.campaign_id, Operations(set={"flags.combat": mood == "combat"}))
    table.enter_mood(mood)
    return ToolOutcome(kind="break", result={"mood": mood}, summary=summary)


def _roll_d20(table: Table, edge: str) -> int:
    dice = table.roll(1 if edge == "none" else 2, sides=D20)
    return min(dice) if edge == "disadvantage" else max(dice)


def _roll(table: Table, notation: str) -> int:
    count, sides, more = parse_notation(notation)
    return sum(table.roll(count, sides=sides)) + more


def _get_modifier(state: State, ability: str) -> int:
    score = read_mapping(get_attributes(state).get("abilities")).get(ability, DEFAULT_SCORE)
    return (score - DEFAULT_SCORE) // 2 if isinstance(score, int) else 0


def _get_proficiency(state: State) -> int:
    return 2 + (max(1, get_number(state, "level", 1)) - 1) // 4


def _require_points(state: State) -> None:
    value = get_attributes(state).get("hp")
    if not isinstance(value, int) or isinstance(value, bool):
        raise ToolRefusedError(f"{get_name(state)} has no hit points that are counted.")


def _take_damage(table: Table, target_id: UUID, damage: int) -> dict[str, Any]:
    """Remove hit points. At 0, the target is unconscious."""
    state = table.get(target_id)
    _require_points(state)
    lost = min(damage, get_number(state, "hp"))
    operations = Operations()
    if lost:
        operations.remove["attributes.hp"] = lost
        if lost == get_number(state, "hp"):
            operations.add["attributes.conditions"] = ["unconscious"]
        state = table.change(target_id, operations)
    return {"hp": get_number(state, "hp"), "conditions": get_texts(state, "conditions")}


_PEOPLE = ("pc", "npc")
CHECK = PlayTool("ability_check", AbilityCheck, check, is_private=True)
ATTACK = PlayTool("attack", Attack, attack)
HARM = PlayTool("damage", Harm, harm)
HEAL = PlayTool("heal", Heal, heal)
SET_CONDITION = PlayTool("set_condition", SetCondition, set_condition)
START_COMBAT = PlayTool("start_combat", StartCombat, start_combat)
END_COMBAT = PlayTool("end_combat", EndCombat, end_combat)

_COMMON = (CHECK, HARM, HEAL, SET_CONDITION)
_MOODS: Sequence[Mood[Table]] = (
    Mood(
        "explore",
        (
            THINK,
            SPEAK,
            ASK,
            SET_SCENE,
            ADVANCE_TIME,
            TICK_CLOCK,
            *_COMMON,
            START_COMBAT,
            FINISH_TURN,
        ),
        needs_calls=True,
    ),
    Mood(
        "combat",
        (THINK, SPEAK, ASK, TICK_CLOCK, *_COMMON, ATTACK, END_COMBAT, FINISH_TURN),
        is_unsettled=True,
        needs_calls=True,
        leave=leave_fight,
        max_turns=QUIET_TURNS,
    ),
)


class Dnd(RuleSystem[Table]):
    """Abilities, armour class, hit points, and fights."""

    title = "Fantasy: hit points and d20"
    moods = _MOODS

    def schema(self, kind: Kind) -> dict[str, Any]:
        if kind != "entity":
            return super().schema(kind)
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
        if kind != "entity":
            return
        check_number(before, after, "hp_max", 1, MAX_HP)
        check_number(before, after, "hp", 0, get_number(after, "hp_max", MAX_HP))
        check_number(before, after, "ac", 1, MAX_AC)
        check_number(before, after, "level", 1, MAX_LEVEL)
        check_number(before, after, "gold", 0, MAX_GOLD)
        check_numbers(before, after, "abilities", 1, MAX_ABILITY)
        check_texts(before, after, "conditions")
        if unknown := read_mapping(get_attributes(after).get("abilities")).keys() - {
            *get_args(Ability)
        }:
            raise ValidationError(f"`attributes.abilities` has no {min(unknown)[:50]}.")

    def changeable(self, kind: Kind, state: State) -> Mapping[str, AttributeType]:
        """Return the players' possessions. Tools change hit points and conditions."""
        is_player = kind == "entity" and state["kind"] == "pc"
        return {"inventory": "list", "gold": "number"} if is_player else {}


RULES = Dnd()
