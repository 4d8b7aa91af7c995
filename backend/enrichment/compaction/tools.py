"""The tools of a compaction: their fields and schemas, and the conversion of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast, get_args
from uuid import UUID

import msgspec
from msgspec import Meta

from backend.campaigns.ledger.changes import Operations
from backend.campaigns.ledger.items import Kind
from backend.campaigns.proposals.authority import Ambiguity
from backend.campaigns.rules.protocol import AttributeType, ToolRefusedError
from backend.chronicles.events import EventFields, EventKind
from backend.database.base import new_id
from backend.enrichment.cleaning import clip, to_one_line
from backend.generation.model import Tool

EVENT_TOOL = "chronicle_event_tool"

FieldType = AttributeType | Literal["reference", "references"] | tuple[str, ...]
"""The type of a field: text, number, list, an item by name, several items, or a choice of words."""

Words = Annotated[str, Meta(max_length=2_000)]


class CompactionCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of every tool."""

    ref: Annotated[str, Meta(max_length=200)] = ""
    name: Annotated[str, Meta(max_length=200)] = ""
    set: Annotated[dict[str, Any], Meta(max_length=30)] = {}
    add: Annotated[dict[str, Any], Meta(max_length=30)] = {}
    remove: Annotated[dict[str, Any], Meta(max_length=30)] = {}
    because: Words = ""
    source_turns: Annotated[list[int | Annotated[str, Meta(max_length=20)]], Meta(max_length=50)]


@dataclass(frozen=True, slots=True)
class Updater:
    """A tool: the kind of items that it creates and changes, and their fields.

    For entities and threads, `subkinds` are the ones that it may change; it creates the first.
    """

    name: str
    does: str
    kind: Kind | Literal["event"]
    fields: Mapping[str, FieldType]
    subkinds: Sequence[str] = ()


_THING: Mapping[str, FieldType] = {
    "name": "text",
    "status": "text",
    "role": "text",
    "description": "text",
    "aliases": "list",
}
_PERSON: Mapping[str, FieldType] = {
    **_THING,
    "disposition": "text",
    "personality": "text",
    "wants": "text",
    "voice": "list",
    "location": "reference",
}
_THREAD: Mapping[str, FieldType] = {
    "title": "text",
    "summary": "text",
    "priority": ("low", "medium", "high"),
    "tension": ("simmering", "rising", "urgent", "critical"),
    "status": ("open", "resolved", "failed", "dormant"),
    "next_step": "text",
    "giver": "reference",
    "objectives": "list",
    "done": "list",
}
_STORYLINES = ("storyline", "threat", "rumour")

UPDATERS: Mapping[str, Updater] = {
    each.name: each
    for each in (
        Updater(
            "character_updater_tool",
            "A player's character: how they are, where, and what they carry.",
            "entity",
            _PERSON,
            ("pc",),
        ),
        Updater(
            "npc_updater_tool",
            "Another person, or a group of people: `kind` faction.",
            "entity",
            {**_PERSON, "kind": ("npc", "faction")},
            ("npc", "faction"),
        ),
        Updater(
            "environment_updater_tool",
            "A place. `day` and `time_of_day` are of the whole world, and need no name.",
            "entity",
            {**_THING, "location": "reference", "day": "number", "time_of_day": "text"},
            ("location",),
        ),
        Updater("quest_updater_tool", "Something to be done.", "thread", _THREAD, ("quest",)),
        Updater(
            "ability_updater_tool",
            "Something that somebody can do: whose it is stands in `role`.",
            "entity",
            _THING,
            ("ability",),
        ),
        Updater(
            "item_updater_tool",
            "A thing that matters by itself. What is merely carried stands in an inventory.",
            "entity",
            {**_THING, "location": "reference"},
            ("item",),
        ),
        Updater(
            "scene_narrative_updater_tool",
            "The open scene; where none is open, a new one.",
            "scene",
            {
                "title": "text",
                "location": "reference",
                "stakes": "text",
                "type": "text",
                "present": "references",
                "key_moments": "list",
            },
        ),
        Updater(
            "thread_updater_tool",
            "Something unresolved that nobody has asked for: a storyline, a threat, a rumour.",
            "thread",
            {**_THREAD, "kind": _STORYLINES},
            _STORYLINES,
        ),
        Updater(
            "fact_recorder_tool",
            "A sentence that is true now, of whom `name` says: `set.text`. `set.supersedes` is the"
            " reference of a fact that it makes untrue.",
            "fact",
            {"text": "text", "supersedes": "text"},
        ),
        Updater(
            "clock_updater_tool",
            "A clock of 4, 6 or 8 segments. `add.filled` ticks it.",
            "clock",
            {
                "name": "text",
                "kind": ("threat", "goal", "project"),
                "segments": "number",
                "filled": "number",
                "consequence": "text",
            },
        ),
        Updater(
            EVENT_TOOL,
            "Something that happened and will be remembered: `set.summary`, one sentence."
            " `add.differs_from` are events that it was taken for, and that it is not.",
            "event",
            {
                "summary": "text",
                "kind": get_args(EventKind),
                "day": "number",
                "time": "text",
                "where": "text",
                "who": "list",
                "keywords": "list",
                "differs_from": "list",
                "significance": "number",
            },
        ),
    )
}

_LISTS = ("list", "references")
_SCHEMAS: Mapping[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "reference": {"type": "string", "description": "By name, or reference."},
    "number": {"type": "integer"},
    "list": {"type": "array", "items": {"type": "string"}},
    "references": {"type": "array", "items": {"type": "string"}},
}


def build_tools(attributes: Mapping[str, Mapping[str, AttributeType]]) -> list[Tool]:
    """Return the tools for a model. `attributes` are those of the campaign, by kind of entity."""
    return [
        Tool(each.name, each.does, build_schema(each, attributes.get(subkind, {})))
        for each in UPDATERS.values()
        for subkind in [each.subkinds[0] if each.subkinds else ""]
    ]


def build_schema(updater: Updater, attributes: Mapping[str, AttributeType]) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments, in the form that all providers accept."""
    fields: Mapping[str, FieldType] = {**updater.fields, **attributes}
    single: dict[str, FieldType] = {
        name: kind for name, kind in fields.items() if kind not in _LISTS
    }
    counted: dict[str, FieldType] = {
        name: kind for name, kind in fields.items() if kind in (*_LISTS, "number")
    }
    taken: dict[str, FieldType] = {name: kind for name, kind in counted.items() if name != "done"}
    about = "whom it is about" if updater.kind == "fact" else "it is called"
    members = {
        "ref": {"type": "string", "description": "Its reference in <world>, such as E3."},
        "name": {"type": "string", "description": f"Without a reference: what {about}."},
        "set": _object(single, "What is so now. What is left out stays as it is."),
        "add": _object(counted, "Put into lists; numbers are counted up."),
        "remove": _object(taken, "Taken out of lists; numbers are counted down."),
        "because": {"type": "string", "description": "Why, in a few words of the story."},
        "source_turns": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "The numbers of the new lines that say so.",
        },
    }
    members = {name: each for name, each in members.items() if each.get("properties") != {}}
    return {"type": "object", "properties": members, "required": ["because", "source_turns"]}


def _object(fields: Mapping[str, FieldType], description: str) -> dict[str, Any]:
    properties = {name: _schema(kind) for name, kind in fields.items()}
    return {"type": "object", "description": description, "properties": properties}


def _schema(kind: FieldType) -> dict[str, Any]:
    return {"type": "string", "enum": list(kind)} if isinstance(kind, tuple) else _SCHEMAS[kind]


MAX_TEXT = 1_000
MAX_LISTED = 20

_WORLD = frozenset({"day", "time_of_day"})


@dataclass(frozen=True, slots=True)
class DraftItem:
    """A change from the message at `position`.

    `replaces` is a fact that a new one makes untrue. With `unclear`, the user must choose the item,
    and `item_id` is new.
    """

    kind: Kind
    item_id: UUID
    operations: Operations
    position: int
    because: str
    replaces: UUID | None = None
    unclear: Ambiguity | None = None


@dataclass(frozen=True, slots=True)
class DraftEvent:
    """A new event for the chronicle, from the messages at these positions.

    `id` is provisional until it is stored. `differs_from` are references of similar events.
    """

    fields: EventFields
    significance: int
    because: str
    positions: Sequence[int]
    differs_from: Sequence[str] = ()
    id: UUID = field(default_factory=new_id)


def split_operations(asked: CompactionCall) -> tuple[CompactionCall | None, CompactionCall]:
    """Split a call into the part about the world, if any, and the rest."""
    given: dict[str, dict[str, Any]] = {"set": asked.set, "add": asked.add}
    world = {how: {k: v for k, v in each.items() if k in _WORLD} for how, each in given.items()}
    if not any(world.values()):
        return None, asked
    rest = {how: {k: v for k, v in each.items() if k not in _WORLD} for how, each in given.items()}
    replace = msgspec.structs.replace
    return replace(asked, remove={}, **world), replace(asked, **rest)


def put_objectives(
    operations: Operations, name: str, texts: Sequence[str], *, is_gone: bool
) -> None:
    """Add or remove objectives, or mark them as done."""
    open_ones = [{"text": text, "done": False} for text in texts]
    done = [{"text": text, "done": True} for text in texts]
    if name == "done":
        operations.add.setdefault("objectives", []).extend(done)
        operations.remove.setdefault("objectives", []).extend(open_ones)
    elif is_gone:
        operations.remove.setdefault("objectives", []).extend([*open_ones, *done])
    else:
        operations.add.setdefault("objectives", []).extend(open_ones)


def read_value(name: str, kind: FieldType, value: Any, how: str) -> Any:
    """Convert a value for its field. Raises `ToolRefusedError`."""
    if kind == "list":
        return split_list(value)
    if kind == "number":
        number = int(value) if isinstance(value, str) and _is_number(value) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ToolRefusedError(f"{name} is a number.")
        return number
    if how != "set":
        raise ToolRefusedError(f"{name} is a text: use `set`.")
    text = clean_arguments(str(value) if isinstance(value, int | float) else value)
    if not isinstance(text, str):
        raise ToolRefusedError(f"{name} is a text.")
    if isinstance(kind, tuple) and text not in kind:
        raise ToolRefusedError(f"{name} is one of: {', '.join(kind)}.")
    return text


def _is_number(text: str) -> bool:
    return text.strip().lstrip("+-").isdecimal() and len(text) < 12  # noqa: PLR2004


def build_event(asked: CompactionCall, positions: Sequence[int], because: str) -> DraftEvent:
    """Return the event of a call. Raises `ToolRefusedError`."""
    given = {**asked.add, **asked.set}
    names = EventFields.__struct_fields__
    said = {name: clean_arguments(value) for name, value in given.items() if name in names}
    said |= {name: split_list(said[name]) for name in ("who", "keywords") if name in said}
    said["summary"] = said.get("summary") or to_one_line(asked.name)
    if not said["summary"]:
        raise ToolRefusedError("An event has a `set.summary`, one sentence.")
    try:
        weight = msgspec.convert(given.get("significance", 3), int)
        return DraftEvent(
            fields=msgspec.convert(said, EventFields),
            significance=min(max(weight, 1), 5),
            because=because,
            positions=positions,
            differs_from=split_list(given.get("differs_from", [])),
        )
    except msgspec.ValidationError as error:
        raise ToolRefusedError(f"{error}.") from None


def clean_arguments(value: Any) -> Any:
    """Return a text as one safe line; other values are returned unchanged."""
    return clip(to_one_line(value), MAX_TEXT) if isinstance(value, str) else value


def split_list(value: Any) -> list[str]:
    """Return a list of texts. A single text becomes a list of one."""
    values = cast("Sequence[Any]", value) if isinstance(value, list) else [value]
    texts = [clean_arguments(each) for each in values[:MAX_LISTED]]
    if not all(isinstance(each, str) for each in texts):
        raise ToolRefusedError("A list holds texts.")
    return [each for each in texts if each]
