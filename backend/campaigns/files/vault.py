"""What a campaign's vault looks like: its folders, its files, and the words in them."""

from __future__ import annotations

from typing import Literal

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
"""Folders of `canon`, one file for each entity."""

FOLDER_KINDS: dict[str, EntityKind] = {
    **{folder: kind for kind, folder in FOLDERS.items()},
    "characters": "pc",
    "players": "pc",
    "party": "pc",
    "people": "npc",
    "places": "location",
    "environments": "location",
    "spells": "ability",
}

THREADS = "open-threads"
TIMELINE = "timeline"
CLOCKS = "clocks"
FACTS = "facts"
RELATIONS = "relations"
GLOSSARY = "glossary"
SCENES = "scenes"
CHAPTERS = "chapters"
ECHOES = "echoes"
OUTLINES = (THREADS, TIMELINE, CLOCKS, FACTS, RELATIONS, GLOSSARY, SCENES, CHAPTERS, ECHOES)
"""Files of `canon` that hold lists under headings."""

TENSIONS = {
    "critical": "critical",
    "urgent": "urgent",
    "high": "urgent",
    "rising": "rising",
    "medium": "rising",
    "simmering": "simmering",
    "low": "simmering",
}
TENSION_HEADINGS = {
    "critical": "Critical",
    "urgent": "Urgent",
    "rising": "Medium",
    "simmering": "Simmering",
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
"""Words of headings that group threads by priority or status."""

CLOCK_KINDS = ("threat", "goal", "project")
TERM_STATUSES = ("proposed", "approved", "raw", "rejected")
SCENE_STATUSES = ("open", "closed")
ECHO_KINDS = ("cost", "threat")
NO_DAY = "Some day"
"""The heading of events of no day that follow those of a day."""

LINKED = frozenset({"giver", "location", "present", "audience", "about", "from", "to"})
"""Details of an entry that name entities."""
UNTITLED = "Untitled"
WORLD = "World"
"""The heading of facts about the world, not about an entity."""

ATTRIBUTES = frozenset(
    {
        "class", "level", "race", "species", "background", "hp", "hp_max", "ac", "gold",
        "conditions", "inventory", "abilities", "speed", "xp", "stress", "trauma", "heat", "wanted",
    }
)  # fmt: skip
"""Front matter that belongs among an entity's attributes, and needs no warning."""

DETAILS: dict[str, frozenset[str]] = {
    THREADS: frozenset(
        {"next", "objective", "kind", "priority", "tension", "status", "giver", "clock"}
    ),
    TIMELINE: frozenset(
        {"day", "kind", "time", "where", "who", "keyword", "significance", "pinned"}
    ),
    CLOCKS: frozenset({"filled", "kind", "visible", "linked", "id"}),
    FACTS: frozenset({"about", "superseded by", "id"}),
    RELATIONS: frozenset({"from", "to", "score", "note"}),
    GLOSSARY: frozenset({"source", "uses", "status"}),
    SCENES: frozenset(
        {"location", "present", "stakes", "type", "mood", "variant", "beats", "moment", "status"}
        | {"id"}
    ),
    CHAPTERS: frozenset({"scene"}),
    ECHOES: frozenset({"kind", "resolved"}),
}
TITLED = frozenset({THREADS, CLOCKS, GLOSSARY, SCENES, CHAPTERS})
"""Lists of entries with a title. An entry may have a heading, which is its title then."""

OTHER_NAMES = {
    "next step": "next",
    "next steps": "next",
    "objectives": "objective",
    "quest giver": "giver",
    "given by": "giver",
    "segments": "filled",
    "progress": "filled",
    "participants": "who",
    "place": "where",
    "key moment": "moment",
    "key moments": "moment",
}
"""Names of details that people use, and those that are known."""

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
"""Names of a table's columns, and the details that they are."""

SEVERAL = frozenset(
    {"next", "objective", "who", "keyword", "moment", "present", "scene", "locked", "audience"}
    | {"text"}
)
"""Details that an entry may have several of."""

EVERYWHERE = frozenset({"title", "text", "audience", "locked"})
RAW = LINKED | {"objective"}
"""Details that are read as they are written: names, and what has a box in front."""


def find_entity_kind(path: str) -> EntityKind | None:
    """What kind of entity a file is about, by the nearest folder that says so."""
    folders = path.casefold().split("/")[:-1]
    return next((FOLDER_KINDS[each] for each in reversed(folders) if each in FOLDER_KINDS), None)


def find_outline_name(path: str) -> str | None:
    """Which file of lists it is, if any."""
    stem = path.casefold().rpartition("/")[2].removesuffix(".md")
    return stem if stem in OUTLINES and path.casefold().endswith(".md") else None
