"""The tools of the agent: typed arguments, and the JSON Schemas for models.

Items are named by marks that are valid for one run. Docstrings and descriptions of the classes are
part of the schemas, so models read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast, get_args

import msgspec
from msgspec import Meta

from backend.chronicles.events import EventKind
from backend.generation.tools.calls import (
    InvalidCallError,
    convert_arguments,
    make_tool,
    read_arguments,
    simplify_schema,
)

MAX_SUMMARY = 600
MAX_TITLE = 100
MAX_CONTENT = 2_000
MAX_KEYS = 10

Knowledge = Literal["events", "lore", "messages"]
KNOWLEDGE: tuple[Knowledge, ...] = get_args(Knowledge)
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)

Because = Annotated[str, Meta(max_length=300, description="Why, in a few words.")]
Line = Annotated[
    str, Meta(pattern=r"^#?\d{1,9}$", max_length=10, description='A new line by its mark: "#12".')
]
EventMark = Annotated[str, Meta(max_length=10, description='An event by its mark, such as "E3".')]
EntryMark = Annotated[str, Meta(max_length=10, description='An entry by its mark, such as "L2".')]
Summary = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_SUMMARY,
        description="What happened: one fact, third person, past tense, full names.",
    ),
]
Day = Annotated[
    int, Meta(ge=-1_000_000, le=1_000_000, description="The story's day, if the text counts days.")
]
Time = Annotated[
    str, Meta(max_length=100, description="When in the story, if the text says so: the evening.")
]
Where = Annotated[str, Meta(max_length=150, description="The place, if the text says it.")]
Who = Annotated[
    list[Annotated[str, Meta(max_length=100)]],
    Meta(max_length=20, description="Names of all who take part."),
]
Keywords = Annotated[
    list[Annotated[str, Meta(max_length=60)]],
    Meta(max_length=10, description="Words that somebody would search for."),
]
Significance = Annotated[
    int, Meta(ge=1, le=5, description="1: a detail. 3: matters to the chapter. 5: unforgettable.")
]
Title = Annotated[str, Meta(min_length=1, max_length=MAX_TITLE, description="Its name.")]
Content = Annotated[
    str,
    Meta(min_length=1, max_length=MAX_CONTENT, description="What it is, in two to five sentences."),
]
Keys = Annotated[
    list[Annotated[str, Meta(max_length=60)]],
    Meta(
        min_length=1,
        max_length=MAX_KEYS,
        description="Its name and other names for it, as plain words.",
    ),
]


class SearchKnowledgeBase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Look up what is known: events of the chronicle, lore, old messages of this chat."""

    query: Annotated[str, Meta(min_length=1, max_length=500, description="Names and words.")]
    sources: Annotated[
        list[Knowledge], Meta(max_length=3, description="Where to look; none: everywhere.")
    ] = []
    limit: Annotated[int, Meta(ge=1, le=20, description="How much is wanted.")] = 8


class CreateChronicleEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Write one new event into the chronicle."""

    summary: Summary
    kind: EventKind = "event"
    story_day: Day | None = None
    story_time: Time = ""
    where: Where = ""
    who: Who = []
    keywords: Keywords = []
    significance: Significance = 3
    source_messages: Annotated[
        list[Line], Meta(max_length=20, description="The new lines that it comes from.")
    ] = []
    supersedes: Annotated[
        str, Meta(max_length=10, description='The event that is no longer true now: "E3".')
    ] = ""
    differs_from: Annotated[
        list[EventMark],
        Meta(max_length=10, description="Events that it was taken for, and that it is not."),
    ] = []


class UpdateChronicleEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mend or complete an event that you see and that is still true. Absent members stay."""

    event: EventMark
    summary: Summary | None = None
    kind: EventKind | None = None
    story_day: Day | None = None
    story_time: Time | None = None
    where: Where | None = None
    who: Who | None = None
    keywords: Keywords | None = None
    significance: Significance | None = None
    because: Because = ""


class CreateLorebookEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Write a lorebook entry about somebody or something with a name of its own."""

    title: Title
    content: Content
    keys: Keys
    because: Because = ""


class UpdateLorebookEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say an entry anew (`content`), or add to it (`append`): one of the two."""

    entry: EntryMark
    content: Content | None = None
    append: Annotated[Content, Meta(description="Sentences to add at its end.")] | None = None
    because: Because = ""


class FinishStudy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say that everything is written down."""


AgentCall = (
    SearchKnowledgeBase
    | CreateChronicleEvent
    | UpdateChronicleEvent
    | CreateLorebookEntry
    | UpdateLorebookEntry
    | FinishStudy
)

_ARGUMENTS: Mapping[str, type[AgentCall]] = {
    "search_knowledge_base": SearchKnowledgeBase,
    "create_chronicle_event": CreateChronicleEvent,
    "update_chronicle_event": UpdateChronicleEvent,
    "create_lorebook_entry": CreateLorebookEntry,
    "update_lorebook_entry": UpdateLorebookEntry,
    "finish": FinishStudy,
}


class Triage(msgspec.Struct, frozen=True, kw_only=True):
    """The decision if new lines contain anything to record."""

    why: Annotated[str, Meta(description="One short sentence.")] = ""
    significant: bool
    kinds: list[EventKind] = []


def read_call(name: str, arguments: Mapping[str, Any]) -> AgentCall:
    """Return a validated call. Empty members are dropped. Raises `InvalidCallError`."""
    wanted = _ARGUMENTS.get(name)
    if wanted is None:
        raise InvalidCallError(f"There is no such tool. There are {', '.join(_ARGUMENTS)}.")
    return read_arguments(arguments, wanted, _SCHEMAS[name])


def read_triage(value: Any) -> Triage:
    """Return the decision of a model without unknown kinds. Raises `InvalidCallError`."""
    if not isinstance(value, dict):
        raise InvalidCallError("Expected an object.")
    given = cast("dict[str, Any]", value)
    named = given.get("kinds")
    kinds = cast("Sequence[Any]", named) if isinstance(named, list) else ()
    known = [each for each in kinds if each in EVENT_KINDS]
    why = given.get("why")
    read = {
        "why": why if isinstance(why, str) else "",
        "significant": given.get("significant"),
        "kinds": list(dict.fromkeys(known)),
    }
    return convert_arguments(read, Triage)


TOOLS = tuple(make_tool(name, kind) for name, kind in _ARGUMENTS.items())
_SCHEMAS = {tool.name: tool.parameters for tool in TOOLS}
TRIAGE_SCHEMA = {**simplify_schema(Triage), "required": ["why", "significant", "kinds"]}
