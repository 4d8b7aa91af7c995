"""What a model says has changed when it finishes a turn: typed changes of items in play."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from backend.campaigns.ledger.changes import Operations, State
from backend.campaigns.ledger.items import Fact
from backend.campaigns.play.echoes import find_echo, tick
from backend.campaigns.play.references import ENTITY_KINDS, Reference
from backend.campaigns.play.table import Table
from backend.campaigns.rules.attributes import read_mapping
from backend.campaigns.rules.protocol import AttributeType, ToolRefusedError
from backend.campaigns.rules.state import PLAY
from backend.campaigns.state.state_block import render_name

MAX_DELTAS = 20
ATTRIBUTES = "attributes"

Named = Annotated[
    str, Meta(min_length=1, max_length=200, description="By its name, or its #reference.")
]
Short = Annotated[str, Meta(max_length=1_000)]

_FIELDS: Mapping[str, Mapping[str, AttributeType]] = {
    "pc": {"status": "text", "disposition": "text"},
    "npc": {"status": "text", "disposition": "text", "wants": "text"},
    "location": {"status": "text", "description": "text"},
    "item": {"status": "text", "description": "text"},
    "faction": {"status": "text", "disposition": "text"},
    "ability": {"status": "text"},
    "thread": {"tension": "text", "status": "text", "next_step": "text", "summary": "text"},
    "clock": {},
}
"""Fields that a model may change by itself, by kind."""


class FieldDelta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One field of somebody or something in play."""

    item: Named
    field: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=200,
            description="Its name: status, disposition, tension, next_step, location, inventory.",
        ),
    ]
    how: Annotated[
        Literal["set", "add", "remove"],
        Meta(description="`add` and `remove` are for lists, and count numbers up and down."),
    ] = "set"
    value: Annotated[Short, Meta(description="The text, or what is put in or taken out.")] = ""
    amount: Annotated[int, Meta(ge=-1_000_000, le=1_000_000, description="For numbers.")] = 0


class ClockDelta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A clock that ticked."""

    clock: Named
    segments: Annotated[int, Meta(ge=-8, le=8)] = 1


class FactDelta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that is true from now on."""

    text: Annotated[str, Meta(min_length=1, max_length=2_000)]
    about: Annotated[str, Meta(max_length=200, description="Whom or what it is about.")] = ""


class FlagDelta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A yes or no about the world, by a name, that you alone see: for something to remember."""

    flag: Annotated[str, Meta(min_length=1, max_length=200, description="Such as gate_open.")]
    value: bool = True


class Deltas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What has changed in the world with this turn, costs that were paid apart."""

    changes: Annotated[list[FieldDelta], Meta(max_length=MAX_DELTAS)] = []
    clocks: Annotated[list[ClockDelta], Meta(max_length=MAX_DELTAS)] = []
    facts: Annotated[list[FactDelta], Meta(max_length=MAX_DELTAS)] = []
    flags: Annotated[list[FlagDelta], Meta(max_length=MAX_DELTAS)] = []
    resolved: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=1_000)]],
        Meta(max_length=MAX_DELTAS, description="Threats and costs that echo no more, as listed."),
    ] = []


def apply_deltas(table: Table, deltas: Deltas) -> int:
    """Change what they say: how many changes that was.

    Raises `ToolRefusedError` or `ValidationError` for the first that can't be.
    """
    before = len(table.state.changes)
    for delta in deltas.changes:
        _change(table, delta)
    for ticked in deltas.clocks:
        clock = table.references.in_play(ticked.clock, {"clock"})
        _refuse_paid(table, clock, "filled")
        tick(table, clock.id, ticked.segments)
    for fact in deltas.facts:
        about = table.references.find(fact.about, ENTITY_KINDS).id if fact.about else None
        table.create(Fact(text=fact.text, about_id=about))
    for flag in deltas.flags:
        _set_flag(table, flag)
    for text in deltas.resolved:
        table.change(find_echo(table, text), Operations(set={"resolved": True}))
    return len(table.state.changes) - before


def changeable_fields(table: Table, item_id: UUID) -> dict[str, AttributeType]:
    """The fields of an item in play that a model may change by itself, and what they hold."""
    held = table.state.items[item_id]
    kind = held.state["kind"] if held.kind == "entity" else held.kind
    read_mapping = table.rules.changeable(held.kind, held.state)
    return {
        **_FIELDS.get(kind, {}),
        **{f"{ATTRIBUTES}.{name}": each for name, each in read_mapping.items() if name != PLAY},
    }


def paid_key(reference: Reference, key: str) -> str:
    """The entry of a table's `paid` for a field that a cost of this turn has changed."""
    return f"{reference.id} {key}"


def _refuse_paid(table: Table, reference: Reference, key: str) -> None:
    if paid_key(reference, key) in table.state.paid:
        raise ToolRefusedError(f"{key} of {reference.name} was a cost of this turn: it is paid.")


def _set_flag(table: Table, delta: FlagDelta) -> None:
    name, flags = delta.flag.strip(), read_mapping(table.world.get("flags"))
    known = {render_name(each).casefold(): each for each in flags}
    name = known.get(render_name(name).casefold(), name)
    if name in table.rules.moods():
        raise ToolRefusedError(f"The flag {name} goes with its mood: tools of their own change it.")
    table.change(table.state.campaign_id, Operations(set={f"flags.{name}": delta.value}))


def _change(table: Table, delta: FieldDelta) -> None:
    reference = table.references.in_play(delta.item)
    held = table.state.items[reference.id]
    if delta.field == "location" and held.kind == "entity":
        place = table.references.find(delta.value, {"location"})
        table.change(reference.id, Operations(set={"location_id": str(place.id)}))
        return
    fields = changeable_fields(table, reference.id)
    name = delta.field.removeprefix(f"{ATTRIBUTES}.")
    key = name if name in fields else f"{ATTRIBUTES}.{name}"
    if key not in fields:
        there = ", ".join(["location", *(each.removeprefix(f"{ATTRIBUTES}.") for each in fields)])
        raise ToolRefusedError(f"{name} of {reference.name} can't be changed; there is: {there}.")
    _refuse_paid(table, reference, key)
    table.change(reference.id, _operations(key, fields[key], delta))


def _operations(key: str, kind: AttributeType, delta: FieldDelta) -> Operations:
    value: Any = delta.amount if kind == "number" else delta.value
    if kind == "list" and delta.how != "set":
        value = [delta.value]
    elif kind == "list":
        raise ToolRefusedError(f"{key} is a list: use add or remove.")
    if kind == "text" and delta.how != "set":
        raise ToolRefusedError(f"{key} is a text: use set.")
    if delta.how == "add":
        return Operations(add={key: value})
    if delta.how == "remove":
        return Operations(remove={key: value})
    return Operations(set={key: value})


def attribute_types(state: State) -> dict[str, AttributeType]:
    """The attributes that an item has, by what kind of value they hold."""
    types: dict[str, AttributeType] = {}
    attributes: State = state.get(ATTRIBUTES) or {}
    for name, value in attributes.items():
        if isinstance(value, bool) or value is None or isinstance(value, dict):
            continue
        types[name] = (
            "text" if isinstance(value, str) else "list" if isinstance(value, list) else "number"
        )
    return types
