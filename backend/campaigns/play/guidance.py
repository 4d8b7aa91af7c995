"""What a model is told of the mood it plays in: the mood's own text, and what lies on the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from backend.campaigns.items import Entity, World
from backend.campaigns.ledger import EXISTS, State
from backend.campaigns.play.attributes import members
from backend.campaigns.play.echoes import MOST_COSTS, MOST_THREATS, EchoKind, echoes, is_full
from backend.campaigns.play.references import called
from backend.campaigns.play.state import PLAY, POOL, ROLL
from backend.prompts import PromptLibrary

if TYPE_CHECKING:
    from backend.campaigns.play.table import Table

MOST_PEOPLE = 8
MOST_CLOCKS = 12
MAX_WANTS = 200
MAX_LINE = 300
MAX_CHANGED = 12

_OWN = frozenset({PLAY, POOL, ROLL})
"""Attributes of the world that the guidance renders elsewhere, or that only the server reads."""


def render(table: Table, prompts: PromptLibrary) -> str:
    """The guidance of the mood that a table is in.

    A mood's file is given those of the values below that its header names.
    """
    if table.state.is_private:
        return prompts["moods/private"].render()
    play, scene = table.play, table.scene
    values: dict[str, Any] = {
        **msgspec.structs.asdict(play),
        **_precarity(table),
        "costs": _echoes(table, "cost", MOST_COSTS),
        "threats": _echoes(table, "threat", MOST_THREATS),
        "clocks": _clocks(table),
        "people": _people(table),
        "changed": _list_changed(table),
        "players": _players(table),
        "stakes": play.stakes or table.mark(scene.get("stakes", ""), scene),
        "dice": table.state.dice,
        "pool": table.pool,
        "committed": table.state.committed,
        "is_last": table.is_last_phase,
    }
    name = f"moods/{table.state.rules}/{play.mood}"
    own = prompts[name].rendered(values) if name in prompts else table.mood.prompt
    return "\n\n".join(filter(None, [own, prompts["moods/table"].rendered(values)]))


def _echoes(table: Table, kind: EchoKind, most: int) -> list[str]:
    found = echoes(table, kind)[-most:]
    return [_cut(table.mark(text, table.get(item_id))) for item_id, text in found]


def _precarity(table: Table) -> Mapping[str, str]:
    found = [_entity(state) for state in table.players.values()]
    world = msgspec.convert(_fields(table.world), World)
    precarity = table.rules.precarity(found, world) or {}
    return {"label": str(precarity.get("label", "")), "voice": str(precarity.get("voice", ""))}


def _entity(state: State) -> Entity:
    return msgspec.convert(_fields(state), Entity)


def _fields(state: State) -> State:
    return {key: value for key, value in state.items() if key != EXISTS}


def _players(table: Table) -> list[str]:
    return [
        table.mark(table.rules.light_line(_entity(state)), state)
        for state in table.players.values()
    ]


def _clocks(table: Table) -> list[str]:
    lines: list[str] = []
    for state in table.of_kind("clock").values():
        if not state.get("visible", True):
            continue
        line = f"{called(state)} {state.get('filled', 0)}/{state.get('segments', 6)}"
        line += " (done)" if is_full(state) else ""
        line += f": {text}" if (text := state.get("consequence")) else ""
        lines.append(_cut(table.mark(line, state)))
    return lines[:MOST_CLOCKS]


def _people(table: Table) -> list[str]:
    """People of the open scene, or where the players are, each with what they want."""
    scene = table.scene
    places = {scene.get("location_id")} - {None}
    places = places or {state.get("location_id") for state in table.players.values()} - {None}
    present = set(scene.get("present", ()))
    lines: list[str] = []
    for item_id, state in table.of_kind("entity").items():
        is_here = str(item_id) in present or state.get("location_id") in places
        if state["kind"] == "npc" and is_here:
            wants = state.get("wants", "")[:MAX_WANTS]
            line = f"{state['name']}: {wants}" if wants else state["name"]
            lines.append(table.mark(line, state))
    return lines[:MOST_PEOPLE]


def _list_changed(table: Table) -> list[str]:
    """Render the fields that this turn has changed: the state block is from before it."""
    touched: dict[UUID, dict[str, None]] = {}
    for change in table.state.changes:
        if change.kind in {"world", "entity", "thread"} and EXISTS not in change.operations.set:
            keys = dict.fromkeys(change.operations.touched())
            touched.setdefault(change.item_id, {}).update(keys)
    lines: list[str] = []
    for item_id, named in touched.items():
        state = table.get(item_id)
        values = filter(None, (_value(state, key) for key in named))
        if text := ", ".join(values):
            lines.append(_cut(f"{called(state)}: {text}" if called(state) else text))
    return lines[-MAX_CHANGED:]


def _value(state: State, key: str) -> str:
    """Render a field by its key; empty if it is no part of the story."""
    name = key.removeprefix("attributes.")
    if name in _OWN or name.endswith(("_max", "_id")):
        return ""
    value: Any = state
    for part in key.split("."):
        value = members(value).get(part)
    if isinstance(value, list):
        listed: list[Any] = value
        value = ", ".join(map(str, listed)) or "none"
    is_shown = isinstance(value, str | int | float) and not isinstance(value, bool)
    return f"{name} {value}" if is_shown else ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"
