"""The part of a world that a player's prompts can contain, for files and views that are theirs.

An item's audience says who may know the item. It does not open every field: no prompt renders
the note of a relation, and the user has no reason to think that players see it. A field is
private unless it is listed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import msgspec

from backend.campaigns.ledger.changes import EXISTS, State, build_item, build_state, exists
from backend.campaigns.ledger.items import Chapter, Entity, Fact, Item, Kind, Scene, Thread
from backend.campaigns.ledger.records import find_references, keep_references
from backend.campaigns.models import CampaignItem
from backend.campaigns.rules.protocol import RuleSystem, read_play
from backend.campaigns.rules.registry import find_rules
from backend.campaigns.rules.state import PLAY
from backend.campaigns.state.situation_reader import CampaignReader
from backend.core.audience import GM


def told(item: Item, names: Mapping[UUID, str] = MappingProxyType({})) -> str:
    """What an item says, but for its name: a line for each field of an entity that has a text.

    `names` are those of places; where an entity is goes unsaid without.
    """
    match item:
        case Fact():
            return item.text
        case Thread():
            steps = [step.text for step in item.objectives]
            next_step = f"Next: {item.next_step}" if item.next_step else ""
            return joined_lines(
                [f"{item.kind.capitalize()}, {item.status}", item.summary, next_step, *steps]
            )
        case Scene():
            return joined_lines(["Scene, over", item.summary, *item.key_moments])
        case Chapter():
            return joined_lines(["Chapter", item.summary])
        case Entity():
            name = names.get(item.location_id) if item.location_id else None
            place = f"at {name}" if name else ""
            head = ", ".join(
                filter(None, [item.kind, item.role, item.status, item.disposition, place])
            )
            wants = f"Wants: {item.wants}" if item.wants else ""
            voice = f"Voice: {'; '.join(item.voice)}" if item.voice else ""
            return joined_lines(
                [head, item.description, item.personality, voice, wants, *_attributes(item)]
            )
        case _:
            return ""


def names_of(item: Item) -> list[str]:
    """What an item is called; a fact is called nothing."""
    match item:
        case Entity():
            return [item.name, *item.aliases]
        case Thread() | Scene() | Chapter():
            return [item.title]
        case _:
            return []


def title_of(item: Item, names: Mapping[UUID, str]) -> str:
    """What an item is shown under: of a fact the entity that it is about."""
    if isinstance(item, Fact):
        return names.get(item.about_id, "") if item.about_id else ""
    return next(iter(names_of(item)), "")


def find_words(attributes: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the texts in attributes by name. A search for words never means a number."""
    found: dict[str, list[str]] = {}
    for name, value in attributes.items():
        values: list[Any] = cast("Any", value) if isinstance(value, list) else [value]
        if words := [each for each in values if isinstance(each, str) and each.strip()]:
            found[name] = words
    return found


def _attributes(entity: Entity) -> list[str]:
    found = find_words(entity.attributes)
    return [f"{name}: {', '.join(words)}" for name, words in found.items()]


def joined_lines(texts: Iterable[str]) -> str:
    """Texts that say something, a line each."""
    return "\n".join(text for text in texts if text.strip())


_FIELDS: Mapping[Kind, frozenset[str]] = {
    "world": frozenset({"day", "time_of_day", "attributes"}),
    "entity": frozenset(
        {"kind", "name", "aliases", "status", "role", "description", "disposition"}
        | {"personality", "voice", "wants", "location_id", "attributes", "audience"}
    ),
    "relation": frozenset({"from_id", "to_id", "score", "audience"}),
    "thread": frozenset(
        {"kind", "title", "summary", "priority", "tension", "status", "next_step", "objectives"}
        | {"giver_id", "audience"}
    ),
    "clock": frozenset({"name", "segments", "filled", "kind", "consequence", "audience"}),
    "fact": frozenset({"text", "about_id", "audience"}),
    "scene": frozenset(
        {"title", "location_id", "present", "stakes", "type", "status", "summary"}
        | {"key_moments", "audience"}
    ),
    "chapter": frozenset({"title", "summary", "scene_ids", "audience"}),
    "echo": frozenset({"text", "kind", "audience"}),
    "term": frozenset({"term", "definition", "status", "audience"}),
}
"""Fields that a prompt renders, of a reply or of the work after it, by kind."""

Items = Iterable[tuple[UUID, Kind, State]]


def known_items(items: Items, rules: RuleSystem) -> list[tuple[UUID, Kind, State]]:
    """Return items of a viewpoint with the fields that a player knows.

    Prompts render how people feel about players' characters, and no other relation.
    """
    known: list[tuple[UUID, Kind, State]] = [
        (item_id, kind, found)
        for item_id, kind, state in items
        if (found := known_state(kind, state, rules)) is not None
    ]
    players = {
        str(item_id) for item_id, kind, state in known if kind == "entity" and state["kind"] == "pc"
    }
    return [each for each in known if each[1] != "relation" or each[2]["to_id"] in players]


def known_state(kind: Kind, state: State, rules: RuleSystem) -> State | None:
    """Return the fields of an item that prompts of a player render; None if they render none."""
    if not exists(state) or not _is_rendered(kind, state):
        return None
    known = {key: value for key, value in state.items() if key in _FIELDS[kind]}
    if kind == "term" and state.get("status") == "raw":
        known.pop("definition", None)  # a prompt has the bare word
    if kind == "world":
        known["attributes"] = _world_attributes(state, rules)
    if kind == "entity" and state["kind"] != "pc":
        known["attributes"] = _known_attributes(state, rules)
    return {EXISTS: True, **known}


async def known_rows(
    reader: CampaignReader, rows: Sequence[tuple[CampaignItem, Item]]
) -> list[tuple[CampaignItem, Item]]:
    """Return items as the reader's viewpoint knows them, which may leave some out."""
    if reader.viewpoint == GM:
        return list(rows)
    rules = find_rules(reader.campaign.rules)
    states = [(row, known_state(row.kind, build_state(item), rules)) for row, item in rows]
    known = [(row, build_item(row.kind, state)) for row, state in states if state is not None]
    named = {each for _, item in known for ids in find_references(item).values() for each in ids}
    found = {str(each) for each in await reader.known_ids(named)}
    return [
        (row, build_item(row.kind, keep_references(build_state(item), found)))
        for row, item in known
    ]


def _is_rendered(kind: Kind, state: State) -> bool:
    match kind:
        case "clock":
            return state.get("visible") is not False
        case "fact":
            return state.get("superseded_by") is None
        case "echo":
            return not state.get("resolved")
        case "term":
            return state.get("status", "approved") in {"approved", "raw"}
        case _:
            return True


def _world_attributes(state: State, rules: RuleSystem) -> State:
    """Return the state of play, and the numbers that the rules show to players."""
    attributes: State = state.get("attributes") or {}
    counted: Mapping[str, Any] = rules.schema("world").get("properties", {})
    known = {name: value for name, value in attributes.items() if name in counted}
    if PLAY in attributes:
        known[PLAY] = msgspec.to_builtins(read_play(state, rules))
    return known


def _known_attributes(state: State, rules: RuleSystem) -> State:
    """Return the attributes of someone who is no player's character, or of a place or thing.

    A prompt has their words, and the values that a model may change without a tool. It renders
    no object.
    """
    attributes: State = state.get("attributes") or {}
    worded, changeable = find_words(attributes), rules.changeable("entity", state)
    known: State = {}
    for name, value in attributes.items():
        if name not in changeable and name not in worded:
            continue
        if isinstance(value, list):
            listed: list[Any] = cast("Any", value)
            plain = [each for each in listed if not isinstance(each, dict | list)]
            known[name] = plain if name in changeable else worded[name]
        else:
            known[name] = value
    return known
