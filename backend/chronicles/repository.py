"""Rows of chronicles. Nothing here commits; what is someone else's does not exist."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.chronicles.errors import ChronicleNotFoundError, EventNotFoundError
from backend.chronicles.events import ChronicleFields
from backend.chronicles.limits import check_chronicles
from backend.chronicles.models import Chronicle, ChronicleEvent
from backend.chronicles.reading import sealed_chronicle
from backend.database.base import new_id

UNNAMED = "Chronicle"
"""What a chronicle is called that is named by nobody."""


async def get_chronicle(
    session: AsyncSession, chronicle_id: UUID, *, owner_id: UUID, lock: bool = False
) -> Chronicle:
    """Raises `ChronicleNotFoundError`, both when absent and when someone else's.

    `lock` lets one transaction at a time change the chronicle and its events.
    """
    query = select(Chronicle).where(Chronicle.id == chronicle_id, Chronicle.user_id == owner_id)
    chronicle = await session.scalar(query.with_for_update() if lock else query)
    if chronicle is None:
        raise ChronicleNotFoundError
    return chronicle


async def make_chronicle(
    session: AsyncSession, identity: Identity, fields: ChronicleFields
) -> Chronicle:
    """Make a chronicle without events. Raises `ChronicleFullError`."""
    await check_chronicles(session, owner_id=identity.user_id)
    chronicle_id = new_id()
    row = Chronicle(
        id=chronicle_id,
        user_id=identity.user_id,
        sealed_chronicle=sealed_chronicle(identity.sealer, chronicle_id, fields),
    )
    session.add(row)
    await session.flush()
    return row


async def get_event(
    session: AsyncSession, chronicle_id: UUID, event_id: UUID, *, owner_id: UUID
) -> ChronicleEvent:
    """Raises `EventNotFoundError`: absent, in another chronicle, or someone else's."""
    event = await session.scalar(
        select(ChronicleEvent).where(
            ChronicleEvent.id == event_id,
            ChronicleEvent.chronicle_id == chronicle_id,
            ChronicleEvent.user_id == owner_id,
        )
    )
    if event is None:
        raise EventNotFoundError
    return event
