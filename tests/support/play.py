"""A table for tests of play: the town of Seagate and the calls of a scripted model."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from backend.campaigns.ledger.items import Clock, Entity, Item, Thread, World
from backend.campaigns.play.table import Table
from backend.campaigns.rules.protocol import ToolOutcome
from backend.database.base import new_id
from backend.generation.model import ToolCall

CAMPAIGN, JAKE, MARLENA, SHOP, MUFFLE, WATCH = (new_id() for _ in range(6))

OUTCOMES: list[dict[str, Any]] = [
    {"tier": "critical", "hint": "the lock sings"},
    {"tier": "success", "hint": "it opens"},
    {
        "tier": "partial",
        "hint": "it opens, loudly",
        "costs": [{"kind": "stress", "amount": 2}, {"kind": "clock", "what": "The Watch"}],
    },
    {"tier": "bad", "hint": "the pick snaps", "costs": [{"kind": "heat", "amount": 2}]},
]


def town(*, world: dict[str, Any] | None = None, **attributes: Any) -> dict[UUID, Item]:
    """Jake in Marlena's shop, a thread, and a clock that is nearly full."""
    return {
        CAMPAIGN: World(day=5, time_of_day="dusk", attributes=world or {}),
        SHOP: Entity(kind="location", name="The Salty Sigil"),
        JAKE: Entity(kind="pc", name="Jake", location_id=SHOP, attributes=attributes),
        MARLENA: Entity(
            kind="npc", name="Marlena", location_id=SHOP, wants="her sister back", voice=["drawls"]
        ),
        MUFFLE: Thread(title="The Fading Muffle"),
        WATCH: Clock(name="The Watch", segments=4, filled=3, consequence="They search the shop."),
    }


def table_of(items: dict[UUID, Item], rules: str = "freeform", **more: Any) -> Table:
    return Table.new(CAMPAIGN, rules=rules, dice=more.pop("dice", "pool"), items=items, **more)


async def use(table: Table, name: str, /, **arguments: Any) -> ToolOutcome:
    return await table.use(ToolCall("1", name, arguments))


async def engage(table: Table, **more: str) -> ToolOutcome:
    asked = {"domain": "infiltration", "position": "risky", "effect": "standard", "stakes": "noise"}
    return await use(table, "engage", **{**asked, **more})


async def commit_to(table: Table, outcomes: list[dict[str, Any]] | None = None) -> ToolOutcome:
    given = OUTCOMES if outcomes is None else outcomes
    return await use(table, "spend_die", situation="The lock.", outcomes=given)


def choose_die(table: Table, die: int) -> dict[str, Any]:
    assert table.waiting is not None
    option = next(each for each in table.waiting.options if each.die == die)
    return cast("dict[str, Any]", table.choose(option.id))


def attributes(table: Table, item_id: UUID) -> dict[str, Any]:
    return cast("dict[str, Any]", table.get(item_id)["attributes"])
