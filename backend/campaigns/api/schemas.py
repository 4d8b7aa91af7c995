"""Schemas of the campaign API, except those of items."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from backend.campaigns.ledger.items import (
    MAX_DAY,
    STRUCTS,
    Attributes,
    Item,
    Kind,
    Line,
    Name,
    Text,
)
from backend.campaigns.models import Actor, ProposalReason, ProposalState
from backend.campaigns.rules.protocol import DEFAULT_RULES
from backend.campaigns.rules.state import DiceMode
from backend.http.schemas import MAX_INTEGER


class Brief(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The part of a campaign that every prompt contains: setting, hook, roster and city."""

    setting: Text = ""
    hook: Text = ""
    roster: Text = ""
    city: Line = ""


class CampaignSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The settings of a campaign. Intervals are in rounds.

    With `summaries`, its chats have a rolling summary, renewed every `memory_interval` rounds. Its
    scenes are compressed every `scene_beats` finished turns and when they close. If more than
    `chapter_scenes` are closed, the oldest become a chapter. Prompts contain the last chapters,
    with at most `chapter_tokens`. With `tools`, the model plays with the tools of the campaign's
    rules. `dice` selects the dice of rules that support both: a `pool` that the player sees and
    spends, or rolls as in the `srd`.
    """

    summaries: bool = True
    memory_interval: Annotated[int, msgspec.Meta(ge=1, le=100)] = 4
    compaction_interval: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5
    scene_beats: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 20
    chapter_scenes: Annotated[int, msgspec.Meta(ge=3, le=50)] = 8
    chapter_tokens: Annotated[int, msgspec.Meta(ge=0, le=20_000)] = 800
    hidden_information: bool = False
    approve_terms: bool = False
    glossary_tokens: Annotated[int, msgspec.Meta(ge=0, le=20_000)] = 500
    tools: bool = True
    dice: DiceMode = "pool"


class CampaignFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of a campaign that can be changed."""

    name: Name
    rules: Annotated[str, msgspec.Meta(max_length=50)] = DEFAULT_RULES
    brief: Brief = msgspec.field(default_factory=Brief)
    settings: CampaignSettings = msgspec.field(default_factory=CampaignSettings)


class NewCampaign(CampaignFields, kw_only=True):
    """A new campaign."""

    day: Annotated[int, msgspec.Meta(ge=1, le=MAX_DAY)] = 1
    time_of_day: Line = ""


class CampaignView(CampaignFields, kw_only=True):
    """A campaign. `version` counts the changes of its settings and state."""

    id: UUID
    day: int
    time_of_day: str
    flags: dict[str, bool]
    attributes: dict[str, Any]
    chat_ids: list[UUID]
    version: int
    created_at: datetime
    updated_at: datetime


class WorldPatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of a patch of a campaign."""

    name: Name = ""
    rules: str = DEFAULT_RULES
    brief: Brief = msgspec.field(default_factory=Brief)
    settings: CampaignSettings = msgspec.field(default_factory=CampaignSettings)
    day: Annotated[int, msgspec.Meta(ge=1, le=MAX_DAY)] = 1
    time_of_day: Line = ""
    flags: dict[Name, bool] = {}
    attributes: Attributes = {}
    locked: list[Name] = []


class RulesView(msgspec.Struct, kw_only=True):
    """A rule system, with the variants of each mood. Play begins in the first mood."""

    name: str
    title: str
    moods: dict[str, list[str]]


class ItemPage(msgspec.Struct, kw_only=True):
    """One page of a campaign's items of one kind."""

    items: list[Any]
    next: str | None


class ItemReference(msgspec.Struct, kw_only=True):
    """An item by kind, id and name."""

    kind: Kind
    id: UUID
    name: str


class ChangeView(msgspec.Struct, kw_only=True):
    """A line of the ledger.

    `counts` is false while it is undone or its message is off the active path.

    `because` is the reason for a change by a compaction.
    """

    id: UUID
    seq: int
    version: int
    actor: Actor
    message_id: UUID | None
    turn_id: UUID | None
    target: ItemReference
    set: dict[str, Any]
    add: dict[str, Any]
    remove: dict[str, Any]
    because: str
    counts: bool
    undone: bool
    created_at: datetime


class ChangePage(msgspec.Struct, kw_only=True):
    """A page of the ledger, newest first; `next` is the `before` of the following one."""

    items: list[ChangeView]
    next: int | None


class Contradiction(msgspec.Struct, kw_only=True):
    """A fact that a proposed one contradicts: its text at the time of the proposal, and now.

    `now` is null if it is no longer in force.
    """

    id: UUID
    then: str
    now: str | None


class ProposalView(msgspec.Struct, kw_only=True):
    """A change that was read from a message and waits for the user's decision.

    `then`, `now` and `proposed` contain the same fields: at the time of the proposal, now, and
    after accepting it. `then` and `now` are empty for a new item. `conflicts` contains the
    authority over each field: its lock (`locked`), the actor who changed it (`user`, `tool`,
    `compactor`), or the user who undid the change (`undone`). If a `mention` is ambiguous,
    `candidates` are the possible items. `revision` is the newest change of the items.
    """

    id: UUID
    state: ProposalState
    reason: ProposalReason
    target: ItemReference
    is_new: bool
    because: str
    chat_id: UUID
    message_id: UUID
    then: dict[str, Any]
    now: dict[str, Any]
    proposed: dict[str, Any]
    conflicts: dict[str, str]
    contradicts: Contradiction | None
    mention: str
    candidates: list[ItemReference]
    revision: int
    created_at: datetime
    updated_at: datetime


class VersionView(msgspec.Struct, kw_only=True):
    """The changes that were written together."""

    version: int
    actor: Actor
    changes: int
    created_at: datetime


class VersionPage(msgspec.Struct, kw_only=True):
    """Versions, newest first; `next` is the `before` of the following page."""

    items: list[VersionView]
    next: int | None


class ItemDifference(msgspec.Struct, kw_only=True):
    """An item that differs between a version and now."""

    target: ItemReference
    then: dict[str, Any] | None
    now: dict[str, Any] | None


class Comparison(msgspec.Struct, kw_only=True):
    """The effects of restoring a version. `more` counts further items that differ."""

    version: int
    current: int
    differences: list[ItemDifference]
    more: int


class Restore(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The version to go back to."""

    version: Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)]


class StateView(msgspec.Struct, kw_only=True):
    """The present state of the world. `scene` is the open one, or null.

    Long lists are cut: `more` counts the `entities`, `threads`, `clocks` and `echoes` that are
    missing. `locked` lists the locked keys among day, time of day, flags and attributes. The
    attribute `play` is the play state.
    """

    version: int
    day: int
    time_of_day: str
    flags: dict[str, bool]
    attributes: dict[str, Any]
    locked: list[str]
    scene: Any | None
    entities: list[Any]
    threads: list[Any]
    clocks: list[Any]
    echoes: list[Any]
    precarity: dict[str, Any] | None
    more: dict[str, int]


class CampaignContextView(msgspec.Struct, kw_only=True):
    """Both forms of the state block, the form that a turn would get, and the reason."""

    form: Literal["full", "light"]
    why: str
    full: str
    light: str
    tokens: dict[str, int]


def _view(kind: Kind, struct: type[Item]) -> type[msgspec.Struct]:
    more: list[tuple[str, Any]] = [
        ("id", UUID),
        ("revision", int),
        ("created_at", datetime),
        ("updated_at", datetime),
    ]
    if kind == "relation":
        more.append(("label", str))
    if kind == "term":
        more.append(("uses", int))
    name = f"{struct.__name__}View"
    return msgspec.defstruct(name, more, bases=(struct,), kw_only=True, module=__name__)


VIEWS: dict[Kind, type[msgspec.Struct]] = {
    kind: _view(kind, struct) for kind, struct in STRUCTS.items()
}
"""The API's format of each kind of item. `revision` is the number of its last change."""
