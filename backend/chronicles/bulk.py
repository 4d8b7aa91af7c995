"""All of a chronicle's events at once: read, or written, in parts.

Between two parts others get their turn: there may be thousands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chronicles import repository
from backend.chronicles.cursor import Cursor
from backend.chronicles.limits import check_room
from backend.chronicles.models import ChronicleEvent, EventSource
from backend.chronicles.reading import StoryEvent, get_events
from backend.chronicles.writing import NewEvent, hold_chats, row_of, source_rows
from backend.vault.sealing import Sealer

AT_ONCE = 200


async def all_events(session: AsyncSession, sealer: Sealer, chronicle_id: UUID) -> list[StoryEvent]:
    """All events of a chronicle in story order, whether they count or not."""
    events: list[StoryEvent] = []
    while True:
        page = await repository.event_page(
            session,
            [ChronicleEvent.chronicle_id == chronicle_id],
            owner_id=sealer.user_id,
            limit=AT_ONCE,
            after=Cursor.of(events[-1]) if events else None,
            newest=False,
        )
        part = await get_events(session, sealer, [here.event_id for here, _ in page])
        events += (part[here.event_id] for here, _ in page)
        if len(page) < AT_ONCE:
            return events
        await asyncio.sleep(0)


async def add_all(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, events: Sequence[NewEvent]
) -> list[UUID]:
    """Write events into a chronicle of the sealer's owner; their ids, in the order given.

    Raises `ChronicleFullError`, and `MessageNotFoundError` where a chat that they come from was
    deleted meanwhile.
    """
    await check_room(session, chronicle_id, more=len(events))
    await hold_chats(session, [source for new in events for source in new.sources])
    # Not as objects of the session: those take longer to make than their texts to seal.
    to_events, to_sources = insert(ChronicleEvent), insert(EventSource)
    for start in range(0, len(events), AT_ONCE):
        part = events[start : start + AT_ONCE]
        await session.execute(to_events, [row_of(sealer, chronicle_id, new) for new in part])
        if sources := [row for new in part for row in source_rows(new.id, new.sources)]:
            await session.execute(to_sources, sources)
        await asyncio.sleep(0)
    return [new.id for new in events]


async def set_all(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> None:
    """Set columns of new events, each row with its `id` and the same columns beside it."""
    for start in range(0, len(rows), AT_ONCE):
        await session.execute(update(ChronicleEvent), rows[start : start + AT_ONCE])
