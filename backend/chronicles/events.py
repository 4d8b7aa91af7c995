"""What a chronicle and its events hold: shapes that are stored, sealed, and shown by the API."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

MAX_SUMMARY = 4_000
MAX_NAMES = 50

MAX_CHRONICLES = 1_000
"""Chronicles of one user."""

MAX_EVENTS = 20_000
"""Events in one chronicle, those among them that do not count now."""

MAX_PINNED = 100
"""Pinned events in one chronicle: each of them stands in every prompt."""

MAX_SOURCES = 50
"""Messages that one event comes from."""

MAX_MERGED = 20
"""Events that become one in one go."""

EventKind = Literal[
    "event",
    "discovery",
    "promise",
    "relationship",
    "conflict",
    "death",
    "travel",
    "possession",
    "fact",
]
"""What sort of thing happened. `fact` is something that is so, and may stop being so."""

Words = Annotated[str, msgspec.Meta(max_length=300)]
Names = Annotated[list[Words], msgspec.Meta(max_length=MAX_NAMES)]
Significance = Annotated[int, msgspec.Meta(ge=1, le=5)]
"""From 1, a detail, to 5, what nobody forgets."""


class ChronicleFields(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a chronicle says of itself."""

    name: Annotated[str, msgspec.Meta(max_length=500)] = ""
    description: Annotated[str, msgspec.Meta(max_length=20_000)] = ""


class EventFields(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What happened, and when, where and to whom in the story.

    `day` is the story's day where it counts days; `time` is whatever else it says: `evening`, `the
    second winter`.
    """

    summary: Annotated[str, msgspec.Meta(max_length=MAX_SUMMARY)] = ""
    kind: EventKind = "event"
    day: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] | None = None
    time: Words = ""
    where: Words = ""
    who: Names = []
    keywords: Names = []


def format_story_time(event: EventFields) -> str:
    """The story's own time of an event in words; empty where it has none."""
    day = "" if event.day is None else f"Day {event.day}"
    return ", ".join(filter(None, [day, event.time]))


def told(event: EventFields) -> str:
    """An event as a prompt tells it: when, where, who, and what happened."""
    about = [format_story_time(event), event.where, ", ".join(event.who)]
    head = "; ".join(filter(None, about))
    return f"{head}: {event.summary}" if head else event.summary
