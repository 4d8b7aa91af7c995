"""What a user's change of an event comes to, within the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import Message
from backend.chronicles.events import EventFields
from backend.chronicles.limits import check_pins
from backend.chronicles.models import ChronicleEvent
from backend.chronicles.reading import SourceMessage, StoryEvent, find_sources, sealed_event
from backend.chronicles.schemas import EventChange, NewChronicleEvent
from backend.chronicles.writing import set_sources, supersede, touch
from backend.errors import ValidationError
from backend.vault.sealing import Sealer
from backend.wire import struct_from

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
    row.happened_at = happened_at
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
