"""The sealed content of chronicles and events, which the API also returns."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

MAX_SUMMARY = 4_000
MAX_NAMES = 50

MAX_CHRONICLES = 1_000
"""Chronicles of one user."""

MAX_EVENTS = 20_000
"""Events in one chronicle, including inactive ones."""

MAX_PINNED = 100
"""Pinned events in one chronicle. Each of them is in every prompt."""

MAX_SOURCES = 50
"""Messages that one event comes from."""

MAX_MERGED = 20
"""Events that can be merged into one."""

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
"""Kind of an event. A `fact` is a state that may end."""

Words = Annotated[str, msgspec.Meta(max_length=300)]
Names = Annotated[list[Words], msgspec.Meta(max_length=MAX_NAMES)]
Significance = Annotated[int, msgspec.Meta(ge=1, le=5)]
"""From 1, a detail, to 5, a turning point."""


class ChronicleFields(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Name and description of a chronicle."""

    name: Annotated[str, msgspec.Meta(max_length=500)] = ""
    description: Annotated[str, msgspec.Meta(max_length=20_000)] = ""


class EventFields(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The content of an event: its summary, and its time, place and people in the story.

    `day` is the number of the day in the story. `time` is any other time: `evening`, `the second
    winter`.
    """

    summary: Annotated[str, msgspec.Meta(max_length=MAX_SUMMARY)] = ""
    kind: EventKind = "event"
    day: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] | None = None
    time: Words = ""
    where: Words = ""
    who: Names = []
    keywords: Names = []


def format_story_time(event: EventFields) -> str:
    """Return the event's time in the story in words, or an empty string."""
    day = "" if event.day is None else f"Day {event.day}"
    return ", ".join(filter(None, [day, event.time]))


def render_event(event: EventFields) -> str:
    """Render an event for a prompt: time, place, people and summary."""
    about = [format_story_time(event), event.where, ", ".join(event.who)]
    head = "; ".join(filter(None, about))
    return f"{head}: {event.summary}" if head else event.summary
