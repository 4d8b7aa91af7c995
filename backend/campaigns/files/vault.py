"""The layout of a vault: its folders and files, and the details of the entries in its lists.

`OUTLINES` has a table of fields for each list. The tables drive both the reader and the writer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from uuid import UUID

import msgspec
from msgspec import NODEFAULT

from backend.campaigns.files.markdown import decode_text, encode_text
from backend.campaigns.ledger.items import MAX_SCENES, STRUCTS, Kind, Objective
from backend.chronicles.transfer import EventRecord

MAIN = "campaign.md"
INDEX = "canon/temporal-index.json"

EntityKind = Literal["pc", "npc", "location", "item", "faction", "ability"]

FOLDERS: dict[EntityKind, str] = {
    "pc": "pcs",
    "npc": "npcs",
    "location": "locations",
    "item": "items",
    "faction": "factions",
    "ability": "abilities",
}
"""Folders of `canon` with one file for each entity."""

FOLDER_KINDS: dict[str, EntityKind] = {
    **{folder: kind for kind, folder in FOLDERS.items()},
    **dict.fromkeys(("characters", "players", "party"), "pc"),
    **dict.fromkeys(("places", "environments"), "location"),
    "people": "npc",
    "spells": "ability",
}

TENSIONS = {
    "critical": "critical",
    **dict.fromkeys(("urgent", "high"), "urgent"),
    **dict.fromkeys(("rising", "medium"), "rising"),
    **dict.fromkeys(("simmering", "low"), "simmering"),
}
THREAD_ENDS = {"resolved": "resolved", "done": "resolved", "failed": "failed", "dormant": "dormant"}
THREAD_STATUSES = {
    **THREAD_ENDS,
    **dict.fromkeys(("open", "active", "ongoing", "in progress"), "open"),
}
PRIORITIES = {
    **dict.fromkeys(("high", "critical", "urgent"), "high"),
    **dict.fromkeys(("medium", "normal", "rising"), "medium"),
    **dict.fromkeys(("low", "simmering"), "low"),
}
THREAD_WORDS = frozenset(
    {*TENSIONS, *THREAD_ENDS, "open", "active", "priority", "tension", "thread", "threads", "quest"}
    | {"quests", "plot", "plots", "very", "most", "and", "or", "matters", "things", "now", "soon"}
)
"""Words of headings that group threads by tension or status."""

NO_DAY = "Some day"
"""The heading of undated events that follow the days."""

UNTITLED = "Untitled"
WORLD = "World"
"""The heading of facts about the world."""

OTHER_DETAILS = {
    **dict.fromkeys(("next step", "next steps"), "next"),
    **dict.fromkeys(("quest giver", "given by"), "giver"),
    **dict.fromkeys(("segments", "progress"), "filled"),
    **dict.fromkeys(("key moment", "key moments"), "moment"),
    "objectives": "objective",
    "participants": "who",
    "place": "where",
}
"""Details by other names for them."""

COLUMNS = {
    **dict.fromkeys(
        ("thread", "quest", "name", "clock", "term", "word", "scene", "chapter"), "title"
    ),
    **dict.fromkeys(
        ("summary", "description", "definition", "consequence", "meaning", "event", "fact", "echo"),
        "text",
    ),
    **dict.fromkeys(("notes", "reason", "why"), "note"),
    "date": "day",
    "subject": "about",
    "value": "score",
}
"""Details by the names of table columns."""

BOX = re.compile(r"\[([ xX])\]\s{1,5}")
_MAX_DIGITS = 12

Find = Callable[[str], UUID | None]
"""Finds an entity by a link or a name, and warns if there is none."""

Refer = Callable[[UUID | None], str]
"""Returns the text that refers to an item: a link to an entity, or an `id` detail, or ""."""


class UnclearDetailError(Exception):
    """The text of a detail is none of the expected ones."""


@dataclass(frozen=True, slots=True)
class DetailCodec:
    """Converts between a value and the texts of a detail.

    Attributes:
        read: Returns the value, or raises `UnclearDetailError`.
        write: Returns the texts, of which empty ones are omitted.
        is_repeated: True if an entry can have the detail several times.
        is_raw: True if `read` decodes the texts.
    """

    read: Callable[[Sequence[str], Find], Any]
    write: Callable[[Any, Refer], Iterable[str]]
    is_repeated: bool = False
    is_raw: bool = False


def read_number(text: str) -> int | str:
    """Return a number, or a text that is none, which the item's validation refuses."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else text


def _choose(choices: Mapping[str, Any]) -> DetailCodec:
    def read(texts: Sequence[str], _: Find) -> Any:
        if (text := texts[-1].casefold()) in choices:
            return choices[text]
        raise UnclearDetailError

    return DetailCodec(read, lambda value, _: [str(value).lower()])


def _write_text(value: str, _: Refer) -> list[str]:
    return [encode_text(value)] if value else []


def _read_objective(text: str) -> dict[str, Any]:
    box = BOX.match(text)
    if box is None:
        return {"text": decode_text(text)}
    return {"text": decode_text(text[box.end() :]), "done": box[1] != " "}


def _write_objective(objective: Objective) -> str:
    return f"[{'x' if objective.done else ' '}] {encode_text(objective.text)}"


_TEXT = DetailCodec(lambda texts, _: texts[-1], _write_text)
_JOINED = DetailCodec(lambda texts, _: " ".join(filter(None, texts)), _write_text, is_repeated=True)
_LINES = DetailCodec(
    lambda texts, _: texts, lambda value, _: map(encode_text, value), is_repeated=True
)
_NUMBER = DetailCodec(lambda texts, _: read_number(texts[-1]), lambda value, _: [str(value)])
_FLAG = _choose({"true": True, "yes": True, "false": False, "no": False})
_OBJECTIVES = DetailCodec(
    lambda texts, _: list(map(_read_objective, texts)),
    lambda value, _: map(_write_objective, value),
    is_repeated=True,
    is_raw=True,
)
_LINK = DetailCodec(
    lambda texts, find: find(texts[-1]), lambda value, refer: [refer(value)], is_raw=True
)
_LINKS = DetailCodec(
    lambda texts, find: [found for each in texts if (found := find(each))],
    lambda value, refer: map(refer, value),
    is_repeated=True,
    is_raw=True,
)
_ID = DetailCodec(lambda texts, _: texts[-1:], lambda value, refer: [refer(value)])
_IDS = DetailCodec(
    lambda texts, _: texts[:MAX_SCENES], lambda value, refer: map(refer, value), is_repeated=True
)


@dataclass(frozen=True, slots=True)
class DetailField:
    """A detail of an entry, and the field of the item that contains it.

    A detail with a `target` is the `id` of an item of that kind. If `is_heading` is True, headings
    contain the value, and details are only read.
    """

    detail: str
    codec: DetailCodec
    name: str = ""
    target: Kind | None = None
    is_heading: bool = False

    @property
    def key(self) -> str:
        return self.name or self.detail


@dataclass(frozen=True)
class Outline:
    """A file of `canon` that contains a list under headings.

    Attributes:
        texts: The fields of an entry's title and text, or of its text alone.
        fields: The fields that are details.
        headings: The headings by the values of a field, in the order of the file.
        others: Details that reader and writer handle themselves.
    """

    kind: Kind | Literal["event"]
    title: str
    texts: tuple[str, ...]
    fields: tuple[DetailField, ...]
    headings: Mapping[str, str] = field(default_factory=dict[str, str])
    others: frozenset[str] = frozenset()

    @property
    def is_titled(self) -> bool:
        """True if entries have titles. An entry can then be a heading with its content."""
        return len(self.texts) > 1

    @cached_property
    def heading_field(self) -> DetailField | None:
        return next((each for each in self.fields if each.is_heading), None)

    @cached_property
    def details(self) -> frozenset[str]:
        """The names of all details."""
        return (
            self.repeated_details | self.others | {each.detail for each in self.fields} | {"title"}
        )

    @cached_property
    def raw_details(self) -> frozenset[str]:
        """Details that are not decoded when they are collected."""
        names = {each.detail for each in self.fields if each.codec.is_raw}
        return frozenset({*names, "audience", "about", "from", "to"})

    @cached_property
    def repeated_details(self) -> frozenset[str]:
        names = {each.detail for each in self.fields if each.codec.is_repeated}
        return frozenset({*names, "text", "audience", "locked"})

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The default values of the fields that are not required."""
        struct = EventRecord if self.kind == "event" else STRUCTS[self.kind]
        return {
            each.name: each.default if each.default is not NODEFAULT else each.default_factory()
            for each in msgspec.structs.fields(struct)
            if not each.required
        }

    def write(self, values: Mapping[str, Any], refer: Refer) -> Iterator[tuple[str, str]]:
        """Yield the details of an item that are not the default: names and texts."""
        for each in self.fields:
            value = values[each.key]
            if not each.is_heading and value != self.defaults[each.key]:
                yield from ((each.detail, text) for text in each.codec.write(value, refer))


TIMELINE = "timeline"

OUTLINES: dict[str, Outline] = {
    "open-threads": Outline(
        "thread",
        "Open threads",
        ("title", "summary"),
        (
            DetailField("tension", _choose(TENSIONS), is_heading=True),
            DetailField("next", _JOINED, "next_step"),
            DetailField("kind", _TEXT),
            DetailField("priority", _choose(PRIORITIES)),
            DetailField("status", _choose(THREAD_STATUSES)),
            DetailField("giver", _LINK, "giver_id"),
            DetailField("clock", _ID, "clock_id", target="clock"),
            DetailField("objective", _OBJECTIVES, "objectives"),
        ),
        {"critical": "Critical", "urgent": "Urgent", "rising": "Medium", "simmering": "Simmering"},
    ),
    TIMELINE: Outline(
        "event",
        "Timeline",
        ("summary",),
        (
            DetailField("kind", _TEXT),
            DetailField("time", _TEXT),
            DetailField("where", _TEXT),
            DetailField("who", _LINES),
            DetailField("keyword", _LINES, "keywords"),
            DetailField("significance", _NUMBER),
            DetailField("pinned", _FLAG),
        ),
        others=frozenset({"day"}),
    ),
    "clocks": Outline(
        "clock",
        "Clocks",
        ("name", "consequence"),
        (
            DetailField("kind", _TEXT, is_heading=True),
            DetailField("visible", _FLAG),
            DetailField("linked", _ID, "linked_id", target="clock"),
        ),
        {"threat": "Threat", "goal": "Goal", "project": "Project"},
        frozenset({"filled", "id"}),
    ),
    "facts": Outline(
        "fact",
        "Facts",
        ("text",),
        (DetailField("superseded by", _ID, "superseded_by", target="fact"),),
        others=frozenset({"about", "id"}),
    ),
    "relations": Outline(
        "relation",
        "Relations",
        ("note",),
        (DetailField("note", _JOINED),),
        others=frozenset({"from", "to", "score"}),
    ),
    "glossary": Outline(
        "term",
        "Glossary",
        ("term", "definition"),
        (DetailField("status", _TEXT, is_heading=True), DetailField("source", _TEXT)),
        {name: name.title() for name in ("proposed", "approved", "raw", "rejected")},
        frozenset({"uses"}),
    ),
    "scenes": Outline(
        "scene",
        "Scenes",
        ("title", "summary"),
        (
            DetailField("status", _TEXT, is_heading=True),
            DetailField("location", _LINK, "location_id"),
            DetailField("present", _LINKS),
            *(DetailField(name, _TEXT) for name in ("stakes", "type", "mood", "variant")),
            DetailField("beats", _NUMBER),
            DetailField("moment", _LINES, "key_moments"),
        ),
        {"closed": "Closed", "open": "Open"},
        frozenset({"id"}),
    ),
    "chapters": Outline(
        "chapter",
        "Chapters",
        ("title", "summary"),
        (DetailField("scene", _IDS, "scene_ids", target="scene"),),
    ),
    "echoes": Outline(
        "echo",
        "Echoes",
        ("text",),
        (DetailField("kind", _TEXT, is_heading=True), DetailField("resolved", _FLAG)),
        {"cost": "Costs", "threat": "Threats"},
    ),
}
"""The lists of `canon` by the names of their files, in the order in which they are read."""


def find_entity_kind(path: str) -> EntityKind | None:
    """Return the kind of entity of a file's nearest folder that has one."""
    folders = path.casefold().split("/")[:-1]
    return next((FOLDER_KINDS[each] for each in reversed(folders) if each in FOLDER_KINDS), None)


def find_outline_name(path: str) -> str | None:
    """Return the name of the list that a file contains."""
    stem = path.casefold().rpartition("/")[2].removesuffix(".md")
    return stem if stem in OUTLINES and path.casefold().endswith(".md") else None
