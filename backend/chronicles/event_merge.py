"""One event in place of several: what it says, made of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec import UnsetType

from backend.chronicles.events import MAX_NAMES, MAX_SUMMARY, EventFields
from backend.chronicles.limits import MAX_SOURCES
from backend.chronicles.reading import SourceMessage, StoryEvent
from backend.chronicles.schemas import MergedFields
from backend.chronicles.writing import NewEvent
from backend.errors import ValidationError

T = TypeVar("T")


def merge_events(events: Sequence[StoryEvent], given: MergedFields) -> NewEvent:
    """The event that events, in story order, make together; what is given is taken as it is.

    Summaries are joined, people, keywords and messages united. It is as significant as the most
    significant of them and of its kind, pinned if one of them is, and stands where the first does.
    The story's time and place are those of the first that has one.

    Raises `ValidationError` where it would be longer than an event may be.
    """
    said = [event.fields for event in events]
    weightiest = max(events, key=lambda event: event.significance)
    timed = next((each for each in said if each.day is not None or each.time), said[0])
    fields = EventFields(
        summary=_or(given.summary, lambda: _joined(each.summary for each in said)),
        kind=_or(given.kind, lambda: weightiest.fields.kind),
        day=_or(given.day, lambda: timed.day),
        time=_or(given.time, lambda: timed.time),
        where=_or(given.where, lambda: next((each.where for each in said if each.where), "")),
        who=_or(given.who, lambda: _united("who", (each.who for each in said))),
        keywords=_or(given.keywords, lambda: _united("keywords", (each.keywords for each in said))),
    )
    return NewEvent(
        fields=fields,
        significance=_or(given.significance, lambda: weightiest.significance),
        source="user",
        is_pinned=_or(given.pinned, lambda: any(event.is_pinned for event in events)),
        happened_at=events[0].happened_at,
        place=events[0].place,
        sources=_all_sources(events),
    )


def _or(given: T | UnsetType, made: Callable[[], T]) -> T:
    return made() if isinstance(given, UnsetType) else given


def _joined(summaries: Iterable[str]) -> str:
    text = "\n".join(dict.fromkeys(summaries))
    if len(text) > MAX_SUMMARY:
        raise ValidationError(
            f"Together their summaries have {len(text):,} characters; {MAX_SUMMARY:,} are allowed. "
            "Send a summary along as `event.summary`.",
            extra={"limit": MAX_SUMMARY, "found": len(text)},
        )
    return text


def _united(member: str, lists: Iterable[list[str]]) -> list[str]:
    """The names of several lists, each once, whatever its case, as it comes first."""
    found: dict[str, str] = {}
    for names in lists:
        for name in names:
            found.setdefault(name.casefold(), name)
    if len(found) > MAX_NAMES:
        raise ValidationError(
            f"Together they have {len(found)} {member}; {MAX_NAMES} are allowed. "
            f"Say which as `event.{member}`.",
            extra={"limit": MAX_NAMES, "found": len(found)},
        )
    return list(found.values())


def _all_sources(events: Sequence[StoryEvent]) -> list[SourceMessage]:
    found = {source.id: source for event in events for source in event.sources}
    if len(found) > MAX_SOURCES:
        raise ValidationError(
            f"Together they come from {len(found)} messages; {MAX_SOURCES} are allowed.",
            extra={"limit": MAX_SOURCES, "found": len(found)},
        )
    return list(found.values())
