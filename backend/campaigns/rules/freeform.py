"""No rules: attributes are what the user makes them, and a story is told with generic tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend.campaigns.ledger.changes import State
from backend.campaigns.ledger.items import Kind
from backend.campaigns.play.story_tools import (
    ADVANCE_TIME,
    ASK,
    FINISH_TURN,
    SET_SCENE,
    SPEAK,
    THINK,
    TICK_CLOCK,
    attribute_types,
)
from backend.campaigns.play.table import Table
from backend.campaigns.rules.protocol import AttributeType, Mood, PlayTool, Rules
from backend.errors import ValidationError

_USUAL: Mapping[str, AttributeType] = {
    "hp": "number",
    "gold": "number",
    "conditions": "list",
    "inventory": "list",
}


class Freeform(Rules[Table]):
    """A story without rules: numbers mean what its user says."""

    title = "Freeform"

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

    def moods(self) -> Mapping[str, Mood[Table]]:
        """One."""
        return {"story": Mood("story")}

    def tools(self, mood: str) -> Sequence[PlayTool[Table]]:
        """The generic tools."""
        del mood
        return (THINK, SPEAK, ASK, SET_SCENE, ADVANCE_TIME, TICK_CLOCK, FINISH_TURN)


RULES = Freeform()
