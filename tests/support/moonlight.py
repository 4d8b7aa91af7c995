"""A rules module of somebody else's: one file that nothing of Talekeeper names."""

# ruff: noqa: ARG002  # a protocol is answered

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from backend.campaigns.ledger.changes import Operations, State
from backend.campaigns.ledger.items import Entity, Kind, World
from backend.campaigns.play.story_tools import FINISH_TURN
from backend.campaigns.play.table import Table
from backend.campaigns.rules.protocol import AttributeType, Mood, PlayTool, RuleSystem, ToolOutcome
from backend.campaigns.rules.state import check_number, get_number


class Howl(msgspec.Struct, frozen=True):
    """Howl at the moon."""

    times: int = 1


def howl(table: Table, asked: Howl) -> ToolOutcome:
    [player] = table.players
    table.change(player, Operations(add={"attributes.wolf": asked.times}))
    table.enter_mood("night", variant="full")
    return ToolOutcome(kind="break", summary="Howls")


HOWL = PlayTool("howl", Howl, howl)


class Moonlight(RuleSystem[Table]):
    """Wolves by night."""

    moods = (
        Mood("day", (HOWL, FINISH_TURN), prompt="The sun is up."),
        Mood("night", (FINISH_TURN,), variants=("new", "full"), prompt="It is night: be brief."),
    )

    def validate(self, kind: Kind, before: State, after: State) -> None:
        if kind == "entity":
            check_number(before, after, "wolf", 0, 3)

    def changeable(self, kind: Kind, state: State) -> Mapping[str, AttributeType]:
        return {"scent": "text"} if kind == "entity" else {}

    def precarity(self, players: Sequence[Entity], world: World) -> dict[str, Any] | None:
        wolf = max(get_number({"attributes": each.attributes}, "wolf") for each in players)
        return {"score": wolf, "label": "hairy", "voice": "Low and hungry."}

    def light_line(self, player: Entity) -> str:
        return f"{player.name} the wolf"


RULES = Moonlight()
