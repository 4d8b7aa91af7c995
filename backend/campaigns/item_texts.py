"""What items of a campaign say in words: for the index, and for prompts that recall them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

from backend.campaigns.items import Chapter, Entity, Fact, Item, Scene, Thread


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
