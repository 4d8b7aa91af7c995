"""The items of a campaign, and the fields of each kind.

An item's state is a dictionary of JSON types, the result of `ledger.changes.fold`. These structs
validate it and supply defaults.
"""

from typing import Annotated, Literal
from uuid import UUID

import msgspec

from backend.core.audience import Audience

Kind = Literal[
    "world", "entity", "relation", "thread", "clock", "fact", "scene", "chapter", "echo", "term"
]  # fmt: skip

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Line = Annotated[str, msgspec.Meta(max_length=1_000)]
Text = Annotated[str, msgspec.Meta(max_length=20_000)]
Lines = Annotated[list[Line], msgspec.Meta(max_length=200)]

MAX_DAY = 1_000_000
MAX_BEATS = 10_000
MAX_SCENES = 200
"""Maximum number of scenes in one chapter."""

MAX_MEMBERS = 200
MAX_ATTRIBUTE_BYTES = 64_000
_MAX_NUMBER = 10**15

Flags = Annotated[dict[Name, bool], msgspec.Meta(max_length=MAX_MEMBERS)]
_Scalar = (
    Line
    | Annotated[int, msgspec.Meta(ge=-_MAX_NUMBER, le=_MAX_NUMBER)]
    | Annotated[float, msgspec.Meta(ge=-_MAX_NUMBER, le=_MAX_NUMBER)]
    | bool
    | None
)
_Value = (
    _Scalar
    | Annotated[list[_Scalar], msgspec.Meta(max_length=MAX_MEMBERS)]
    | Annotated[dict[Name, _Scalar], msgspec.Meta(max_length=MAX_MEMBERS)]
)
Attribute = (
    _Scalar
    | Annotated[list[_Value], msgspec.Meta(max_length=MAX_MEMBERS)]
    | Annotated[dict[Name, _Value], msgspec.Meta(max_length=MAX_MEMBERS)]
)
"""A JSON value that is nested at most as deep as a list of objects, for example an inventory."""

Attributes = Annotated[dict[Name, Attribute], msgspec.Meta(max_length=MAX_MEMBERS)]


class Item(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that all items have. Only users can change a locked field."""

    locked: Annotated[list[Name], msgspec.Meta(max_length=50)] = []


class World(Item, kw_only=True):
    """The state of a campaign's world: day and time, flags, and numbers of the rules.

    The attribute `play` contains the play state.
    """

    day: Annotated[int, msgspec.Meta(ge=1, le=MAX_DAY)] = 1
    time_of_day: Line = ""
    flags: Flags = {}
    attributes: Attributes = {}

    def __post_init__(self) -> None:
        _check_size(self.attributes)


class Entity(Item, kw_only=True):
    """A player's character, another person, a place, a thing, a faction or an ability.

    `character_id` is the card that plays it in chats. Without one, a card with its name does.
    """

    kind: Literal["pc", "npc", "location", "item", "faction", "ability"]
    name: Name
    aliases: Annotated[list[Name], msgspec.Meta(max_length=50)] = []
    status: Line = "active"
    role: Line = ""
    description: Text = ""
    disposition: Line = ""
    personality: Text = ""
    voice: Lines = []
    wants: Line = ""
    location_id: UUID | None = None
    character_id: UUID | None = None
    attributes: Attributes = {}
    audience: Audience = "public"

    def __post_init__(self) -> None:
        _check_size(self.attributes)


class Relation(Item, kw_only=True):
    """The feelings of `from_id` towards `to_id`."""

    from_id: UUID
    to_id: UUID
    score: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    note: Line = ""
    audience: Audience = "public"


class Objective(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A step of a thread."""

    text: Line
    done: bool = False


class Thread(Item, kw_only=True):
    """Something unresolved in the story."""

    kind: Literal["quest", "storyline", "threat", "rumour"] = "storyline"
    title: Name
    summary: Text = ""
    priority: Literal["low", "medium", "high"] = "medium"
    tension: Literal["simmering", "rising", "urgent", "critical"] = "rising"
    status: Literal["open", "resolved", "failed", "dormant"] = "open"
    next_step: Line = ""
    objectives: Annotated[list[Objective], msgspec.Meta(max_length=50)] = []
    giver_id: UUID | None = None
    clock_id: UUID | None = None
    audience: Audience = "public"


class Clock(Item, kw_only=True):
    """A clock of segments. A full clock is done, and is kept."""

    name: Name
    segments: Literal[4, 6, 8] = 6
    filled: Annotated[int, msgspec.Meta(ge=0, le=8)] = 0
    kind: Literal["threat", "goal", "project"] = "threat"
    consequence: Line = ""
    linked_id: UUID | None = None
    visible: bool = True
    audience: Audience = "public"


class Fact(Item, kw_only=True):
    """A sentence that is true, of an entity or of the world, until another supersedes it."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=2_000)]
    about_id: UUID | None = None
    superseded_by: UUID | None = None
    audience: Audience = "public"


class Scene(Item, kw_only=True):
    """A part of the story at one place. The story is in the open scene."""

    title: Line = ""
    location_id: UUID | None = None
    present: Annotated[list[UUID], msgspec.Meta(max_length=100)] = []
    stakes: Line = ""
    type: Line = ""
    mood: Line = ""
    variant: Line = ""
    beats: Annotated[int, msgspec.Meta(ge=0, le=MAX_BEATS)] = 0
    status: Literal["open", "closed"] = "open"
    summary: Text = ""
    key_moments: Lines = []
    audience: Audience = "public"


class Chapter(Item, kw_only=True):
    """A summary of several closed scenes."""

    title: Line = ""
    summary: Text = ""
    scene_ids: Annotated[list[UUID], msgspec.Meta(max_length=MAX_SCENES)] = []
    audience: Audience = "public"


class Echo(Item, kw_only=True):
    """A cost that was paid, or a threat to the players that is not resolved."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=1_000)]
    kind: Literal["cost", "threat"] = "cost"
    resolved: bool = False
    audience: Audience = "public"


class Term(Item, kw_only=True):
    """A coined word of the story.

    Prompts contain `approved` terms with their meaning, `raw` ones alone.
    """

    term: Name
    definition: Line = ""
    source: Literal["auto", "manual"] = "manual"
    status: Literal["proposed", "approved", "raw", "rejected"] = "approved"
    audience: Audience = "public"


STRUCTS: dict[Kind, type[Item]] = {
    "world": World,
    "entity": Entity,
    "relation": Relation,
    "thread": Thread,
    "clock": Clock,
    "fact": Fact,
    "scene": Scene,
    "chapter": Chapter,
    "echo": Echo,
    "term": Term,
}

PRESENT: tuple[Kind, ...] = ("entity", "fact", "thread")
"""Kinds that describe the present."""

INDEXED: tuple[Kind, ...] = (*PRESENT, "scene", "chapter")
"""Kinds that the memory index contains. A scene is indexed when it is closed."""

_FEELINGS = (
    (75, "devoted"),
    (40, "ally"),
    (15, "friendly"),
    (-14, "neutral"),
    (-39, "wary"),
    (-74, "hostile"),
)


def _check_size(attributes: dict[str, Attribute]) -> None:
    size = len(msgspec.json.encode(attributes))
    if size > MAX_ATTRIBUTE_BYTES:
        raise ValueError(
            f"`attributes` take {size:,} bytes as JSON; {MAX_ATTRIBUTE_BYTES:,} are allowed"
        )


def label_relation(score: int) -> str:
    """Return the label of a relation's score (-100 to 100)."""
    return next((label for least, label in _FEELINGS if score >= least), "sworn enemy")
