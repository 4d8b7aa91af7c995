"""Shapes of the campaigns' part of the API, beside the items' own."""

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
from backend.campaigns.rules.dice import DiceMode
from backend.campaigns.rules.registry import DEFAULT_RULES
from backend.http.schemas import MAX_INTEGER


class Brief(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What every prompt says of the campaign: where it plays, what begins it, who takes part."""

    setting: Text = ""
    hook: Text = ""
    roster: Text = ""
    city: Line = ""


class CampaignSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a campaign is remembered. Intervals count rounds.

    With `summaries`, its chats have a rolling summary, renewed every `memory_interval` rounds,
    and its scenes are compressed, every `scene_beats` finished turns and at their end; the oldest
    of more than `chapter_scenes` that are over become a chapter. Prompts tell the last chapters, in
    at most `chapter_tokens`.
    With `tools`, the model plays: it has the tools of the campaign's rules. `dice` says how dice
    fall, where the rules know both ways: a `pool` that the player sees and spends from, or a roll
    as in the `srd`.
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
    """What can be changed about a campaign itself."""

    name: Name
    rules: Annotated[str, msgspec.Meta(max_length=50)] = DEFAULT_RULES
    brief: Brief = msgspec.field(default_factory=Brief)
    settings: CampaignSettings = msgspec.field(default_factory=CampaignSettings)


class NewCampaign(CampaignFields, kw_only=True):
    """A campaign to make."""

    day: Annotated[int, msgspec.Meta(ge=1, le=MAX_DAY)] = 1
    time_of_day: Line = ""


class CampaignView(CampaignFields, kw_only=True):
    """A campaign. `version` counts what changed in it, its state included."""

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
    """What a campaign's patch may name."""

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


class Target(msgspec.Struct, kw_only=True):
    """What a change is about."""

    kind: Kind
    id: UUID
    name: str


class ChangeView(msgspec.Struct, kw_only=True):
    """A line of the ledger. `counts` is false while it is undone, or its message is not told.

    `because` says why, where a compaction has made it.
    """

    id: UUID
    seq: int
    version: int
    actor: Actor
    message_id: UUID | None
    turn_id: UUID | None
    target: Target
    set: dict[str, Any]
    add: dict[str, Any]
    remove: dict[str, Any]
    because: str
    counts: bool
    undone: bool
    created_at: datetime


class ChangePage(msgspec.Struct, kw_only=True):
    """A stretch of the ledger, newest first; `next` is the `before` of the following one."""

    items: list[ChangeView]
    next: int | None


class Contradicted(msgspec.Struct, kw_only=True):
    """A fact that a proposed one contradicts: its text when that was proposed, and now.

    `now` is null where it is no longer in force.
    """

    id: UUID
    then: str
    now: str | None


class ProposalView(msgspec.Struct, kw_only=True):
    """A change that was read out of a message and waits for its user's decision.

    `then`, `now` and `proposed` hold the same fields: as they were when the change was proposed, as
    they are, and as accepting would leave them; `then` and `now` are empty where an item is new.
    `conflicts` says for each field who has the last word on it: its lock (`locked`), who changed it
    (`user`, `tool`, `compactor`), or the user who took the change back (`undone`). Where it is not
    clear which item a `mention` means, `candidates` are those that it may. `revision` is that of
    what would change.
    """

    id: UUID
    state: ProposalState
    reason: ProposalReason
    target: Target
    is_new: bool
    because: str
    chat_id: UUID
    message_id: UUID
    then: dict[str, Any]
    now: dict[str, Any]
    proposed: dict[str, Any]
    conflicts: dict[str, str]
    contradicts: Contradicted | None
    mention: str
    candidates: list[Target]
    revision: int
    created_at: datetime
    updated_at: datetime


class VersionView(msgspec.Struct, kw_only=True):
    """Changes that were written together."""

    version: int
    actor: Actor
    changes: int
    created_at: datetime


class VersionPage(msgspec.Struct, kw_only=True):
    """Versions, newest first; `next` is the `before` of the following page."""

    items: list[VersionView]
    next: int | None


class Difference(msgspec.Struct, kw_only=True):
    """How an item of a version differs from what it is now."""

    target: Target
    then: dict[str, Any] | None
    now: dict[str, Any] | None


class Comparison(msgspec.Struct, kw_only=True):
    """What would change if a version were restored. `more` differ besides those shown."""

    version: int
    current: int
    differences: list[Difference]
    more: int


class Restore(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The version to go back to."""

    version: Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)]


class StateView(msgspec.Struct, kw_only=True):
    """The world as it is now. `scene` is the open one; null where none is.

    Long lists are cut: `more` says how many `entities`, `threads`, `clocks` and `echoes` there are
    besides.
    `locked` names what is locked of the day, the time of day, the flags and the attributes. Of the
    attributes, `play` is how play stands: its mood, and what belongs to it.
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
    """Both forms of the situation as a turn would get it, which of them it would be, and why."""

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
"""An item of each kind as the API shows it. `revision` is the number of its last change."""
