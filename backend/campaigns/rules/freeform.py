"""No rules: attributes are what the user makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.campaigns.items import Entity, Kind
from backend.campaigns.ledger import State
from backend.campaigns.rules import Rules
from backend.errors import ValidationError


class Freeform(Rules):
    """A story without rules: numbers mean what its user says."""

    def schema(self, kind: Kind) -> dict[str, Any]:
        """Any attributes."""
        return {"type": "object", "title": f"Attributes of a {kind}"}

    def validate(self, before: State, after: State) -> None:
        """Let hit points be numbers, where there are any."""
        del before
        attributes: State = after.get("attributes") or {}
        for name in ("hp", "hp_max", "gold"):
            value = attributes.get(name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float)
            ):
                raise ValidationError(f"`attributes.{name}` must be a number.")

    def precarity(self, players: Sequence[Entity]) -> dict[str, Any] | None:
        """Nothing is counted."""
        del players
        return None


RULES = Freeform()
