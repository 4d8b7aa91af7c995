"""Which event supersedes which: chains within one chronicle that never go round."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chronicles.models import ChronicleEvent
from backend.chronicles.reading import chunks


async def is_there(session: AsyncSession, chronicle_id: UUID, event_id: UUID) -> bool:
    """Whether a chronicle has an event."""
    query = select(ChronicleEvent.id).where(
        ChronicleEvent.id == event_id, ChronicleEvent.chronicle_id == chronicle_id
    )
    return await session.scalar(query) is not None


async def leads_to(session: AsyncSession, start: UUID, ends: set[UUID]) -> bool:
    """Whether an event is, or is superseded by, over however many others, one of `ends`."""
    await session.flush()
    columns = select(ChronicleEvent.id, ChronicleEvent.superseded_by)
    walk = columns.where(ChronicleEvent.id == start).cte("walk", recursive=True)
    # UNION drops what was there before: a circle, which there must not be, would end, too.
    walk = walk.union(columns.join(walk, ChronicleEvent.id == walk.c.superseded_by))
    return not ends.isdisjoint(await session.scalars(select(walk.c.id)))


async def supersede_again(
    session: AsyncSession, chronicle_id: UUID, event_ids: Sequence[UUID], by: UUID
) -> None:
    """Have those of the events be superseded by one that are there, and by none yet."""
    for ids in chunks(event_ids):
        await session.execute(
            update(ChronicleEvent)
            .where(
                ChronicleEvent.id.in_(ids),
                ChronicleEvent.chronicle_id == chronicle_id,
                ChronicleEvent.superseded_by.is_(None),
            )
            .values(superseded_by=by)
        )


async def find_superseded(session: AsyncSession, by: Sequence[UUID]) -> list[UUID]:
    """The events that are superseded by one of these."""
    query = select(ChronicleEvent.id).where(ChronicleEvent.superseded_by.in_(by))
    return list(await session.scalars(query))
