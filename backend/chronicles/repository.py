"""Rows of chronicles, and how many there may be.

Nothing here commits; what is someone else's does not exist.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.chronicles.errors import ChronicleFullError, ChronicleNotFoundError, EventNotFoundError
from backend.chronicles.events import MAX_CHRONICLES, MAX_EVENTS, MAX_PINNED, ChronicleFields
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
    if await _count(session, Chronicle.user_id == identity.user_id) >= MAX_CHRONICLES:
        raise ChronicleFullError(
            f"An account can have {MAX_CHRONICLES:,} chronicles. Delete some first.",
            extra={"limit": "chronicles", "allowed": MAX_CHRONICLES},
        )
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


async def check_room(session: AsyncSession, chronicle_id: UUID, *, more: int) -> None:
    """Raise `ChronicleFullError` when `more` events do not go into a chronicle."""
    if await _count(session, ChronicleEvent.chronicle_id == chronicle_id) + more > MAX_EVENTS:
        raise ChronicleFullError(
            f"A chronicle can have {MAX_EVENTS:,} events. Delete or merge some.",
            extra={"limit": "chronicle_events", "allowed": MAX_EVENTS},
        )


async def check_pins(session: AsyncSession, chronicle_id: UUID, *, more: int = 1) -> None:
    """Raise `ChronicleFullError` when `more` events of a chronicle can't be pinned."""
    pinned = (ChronicleEvent.chronicle_id == chronicle_id) & ChronicleEvent.is_pinned
    if more and await _count(session, pinned) + more > MAX_PINNED:
        raise ChronicleFullError(
            f"A chronicle can have {MAX_PINNED} pinned events. Unpin some first.",
            extra={"limit": "pinned_events", "allowed": MAX_PINNED},
        )


async def _count(session: AsyncSession, condition: ColumnElement[bool]) -> int:
    return await session.scalar(select(func.count()).where(condition)) or 0
