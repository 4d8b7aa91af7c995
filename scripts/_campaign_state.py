"""A campaign's state beside what a script knows: fields, what is lost, what is doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httpx

from scripts._campaign_truth import Truth
from scripts._enrichment_town import all_items, checked

_ENTITIES = frozenset({"pc", "npc", "location", "item", "ability"})
_ATTRIBUTES = frozenset({"hp", "hp_max", "gold", "inventory", "conditions"})
_REFERENCES = {"location": "location_id", "giver": "giver_id"}

Item = Mapping[str, Any]


@dataclass(frozen=True)
class State:
    """The items of a campaign as the API gives them, and its chronicle's events."""

    world: Item
    entities: Sequence[Item]
    threads: Sequence[Item]
    clocks: Sequence[Item]
    facts: Sequence[Item]
    scenes: Sequence[Item]
    events: Sequence[Item]


@dataclass
class Differences:
    """How many fields there are, which are wrong, and what is there too seldom or too often."""

    fields: int = 0
    wrong: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])

    def compare(self, what: str, found: Any, wanted: Any) -> None:
        """Compare one field."""
        self.fields += 1
        if found != wanted:
            self.wrong.append(f"{what}: {found!r}, not {wanted!r}")

    def count(self, kind: str, found: Sequence[str], wanted: Sequence[str]) -> None:
        """Compare what there is with what there is to be, each once."""
        times, names = Counter(map(str.casefold, found)), [each.casefold() for each in wanted]
        self.lost += [f"{kind} {each}" for each in names if not times[each]]
        self.doubled += [
            f"{kind} {each}, {n} times" for each, n in times.items() if n > (each in names)
        ]


async def read_state(client: httpx.AsyncClient, campaign: str, chat: str) -> State:
    """Read all of it."""
    path = f"/campaigns/{campaign}"
    world = checked(await client.get(path))
    kinds = ("entities", "threads", "clocks", "facts", "scenes")
    items = {kind: await all_items(client, f"{path}/{kind}") for kind in kinds}
    settings = checked(await client.get(f"/chats/{chat}/settings"))
    events = await all_items(client, f"/chronicles/{settings['chronicle_id']}/events")
    return State(world=world, events=events, **items)


def differences(truth: Truth, state: State) -> Differences:
    """What of the state is not as the script knows it."""
    found = Differences()
    names = {each["id"]: each["name"] for each in state.entities}
    held = {(each["kind"], each["name"]): each for each in state.entities}
    held |= {(each["kind"], each["title"]): each for each in state.threads}
    held |= {("clock", each["name"]): each for each in state.clocks}
    scenes = [each for each in state.scenes if each["status"] == "open"]
    held["scene", ""] = scenes[-1] if scenes else {}
    held["world", ""] = state.world
    for (kind, name), wanted in truth.items.items():
        item = held.get((kind, name), {})
        for key, value in wanted.items() if kind != "topic" else ():
            found.compare(f"{kind} {name}, {key}", _value(item, key, names), _plain(value))
    live = [each["text"] for each in state.facts if each["superseded_by"] is None]
    over = {each["text"] for each in state.facts if each["superseded_by"] is not None}
    for text, audience in truth.facts.items():
        said = [each for each in state.facts if each["text"] == text]
        meant = audience if audience in {"public", "gm"} else [audience]
        told: Any = said[0]["audience"] if said else None
        if isinstance(told, list):
            told = [names.get(each) for each in cast("list[str]", told)]
        found.compare(f"fact {text}", told, meant)
    for text in truth.over:
        found.compare(f"over: {text}", text in over, wanted=True)
    found.count("fact", live, list(truth.facts))
    found.count("event", [each["summary"] for each in state.events], truth.events)
    for kind, items, key in (
        ("entity", state.entities, "name"),
        ("thread", state.threads, "title"),
        ("clock", state.clocks, "name"),
    ):
        kinds = {"thread": {"quest", "threat"}, "clock": {"clock"}}.get(kind, _ENTITIES)
        expected = [name for each, name in truth.items if each in kinds]
        found.count(kind, [each[key] for each in items], expected)
    for each in state.entities:
        things: list[Any] = each["attributes"].get("inventory") or []
        twice = [thing for thing, times in Counter(map(str, things)).items() if times > 1]
        found.doubled += [f"{each['name']} has {thing} twice" for thing in twice]
    return found


def _value(item: Item, key: str, names: Mapping[str, str]) -> Any:
    if key in _REFERENCES:
        return names.get(item.get(_REFERENCES[key]) or "")
    if key in _ATTRIBUTES:
        return _plain((item.get("attributes") or {}).get(key))
    return _plain(item.get(key))


def _plain(value: Any) -> Any:
    """Lists in one order."""
    return sorted(cast("list[str]", value)) if isinstance(value, list) else value
