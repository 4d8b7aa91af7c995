"""What a model is told of the mood it plays in: the mood's own text, and what lies on the table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

import msgspec

from backend.campaigns.ledger.changes import EXISTS, State
from backend.campaigns.ledger.items import Entity, World
from backend.campaigns.play.echoes import MOST_COSTS, MOST_THREATS, EchoKind, echoes, is_full
from backend.campaigns.play.references import called
from backend.campaigns.play.table import Table
from backend.campaigns.rules.attributes import members
from backend.campaigns.rules.state import PLAY, ROLL
from backend.campaigns.state.state_block import render_flags, render_name, render_value
from backend.core.audience import GM
from backend.prompts import PromptLibrary

MOST_PEOPLE = 8
MOST_CLOCKS = 12
MAX_WANTS = 200
MAX_LINE = 300
MAX_CHANGED = 12


def render_guidance(table: Table, prompts: PromptLibrary) -> str:
    """The guidance of the mood that a table is in.

    A mood's file is given those of the values below that its header names.
    """
    if table.state.is_private:
        return prompts["moods/private"].render()
    play, scene = table.play, table.scene
    values: dict[str, Any] = {
        **msgspec.structs.asdict(play),
        **_stand(table),
        "costs": _echoes(table, "cost", MOST_COSTS),
        "threats": _echoes(table, "threat", MOST_THREATS),
        "clocks": _clocks(table),
        "flags": render_flags(table.world.get("flags") or {}) if table.viewpoint == GM else [],
        "place": _place(table),
        "people": _people(table),
        "changed": _list_changed(table),
        "players": _players(table),
        "stakes": table.mark(scene.get("stakes", ""), scene),
        "dice": table.state.dice,
        "is_last": table.is_last_phase,
        **table.rules.prompt_values(table),
    }
    name, shared, own = f"moods/{table.state.rules}/{play.mood}", prompts["moods/table"], ""
    if name in prompts:
        own = prompts[name].rendered(values)
        # The mood's own text has said these.
        values |= dict.fromkeys(prompts[name].inputs & shared.inputs, "")
    return "\n\n".join(filter(None, [own or table.mood.prompt, shared.rendered(values)]))


def _echoes(table: Table, kind: EchoKind, most: int) -> list[str]:
    found = echoes(table, kind)[-most:]
    return [_cut(table.mark(text, table.get(item_id))) for item_id, text in found]


def _stand(table: Table) -> Mapping[str, Any]:
    found = [_entity(state) for state in table.players.values()]
    world = msgspec.convert(_fields(table.world), World)
    precarity = table.rules.precarity(found, world) or {}
    return {
        "label": str(precarity.get("label", "")),
        "voice": str(precarity.get("voice", "")),
        "standing": precarity.get("lines", ()),
    }


def _place(table: Table) -> str:
    """Return the name of the place that the players have come to since the state block."""
    if not table.place or table.place == table.state.shown_place:
        return ""
    held = table.state.items.get(UUID(table.place))
    return called(held.state) if held else ""


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
        line = f"{called(state)} {state.get('filled', 0)}/{state.get('segments', 6)}"
        line += " (done)" if is_full(state) else ""
        line += f": {text}" if (text := state.get("consequence")) else ""
        lines.append(_cut(table.mark(line, state)))
    return lines[:MOST_CLOCKS]


def _people(table: Table) -> list[str]:
    """Render the people of the open scene and of the players' place, with their wishes.

    Empty if the state block describes them.
    """
    if table.state.shows_people and table.place == table.state.shown_place:
        return []
    place, present = table.place, set(table.scene.get("present", ()))
    lines: list[str] = []
    for item_id, state in table.of_kind("entity").items():
        is_here = str(item_id) in present or (place and state.get("location_id") == place)
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
            if change.kind == "world":  # the guidance renders the others by themselves
                keys = {key: None for key in keys if key in {"day", "time_of_day"}}
            touched.setdefault(change.item_id, {}).update(keys)
    lines: list[str] = []
    hidden = {PLAY, ROLL} | table.rules.hidden_attributes
    for item_id, named in touched.items():
        state = table.get(item_id)
        values = filter(None, (_value(state, key, hidden) for key in named))
        if text := ", ".join(values):
            line = f"{called(state)}: {text}" if called(state) else text
            lines.append(_cut(table.mark(line, state)))
    return lines[-MAX_CHANGED:]


def _value(state: State, key: str, hidden: Collection[str]) -> str:
    """Render a field by its key; empty if it is not a part of the story."""
    name = key.removeprefix("attributes.")
    if name in hidden or name.endswith(("_max", "_id")):
        return ""
    value: Any = state
    for part in key.split("."):
        value = members(value).get(part)
    text = render_value(value) or ("none" if isinstance(value, list) else "")
    return f"{render_name(name)} {text}" if text else ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"
