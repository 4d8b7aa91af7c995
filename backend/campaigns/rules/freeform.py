"""No rules: attributes are what the user makes them, and a story is told with generic tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.campaigns.ledger.changes import State
from backend.campaigns.ledger.items import Entity, Kind, World
from backend.campaigns.play.deltas import attribute_types
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
from backend.campaigns.play.tools import PlayTool
from backend.campaigns.rules import AttributeType, Mood, Rules
from backend.campaigns.state.state_block import player_line
from backend.errors import ValidationError

_USUAL: Mapping[str, AttributeType] = {
    "hp": "number",
    "gold": "number",
    "conditions": "list",
    "inventory": "list",
}


class Freeform(Rules):
    """A story without rules: numbers mean what its user says."""

    def schema(self, kind: Kind) -> dict[str, Any]:
        """Any attributes."""
        return {"type": "object", "title": f"Attributes of a {kind}"}

    def validate(self, kind: Kind, before: State, after: State) -> None:
        """Let hit points be numbers, where there are any."""
        del before
        if kind != "entity":
            return
        attributes: State = after.get("attributes") or {}
        for name in ("hp", "hp_max", "gold"):
            value = attributes.get(name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float)
            ):
                raise ValidationError(f"`attributes.{name}` must be a number.")

    def changeable(self, kind: Kind, state: State) -> Mapping[str, AttributeType]:
        """What there is, and of players what most have."""
        if kind != "entity":
            return {}
        return {**(_USUAL if state["kind"] == "pc" else {}), **attribute_types(state)}

    def moods(self) -> Mapping[str, Mood]:
        """One."""
        return {"story": Mood("story")}

    def tools(self, mood: str) -> Sequence[PlayTool]:
        """The generic tools."""
        del mood
        return (THINK, SPEAK, ASK, SET_SCENE, ADVANCE_TIME, TICK_CLOCK, FINISH_TURN)

    def precarity(self, players: Sequence[Entity], world: World) -> dict[str, Any] | None:
        """Nothing is counted."""
        del players, world
        return None

    def spend_downtime(self, table: Table, activity: str, target: str) -> dict[str, Any]:
        """There is no downtime."""
        del table, target
        raise ValidationError(f"Unknown activity {activity}.")

    def light_line(self, player: Entity) -> str:
        """Name and hit points."""
        return player_line(player)


RULES = Freeform()
