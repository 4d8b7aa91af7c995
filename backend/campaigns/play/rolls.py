"""Dice for a turn that is not for everyone: they change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from backend.campaigns.play.dice import parse_notation
from backend.campaigns.play.tools import Outcome, PlayTool, answer

if TYPE_CHECKING:
    from backend.campaigns.play.table import Table


class RollDice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Roll dice when something may fail. The server rolls, and the result is what happens."""

    dice: Annotated[str, Meta(min_length=2, max_length=12, description="Such as 1d20 or 2d6+3.")]
    because: Annotated[str, Meta(max_length=1_000)] = ""


def roll_dice(table: Table, asked: RollDice) -> Outcome:
    """Roll, and return each die and the total."""
    count, sides, more = parse_notation(asked.dice)
    dice = table.roll(count, sides=sides)
    total = sum(dice) + more
    shown = f"{'+'.join(map(str, dice))}{f'{more:+}' if more else ''}"
    return answer({"dice": dice, "total": total}, f"{asked.dice}: {shown} = {total}")


ROLL_DICE = PlayTool("roll_dice", RollDice, roll_dice, is_private=True)
