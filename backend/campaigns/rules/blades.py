"""Forged in the dark: risky actions, stress and heat, and downtime. The rules' text is our own.

The numbers are those of the Blades in the Dark SRD; NOTICE names its licence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from backend.campaigns.ledger.changes import Operations, State
from backend.campaigns.ledger.items import Entity, Kind, World
from backend.campaigns.play.actions import (
    ACCEPT,
    ENGAGE,
    MAX_RATING,
    POOL_SIZE,
    RESOLVE,
    SPEND_DIE,
    fill_pool,
    leave_action,
    leave_aftermath,
)
from backend.campaigns.play.attributes import (
    attributes_of,
    check_number,
    check_numbers,
    check_texts,
    number,
    sequence,
    texts,
)
from backend.campaigns.play.costs import HEAT, STRESS, WANTED
from backend.campaigns.play.dice import srd_tier
from backend.campaigns.play.echoes import add_echo, tick
from backend.campaigns.play.state import POOL
from backend.campaigns.play.story_tools import ASK, FINISH_TURN, SPEAK, THINK
from backend.campaigns.play.table import Table
from backend.campaigns.play.tools import PlayTool, ToolRefusedError
from backend.campaigns.rules import AttributeType, Mood, Rules
from backend.errors import ValidationError

MAX_COIN = 1_000
OPEN_TURNS = 2
"""Turns that an action without a die, or an aftermath, lasts if the model does not end it."""

_MOODS = {
    "scene": Mood("scene", ("encounter", "opportunity", "discovery"), needs_calls=True),
    "action": Mood(
        "action",
        ("controlled", "risky", "desperate"),
        is_unsettled=True,
        needs_calls=True,
        leave=leave_action,
        max_turns=OPEN_TURNS,
    ),
    "aftermath": Mood(
        "aftermath",
        ("clean", "costly", "setback", "disaster"),
        needs_calls=True,
        leave=leave_aftermath,
        max_turns=OPEN_TURNS,
    ),
    "downtime": Mood("downtime", ("recovery", "project", "entanglement")),
}
_TOOLS: Mapping[str, Sequence[PlayTool]] = {
    "scene": (THINK, SPEAK, ASK, ENGAGE, ACCEPT, FINISH_TURN),
    "action": (THINK, SPEAK, SPEND_DIE, RESOLVE, FINISH_TURN),
    "aftermath": (THINK, SPEAK, ACCEPT, FINISH_TURN),
    "downtime": (THINK, SPEAK, FINISH_TURN),
}
_PRECARITY = (
    (5, "operating from strength", "Noir and cool: unhurried, dry, in control."),
    (10, "room to manoeuvre", "Noir and wary: measured sentences, an eye on the door."),
    (15, "walls closing in", "Tight and tense: shorter sentences, fewer ways out."),
    (None, "hanging by a thread", "Terse: clipped sentences, no comfort, no asides."),
)
_PROJECT = {"critical": 3, "success": 3, "partial": 2, "bad": 1}
_ENTANGLEMENTS = (
    (
        "Someone small wants a small favour, and knows too much to be refused.",
        "A rival lets it be known that they keep an eye on you.",
        "The watch asks your neighbours questions.",
    ),
    (
        "A friend is leaned on, and looks to you for help.",
        "A rival moves in on what you thought was yours.",
        "The watch takes somebody in who could name you.",
    ),
    (
        "Somebody whom you rely on wants out, or more.",
        "An old enemy has found out where you sleep.",
        "A warrant has your names on it.",
    ),
)
"""What comes due, by heat (0 to 3, 4 to 5, 6 and more), and then by the roll, the worst last."""


class Blades(Rules):
    """A crew's rules: position and effect, dice to spend, stress and heat, downtime."""

    def schema(self, kind: Kind) -> dict[str, Any]:
        """Stress, trauma, harm, coin and ratings of players; heat, wanted and dice of the world."""
        members: dict[str, Any] = {}
        if kind == "entity":
            rating = _whole(MAX_RATING)
            members = {
                "stress": _whole(STRESS),
                "trauma": _TEXTS,
                "harm": _TEXTS,
                "coin": _whole(MAX_COIN),
                "inventory": _TEXTS,
                "ratings": {"type": "object", "additionalProperties": rating},
            }
        if kind == "world":
            dice = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 6}}
            members = {"heat": _whole(HEAT), "wanted": _whole(WANTED), POOL: dice}
        return {"type": "object", "title": f"Attributes of a {kind}", "properties": members}

    def validate(self, kind: Kind, before: State, after: State) -> None:
        """Keep the numbers within their bounds."""
        if kind == "entity":
            check_number(before, after, "stress", 0, STRESS)
            check_number(before, after, "stress_max", STRESS, STRESS)
            check_number(before, after, "coin", 0, MAX_COIN)
            check_numbers(before, after, "ratings", 0, MAX_RATING)
            check_texts(before, after, "trauma")
            check_texts(before, after, "harm")
        if kind == "world":
            check_number(before, after, "heat", 0, HEAT)
            check_number(before, after, "heat_max", HEAT, HEAT)
            check_number(before, after, "wanted", 0, WANTED)
            check_number(before, after, "wanted_max", WANTED, WANTED)
            check_pool(before, after)

    def changeable(self, kind: Kind, state: State) -> Mapping[str, AttributeType]:
        """What players carry. Stress, harm, heat and dice change by play alone."""
        is_player = kind == "entity" and state["kind"] == "pc"
        return {"inventory": "list", "coin": "number"} if is_player else {}

    def moods(self) -> Mapping[str, Mood]:
        """Scene, action, aftermath, downtime."""
        return _MOODS

    def tools(self, mood: str) -> Sequence[PlayTool]:
        """The mood's own."""
        return _TOOLS[mood]

    def precarity(self, players: Sequence[Entity], world: World) -> dict[str, Any]:
        """Stress of the most stressed, heat, and twice how wanted they are."""
        taken = {player.name: _count(player.attributes.get("stress")) for player in players}
        room = [f"{name} {max(0, STRESS - 1 - stress)}" for name, stress in taken.items()]
        stress = max(taken.values(), default=0)
        heat, wanted = (_count(world.attributes.get(name)) for name in ("heat", "wanted"))
        score = stress + heat + 2 * wanted
        label, voice = next(
            (label, voice) for below, label, voice in _PRECARITY if below is None or score < below
        )
        return {
            "score": score,
            "stress": stress,
            "heat": heat,
            "wanted": wanted,
            "label": label,
            "voice": voice,
            "lines": [
                *([f"Room for stress before a trauma: {', '.join(room)}"] if room else []),
                f"Heat: {heat}/{HEAT}",
                f"Wanted level: {wanted}/{WANTED}",
            ],
        }

    def light_line(self, player: Entity) -> str:
        """Name and stress."""
        return f"{player.name} stress {_count(player.attributes.get('stress'))}/{STRESS}"

    def spend_downtime(self, table: Table, activity: str, target: str) -> dict[str, Any]:
        """Recover, work on a project, or lie low; what was stirred up before comes due."""
        result: dict[str, Any] = {"activity": activity}
        try:
            if text := _entangle(table):
                result["entanglement"] = text
            if activity == "recovery":
                result |= _recover(table, target)
            elif activity == "project":
                result |= _work(table, target)
            else:
                result |= _lie_low(table)
            if table.state.dice == "pool":
                fill_pool(table)
        except ToolRefusedError as error:
            raise ValidationError(str(error)) from None
        return result


def check_pool(before: State, after: State) -> None:
    """Raise `ValidationError` where the pool becomes what is no handful of dice."""
    pool = attributes_of(after).get(POOL)
    if pool is None or pool == attributes_of(before).get(POOL):
        return
    dice = sequence(pool)
    is_pool = isinstance(pool, list) and len(dice) <= POOL_SIZE
    if not is_pool or any(not isinstance(die, int) or not 1 <= die <= 6 for die in dice):  # noqa: PLR2004
        raise ValidationError(f"`attributes.{POOL}` must be at most {POOL_SIZE} dice from 1 to 6.")


def _entangle(table: Table) -> str:
    """What comes due, if anything: rolled with as many dice as the players are wanted."""
    heat, wanted = number(table.world, "heat"), number(table.world, "wanted")
    if heat == 0 and wanted == 0:
        return ""
    die, _ = srd_tier(table.roll(wanted or 2), none=wanted == 0)
    band = 0 if heat <= 3 else 1 if heat <= 5 else 2  # noqa: PLR2004  # the table's own bands
    text = _ENTANGLEMENTS[band][(die - 1) // 2]
    add_echo(table, "threat", text)
    return text


def _recover(table: Table, target: str) -> dict[str, Any]:
    """Lose as much stress as a die says, and one harm."""
    player_id = _player(table, target)
    player = table.get(player_id)
    [die] = table.roll(1)
    lost = min(die, number(player, "stress"))
    operations = Operations()
    if lost:
        operations.remove["attributes.stress"] = lost
    if harm := texts(player, "harm"):
        operations.remove["attributes.harm"] = harm[:1]
    if operations.remove:
        table.change(player_id, operations)
    return {"character": player["name"], "die": die, "stress": -lost, "healed": harm[:1]}


def _work(table: Table, target: str) -> dict[str, Any]:
    """Fill one to three segments of a project's clock."""
    clock = table.references.in_play(target, {"clock"})
    [die] = table.roll(1)
    segments = _PROJECT[srd_tier([die])[1]]
    after = tick(table, clock.id, segments)
    return {"clock": clock.name, "die": die, "filled": f"{after['filled']}/{after['segments']}"}


def _lie_low(table: Table) -> dict[str, Any]:
    """Lose as much heat as a die says."""
    [die] = table.roll(1)
    lost = min(die, number(table.world, "heat"))
    if lost:
        table.change(table.state.campaign_id, Operations(remove={"attributes.heat": lost}))
    return {"die": die, "heat": -lost}


def _player(table: Table, name: str) -> UUID:
    if name:
        return table.references.in_play(name, {"pc"}).id
    if len(table.players) == 1:
        return next(iter(table.players))
    raise ToolRefusedError("Say which character in `target`.")


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _whole(most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "maximum": most}


_TEXTS = {"type": "array", "items": {"type": "string"}}

RULES = Blades()
