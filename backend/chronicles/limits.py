"""How much a user's chronicles may hold, beside the sizes that `events` states."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chronicles.errors import ChronicleFullError
from backend.chronicles.models import Chronicle, ChronicleEvent

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


async def check_chronicles(session: AsyncSession, *, owner_id: UUID) -> None:
    """Raise `ChronicleFullError` when no further chronicle of a user's can be made."""
    if await _count(session, Chronicle.user_id == owner_id) >= MAX_CHRONICLES:
        raise ChronicleFullError(
            f"An account holds {MAX_CHRONICLES:,} chronicles. Delete some first.",
            extra={"limit": "chronicles", "allowed": MAX_CHRONICLES},
        )


async def check_room(session: AsyncSession, chronicle_id: UUID, *, more: int) -> None:
    """Raise `ChronicleFullError` when `more` events do not go into a chronicle."""
    if await _count(session, ChronicleEvent.chronicle_id == chronicle_id) + more > MAX_EVENTS:
        raise ChronicleFullError(
            f"A chronicle holds {MAX_EVENTS:,} events. Delete or merge some, or begin another one.",
            extra={"limit": "chronicle_events", "allowed": MAX_EVENTS},
        )


async def check_pins(session: AsyncSession, chronicle_id: UUID, *, more: int = 1) -> None:
    """Raise `ChronicleFullError` when `more` events of a chronicle can't be pinned."""
    pinned = (ChronicleEvent.chronicle_id == chronicle_id) & ChronicleEvent.is_pinned
    if more and await _count(session, pinned) + more > MAX_PINNED:
        raise ChronicleFullError(
            f"A chronicle has at most {MAX_PINNED} pinned events. Unpin some first.",
            extra={"limit": "pinned_events", "allowed": MAX_PINNED},
        )


async def _count(session: AsyncSession, condition: ColumnElement[bool]) -> int:
    return await session.scalar(select(func.count()).where(condition)) or 0
