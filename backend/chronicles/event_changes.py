"""What a user's change of events comes to: one that is changed, several that become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

import msgspec
from msgspec import UnsetType
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.audience import narrowest, opened, stored
from backend.chats.models import Message
from backend.chronicles.events import MAX_NAMES, MAX_SOURCES, MAX_SUMMARY, EventFields
from backend.chronicles.models import ChronicleEvent
from backend.chronicles.reading import SourceMessage, StoryEvent, find_sources, sealed_event
from backend.chronicles.repository import check_pins
from backend.chronicles.schemas import EventChange, MergedFields, NewChronicleEvent
from backend.chronicles.writing import NewEvent, set_sources, supersede, touch
from backend.errors import ValidationError
from backend.vault.sealing import Sealer
from backend.wire import struct_from

T = TypeVar("T")

YEARS = range(1900, 3000)
"""In which an event may have been played: what both databases store, and order, in any zone."""


def fields_of(said: NewChronicleEvent | EventChange) -> EventFields:
    """What an event says, of what came in. Raises `ValidationError` for a blank summary."""
    fields = struct_from(EventFields, said)
    if not fields.summary.strip():
        raise ValidationError("An event needs a summary.")
    return fields


def in_utc(moment: datetime | None) -> datetime | None:
    """A time in the world, in UTC. Raises `ValidationError` for one that nobody can have played."""
    if moment is None:
        return None
    if moment.year not in YEARS:
        raise ValidationError(f"happened_at must be in the years {YEARS[0]} to {YEARS[-1]}.")
    return moment.astimezone(UTC)


def change_of(event: StoryEvent) -> EventChange:
    """An event as a patch sees it."""
    return struct_from(
        EventChange,
        event,
        **msgspec.structs.asdict(event.fields),
        pinned=event.is_pinned,
        source_message_ids=[each.id for each in event.sources],
        audience=opened(event.audience),
    )


async def apply_change(
    session: AsyncSession,
    sealer: Sealer,
    row: ChronicleEvent,
    event: StoryEvent,
    wanted: EventChange,
) -> bool:
    """Have a row, which reads as `event`, become what is wanted; whether anything differed.

    What the agent wrote counts as edited then, unless it was only pinned, or unpinned.

    Raises `ValidationError`, `MessageNotFoundError`, `ChronicleFullError`.
    """
    fields = fields_of(wanted)
    was = change_of(event)
    sources = await next_sources(session, event, wanted, owner_id=sealer.user_id)
    happened_at = (
        in_utc(wanted.happened_at) or await last_said(session, sources) or event.created_at
    )
    wanted = msgspec.structs.replace(
        wanted, source_message_ids=[each.id for each in sources], happened_at=happened_at
    )
    if wanted == was:
        return False
    revision = row.revision
    if wanted.pinned and not was.pinned:
        await check_pins(session, row.chronicle_id)
    row.is_pinned, row.significance = wanted.pinned, wanted.significance
    row.happened_at, row.audience = happened_at, stored(wanted.audience)
    if fields != event.fields:
        row.sealed_event = sealed_event(sealer, row.id, fields)
    if sources is not event.sources:
        await set_sources(session, row, sources)
    if wanted.superseded_by != was.superseded_by:
        await supersede(session, row, wanted.superseded_by)
    if row.source == "agent" and msgspec.structs.replace(wanted, pinned=was.pinned) != was:
        row.is_edited = True
    touch(row)
    # One change, however many parts of the event it concerns.
    row.revision = revision + 1
    await session.flush()
    return True


async def next_sources(
    session: AsyncSession, event: StoryEvent, wanted: EventChange, *, owner_id: UUID
) -> Sequence[SourceMessage]:
    """An event's messages as they are to be: those that it has may have been deleted since.

    Raises `MessageNotFoundError`, `ValidationError`.
    """
    ids = wanted.source_message_ids
    have = {each.id: each for each in event.sources}
    if set(ids) == have.keys():
        return event.sources
    added = [each for each in ids if each not in have]
    kept = [have[each] for each in dict.fromkeys(ids) if each in have]
    return [*kept, *await find_sources(session, added, owner_id=owner_id)]


async def last_said(session: AsyncSession, sources: Sequence[SourceMessage]) -> datetime | None:
    """When the last of some messages was written; None without any that are there."""
    ids = [each.id for each in sources]
    found: datetime | None = await session.scalar(
        select(func.max(Message.created_at)).where(Message.id.in_(ids))
    )
    return found


def merge_events(events: Sequence[StoryEvent], given: MergedFields) -> NewEvent:
    """The event that events, in story order, make together; what is given is taken as it is.

    Summaries are joined, people, keywords and messages united. It is as significant as the most
    significant of them and of its kind, pinned if one of them is, and stands where the first does.
    The story's time and place are those of the first that has one. Those may know it who may know
    all of them.

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
        audience=narrowest([event.audience for event in events]),
    )


def _or(given: T | UnsetType, made: Callable[[], T]) -> T:
    return made() if isinstance(given, UnsetType) else given


def _joined(summaries: Iterable[str]) -> str:
    text = "\n".join(dict.fromkeys(summaries))
    if len(text) > MAX_SUMMARY:
        raise ValidationError(
            f"Together their summaries have {len(text):,} characters; {MAX_SUMMARY:,} are allowed. "
            "Send a shorter summary as `event.summary`.",
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
            f"Choose some as `event.{member}`.",
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
