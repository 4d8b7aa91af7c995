"""API schemas of chronicles."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from backend.chronicles.events import (
    MAX_MERGED,
    MAX_SOURCES,
    MAX_SUMMARY,
    ChronicleFields,
    EventFields,
    EventKind,
    Names,
    Significance,
    Words,
)
from backend.chronicles.models import EventSourceName
from backend.core.audience import PUBLIC, Audience

EventOrder = Literal["oldest", "newest"]

ChronicleName = Annotated[
    str, msgspec.Meta(min_length=1, max_length=500, pattern=r"\S", description="Not blank.")
]
Summary = Annotated[
    str, msgspec.Meta(min_length=1, max_length=MAX_SUMMARY, pattern=r"\S", description="Not blank.")
]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Sources = Annotated[list[UUID], msgspec.Meta(max_length=MAX_SOURCES)]


class NewChronicle(ChronicleFields, frozen=True, kw_only=True):
    """A chronicle to create. Only `name` is required."""

    name: ChronicleName  # pyright: ignore[reportGeneralTypeIssues]  # required on creation


class ChronicleView(msgspec.Struct, kw_only=True):
    """A chronicle without its events.

    `event_count` counts all events, `current_count` only active ones that are not superseded.
    `chat_ids` are the chats that use it. `lorebook_id` is the lorebook that the agent writes for
    these chats. `revision` counts changes of the chronicle, not of its events.
    """

    id: UUID
    name: str
    description: str
    event_count: int
    current_count: int
    chat_ids: list[UUID]
    lorebook_id: UUID | None
    revision: int
    created_at: datetime
    updated_at: datetime


class NewChronicleEvent(EventFields, frozen=True, kw_only=True):
    """An event to create. Only `summary` is required.

    `happened_at` is the real time when it was played. The default is the time of the last source
    message, or else now. `source_message_ids` are the messages it comes from. It is active while
    all of them are on their chats' active paths. `audience` limits who may know it: characters of
    the chats that use the chronicle, or entities of their campaigns.
    """

    summary: Summary  # pyright: ignore[reportGeneralTypeIssues]  # required on creation
    significance: Significance = 3
    pinned: bool = False
    happened_at: Moment | None = None
    source_message_ids: Sources = msgspec.field(default_factory=list[UUID])
    audience: Audience = PUBLIC


class EventChange(EventFields, frozen=True, kw_only=True):
    """The editable fields of an event.

    `superseded_by` is a newer event of the same chronicle that replaces this one. Null clears it.
    If `happened_at` is null, the time of the last source message is used.
    """

    significance: Significance = 3
    pinned: bool = False
    happened_at: Moment | None = None
    source_message_ids: Sources = msgspec.field(default_factory=list[UUID])
    superseded_by: UUID | None = None
    audience: Audience = PUBLIC


class EventView(
    EventFields, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=False
):
    """An event.

    `is_current` is true if all messages of one telling are on their chats' active paths and no
    active event supersedes it. An event has several tellings if it was told again to others.
    `edited` is true if a user changed an event of the agent. `run_id` is the agent's run.
    `known_to` are the characters in the chats of its chronicle that know it now.
    """

    id: UUID
    chronicle_id: UUID
    significance: int
    pinned: bool
    source: EventSourceName
    happened_at: datetime
    source_message_ids: list[UUID]
    source_chat_ids: list[UUID]
    is_current: bool
    superseded_by: UUID | None
    edited: bool
    run_id: UUID | None
    audience: Audience
    known_to: list[UUID]
    revision: int
    created_at: datetime
    updated_at: datetime


class MemorySource(msgspec.Struct, frozen=True, kw_only=True):
    """The messages in which a character learned of an event.

    `position` and `message_ids` are those of the messages in which the character heard it. Without
    messages, a user has written it. `chat_id` is then null, or another chat of the character.
    """

    chat_id: UUID | None = None
    chat_title: str = ""
    position: int | None = None
    message_ids: list[UUID] = []


class CharacterMemory(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a character remembers."""

    event: EventView
    source: MemorySource


class NewMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that a character of a chat knows."""

    text: Summary
    chat_id: UUID


class MergedFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of the merged event. Absent ones are derived from the merged events."""

    summary: Summary | UnsetType = UNSET
    kind: EventKind | UnsetType = UNSET
    day: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] | UnsetType | None = UNSET
    time: Words | UnsetType = UNSET
    where: Words | UnsetType = UNSET
    who: Names | UnsetType = UNSET
    keywords: Names | UnsetType = UNSET
    significance: Significance | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET


class EventMerge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events to merge into one."""

    event_ids: Annotated[list[UUID], msgspec.Meta(min_length=2, max_length=MAX_MERGED)]
    event: MergedFields = MergedFields()
