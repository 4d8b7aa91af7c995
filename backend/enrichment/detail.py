"""What a run read and wrote, as it is stored (sealed) and shown."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

import msgspec

EffectKind = Literal[
    "event_created",
    "event_changed",
    "event_removed",
    "entry_created",
    "entry_changed",
    "entry_removed",
]


class RunEffect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a run wrote.

    `id` is the event's or the entry's, `container_id` its chronicle's or lorebook's. `title` is for
    people: the summary, or the entry's title. `revision` is what the run left it at, 0 where it is
    gone. `before` is what `snapshot` made of it before: enough to put it back as it was.
    """

    what: EffectKind
    id: UUID
    container_id: UUID
    title: str
    because: str = ""
    revision: int = 0
    before: dict[str, Any] | None = None


class Refused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of the model's that came to nothing. `reason` is what the model was told.

    `tool` is empty where what it answered could not be read as calls.
    """

    tool: str
    reason: str
    duplicate_of: UUID | None = None


class RunDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run read, by ids, why it went on or did not, and what it wrote.

    `why` is the triage's reason. `note` is for people: that a demo wrote this, say. `kept` are the
    places among `effects` of those that undoing the run has left alone.
    """

    why: str = ""
    significant: bool = False
    kinds: list[str] = []
    message_ids: list[UUID] = []
    memory_ids: list[UUID] = []
    effects: list[RunEffect] = []
    refused: list[Refused] = []
    note: str = ""
    kept: list[int] = []
