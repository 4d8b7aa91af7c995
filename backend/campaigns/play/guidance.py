"""The guidance of a mood in a prompt: the mood's own text, and the state of the table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

import msgspec

from backend.campaigns.ledger.changes import EXISTS, State
from backend.campaigns.ledger.items import Entity, World
from backend.campaigns.play.references import get_name
from backend.campaigns.play.table import (
    MAX_COSTS,
    MAX_THREATS,
    EchoKind,
    Table,
    is_full,
    list_echoes,
)
from backend.campaigns.rules.state import PLAY, ROLL, read_mapping
from backend.campaigns.state.state_block import render_flags, render_name, render_value
from backend.core.audience import GM
from backend.prompts import PromptLibrary

MAX_PEOPLE = 8
MAX_CLOCKS = 12
MAX_WANTS = 200
MAX_LINE = 300
MAX_CHANGED = 12


def render_guidance(table: Table, prompts: PromptLibrary) -> str:
    """Return the guidance of the table's mood, from the mood's prompt file."""
    if table.state.is_private:
        return prompts["moods/private"].render()
    play, scene = table.play, table.scene
    values: dict[str, Any] = {
        **msgspec.structs.asdict(play),
        **_render_standing(table),
        "costs": _render_echoes(table, "cost", MAX_COSTS),
        "threats": _render_echoes(table, "threat", MAX_THREATS),
        "clocks": _render_clocks(table),
        "flags": render_flags(table.world.get("flags") or {}) if table.viewpoint == GM else [],
        "place": _render_place(table),
        "people": _render_people(table),
        "changed": _render_changes(table),
        "players": _render_players(table),
        "stakes": table.mark(scene.get("stakes", ""), scene),
        "dice": table.state.dice,
        "is_last": table.is_last_phase,
        **table.rules.prompt_values(table),
    }
    name, shared, own = f"moods/{table.state.rules}/{play.mood}", prompts["moods/table"], ""
    if name in prompts:
        own = prompts[name].render_from(values)
        # The mood's own text contains these already.
        values |= dict.fromkeys(prompts[name].inputs & shared.inputs, "")
    return "\n\n".join(filter(None, [own or table.mood.prompt, shared.render_from(values)]))


def _render_echoes(table: Table, kind: EchoKind, most: int) -> list[str]:
    found = list_echoes(table, kind)[-most:]
    return [_shorten(table.mark(text, table.get(item_id))) for item_id, text in found]


def _render_standing(table: Table) -> Mapping[str, Any]:
    found = [_build_entity(state) for state in table.players.values()]
    world = msgspec.convert(_strip_existence(table.world), World)
    precarity = table.rules.precarity(found, world) or {}
    return {
        "label": str(precarity.get("label", "")),
        "voice": str(precarity.get("voice", "")),
        "standing": precarity.get("lines", ()),
    }


def _render_place(table: Table) -> str:
    """Return the name of the place that the players have come to since the state block."""
    if not table.place or table.place == table.state.shown_place:
        return ""
    held = table.state.items.get(UUID(table.place))
    return get_name(held.state) if held else ""


def _build_entity(state: State) -> Entity:
    return msgspec.convert(_strip_existence(state), Entity)


def _strip_existence(state: State) -> State:
    return {key: value for key, value in state.items() if key != EXISTS}


def _render_players(table: Table) -> list[str]:
    return [
        table.mark(table.rules.light_line(_build_entity(state)), state)
        for state in table.players.values()
    ]


def _render_clocks(table: Table) -> list[str]:
    lines: list[str] = []
    for state in table.list_items("clock").values():
        line = f"{get_name(state)} {state.get('filled', 0)}/{state.get('segments', 6)}"
        line += " (done)" if is_full(state) else ""
        line += f": {text}" if (text := state.get("consequence")) else ""
        lines.append(_shorten(table.mark(line, state)))
    return lines[:MAX_CLOCKS]


def _render_people(table: Table) -> list[str]:
    """Render people at the scene or place with their wishes, unless the state block does."""
    if table.state.shows_people and table.place == table.state.shown_place:
        return []
    place, present = table.place, set(table.scene.get("present", ()))
    lines: list[str] = []
    for item_id, state in table.list_items("entity").items():
        is_here = str(item_id) in present or (place and state.get("location_id") == place)
        if state["kind"] == "npc" and is_here:
            wants = state.get("wants", "")[:MAX_WANTS]
            line = f"{state['name']}: {wants}" if wants else state["name"]
            lines.append(table.mark(line, state))
    return lines[:MAX_PEOPLE]


def _render_changes(table: Table) -> list[str]:
    """Render the fields that this turn has changed: the state block is from before it."""
    touched: dict[UUID, dict[str, None]] = {}
    for change in table.state.changes:
        if change.kind in {"world", "entity", "thread"} and EXISTS not in change.operations.set:
            keys = dict.fromkeys(change.operations.list_keys())
            if change.kind == "world":  # the guidance renders the others separately
                keys = {key: None for key in keys if key in {"day", "time_of_day"}}
            touched.setdefault(change.item_id, {}).update(keys)
    lines: list[str] = []
    hidden = {PLAY, ROLL} | table.rules.hidden_attributes
    for item_id, named in touched.items():
        state = table.get(item_id)
        values = filter(None, (_render_field(state, key, hidden) for key in named))
        if text := ", ".join(values):
            line = f"{get_name(state)}: {text}" if get_name(state) else text
            lines.append(_shorten(table.mark(line, state)))
    return lines[-MAX_CHANGED:]


def _render_field(state: State, key: str, hidden: Collection[str]) -> str:
    """Render a field by its key; empty if it is not a part of the story."""
    name = key.removeprefix("attributes.")
    if name in hidden or name.endswith(("_max", "_id")):
        return ""
    value: Any = state
    for part in key.split("."):
        value = read_mapping(value).get(part)
    text = render_value(value) or ("none" if isinstance(value, list) else "")
    return f"{render_name(name)} {text}" if text else ""


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"
