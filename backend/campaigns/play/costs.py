"""Costs that are committed to before a die is chosen, and paid exactly as they were."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from backend.campaigns.ledger.changes import Operations, State
from backend.campaigns.play.echoes import is_visible, tick
from backend.campaigns.play.references import Reference, get_name
from backend.campaigns.play.story_tools import format_paid_key
from backend.campaigns.play.table import Table
from backend.campaigns.rules.attributes import get_number, get_texts
from backend.campaigns.rules.protocol import ToolRefusedError

STRESS = 9
"""At so much stress a character takes a trauma, and has none again."""

HEAT = 9
"""At so much heat the players are wanted more, and the rest of it is left."""

WANTED = 4
MAX_COST = 6

TRAUMAS = (
    "cold", "haunted", "obsessed", "paranoid", "reckless", "soft", "unstable", "vicious",
)  # fmt: skip


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that is paid."""

    kind: Literal["stress", "harm", "heat", "coin", "clock", "item"]
    amount: Annotated[
        int, Meta(ge=1, le=MAX_COST, description="Of stress, heat, coin, or a clock's segments.")
    ] = 1
    what: Annotated[
        str,
        Meta(max_length=200, description="The harm in a few words; the clock's or item's name."),
    ] = ""


def cost_text(cost: Cost) -> str:
    """A cost in a few words."""
    match cost.kind:
        case "harm":
            return f"harm: {cost.what}"
        case "item":
            return f"loses {cost.what}"
        case "clock":
            return f"{cost.what} +{cost.amount}"
        case _:
            return f"{cost.amount} {cost.kind}"


def pay(table: Table, cost: Cost, player_id: UUID) -> None:
    """Pay a cost of a player's character. Raises `ToolRefusedError` where it can't be."""
    player = table.get(player_id)
    match cost.kind:
        case "stress":
            add_stress(table, player_id, cost.amount)
        case "harm":
            if not cost.what.strip():
                raise ToolRefusedError("A harm says in `what` which it is.")
            table.change(player_id, Operations(add={"attributes.harm": [cost.what]}))
        case "heat":
            add_heat(table, cost.amount)
        case "coin":
            if (has := get_number(player, "coin")) < cost.amount:
                raise ToolRefusedError(f"{get_name(player)} has {has} coin: not {cost.amount}.")
            table.change(player_id, Operations(remove={"attributes.coin": cost.amount}))
            _paid(table, Reference(player_id, "", player), "attributes.coin")
        case "clock":
            clock = table.references.in_play(cost.what, {"clock"})
            if not is_visible(table.get(clock.id)):
                raise ToolRefusedError(f"The player reads costs, and {clock.name} is hidden.")
            tick(table, clock.id, cost.amount)
            _paid(table, clock, "filled")
        case "item":
            table.change(player_id, _without(player, cost.what))
            _paid(table, Reference(player_id, "", player), "attributes.inventory")


def add_stress(table: Table, player_id: UUID, amount: int) -> None:
    """Give a character stress; at the ninth it is a trauma, and the stress is gone."""
    player = table.get(player_id)
    operations = Operations(set={"attributes.stress_max": STRESS})
    if get_number(player, "stress") + amount >= STRESS:
        operations.set["attributes.stress"] = 0
        operations.add["attributes.trauma"] = [_next_trauma(get_texts(player, "trauma"))]
    else:
        operations.add["attributes.stress"] = amount
    table.change(player_id, operations)


def add_heat(table: Table, amount: int) -> None:
    """Give the players heat; what goes beyond it makes them wanted, up to `WANTED`."""
    heat, wanted = get_number(table.world, "heat") + amount, get_number(table.world, "wanted")
    operations = Operations(set={"attributes.heat_max": HEAT, "attributes.wanted_max": WANTED})
    if heat >= HEAT and wanted < WANTED:
        operations.set["attributes.heat"] = heat - HEAT
        operations.add["attributes.wanted"] = 1
    else:
        operations.add["attributes.heat"] = amount
    table.change(table.state.campaign_id, operations)


def _next_trauma(have: list[str]) -> str:
    fresh = next((one for one in TRAUMAS if one not in have), None)
    return fresh or f"trauma {len(have) + 1}"


def _without(player: State, what: str) -> Operations:
    wanted = what.strip().casefold()
    held = get_texts(player, "inventory")
    found = next((one for one in held if one.casefold() == wanted), None)
    if found is None:
        there = ", ".join(held[:20]) or "nothing"
        raise ToolRefusedError(f"{get_name(player)} has no {what[:60]!r}, but {there}.")
    return Operations(remove={"attributes.inventory": [found]})


def _paid(table: Table, reference: Reference, key: str) -> None:
    table.state.paid.append(format_paid_key(reference, key))
