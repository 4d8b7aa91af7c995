"""Play without rules: users define the attributes, and all tools are generic."""

from __future__ import annotations

from collections.abc import Mapping

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
    list_attribute_types,
)
from backend.campaigns.play.table import Table
from backend.campaigns.rules.protocol import AttributeType, Mood, RuleSystem
from backend.errors import ValidationError

_DEFAULT_ATTRIBUTES: Mapping[str, AttributeType] = {
    "hp": "number",
    "gold": "number",
    "conditions": "list",
    "inventory": "list",
}
_TOOLS = (THINK, SPEAK, ASK, SET_SCENE, ADVANCE_TIME, TICK_CLOCK, FINISH_TURN)


class Freeform(RuleSystem[Table]):
    """A story without rules. Users decide on the meaning of numbers."""

    title = "Freeform"
    moods = (Mood("story", _TOOLS),)

    def validate(self, kind: Kind, before: State, after: State) -> None:
        """Raise `ValidationError` if hit points or gold are not numbers."""
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
        """Return the existing attributes, and for players the usual ones."""
        if kind != "entity":
            return {}
        return {
            **(_DEFAULT_ATTRIBUTES if state["kind"] == "pc" else {}),
            **list_attribute_types(state),
        }


RULES = Freeform()
