"""Tokens that models take of each user's in a day, in UTC."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.base import now
from backend.quotas.models import TokenLedger


async def add_tokens(session: AsyncSession, user_id: UUID, tokens: int) -> None:
    """Note tokens as spent today."""
    if tokens > 0:
        row = {"user_id": user_id, "day": now().date(), "tokens": tokens}
        await session.execute(insert(TokenLedger).values(row))


async def tokens_on(session: AsyncSession, user_id: UUID, day: date) -> int:
    """Tokens that were spent on a day."""
    query = select(func.coalesce(func.sum(TokenLedger.tokens), 0)).where(
        TokenLedger.user_id == user_id, TokenLedger.day == day
    )
    return await session.scalar(query) or 0


def seconds_until_tomorrow(at: datetime) -> float:
    """Seconds until midnight UTC."""
    midnight = datetime.combine(at.date() + timedelta(days=1), time(), tzinfo=UTC)
    return (midnight - at).total_seconds()
