"""What work behind the reply may spend of one user's in a day."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.enrichment.models import EnrichmentRun
from backend.jobs.errors import RetryLaterError

DAY = timedelta(hours=24)

_TOKENS = EnrichmentRun.prompt_tokens + EnrichmentRun.completion_tokens


async def spent_today(session: AsyncSession, user_id: UUID, at: datetime) -> int:
    """Tokens that runs took in the 24 hours before `at`, as providers reported them."""
    spent = await session.scalar(
        select(func.coalesce(func.sum(_TOKENS), 0)).where(
            EnrichmentRun.user_id == user_id, EnrichmentRun.created_at > at - DAY
        )
    )
    return int(spent or 0)


async def check_daily_budget(
    session: AsyncSession, user_id: UUID, at: datetime, *, allowed: int
) -> None:
    """Raises `RetryLaterError` where a user has spent `allowed` tokens in 24 hours."""
    after = await seconds_to_wait(session, user_id, at, allowed=allowed)
    if after:
        raise RetryLaterError("The user's tokens for the day are spent.", after=after)


async def seconds_to_wait(
    session: AsyncSession, user_id: UUID, at: datetime, *, allowed: int
) -> float:
    """Seconds until a user has spent less than `allowed` tokens in 24 hours; 0 when that is so now.

    With nothing allowed it is a day, each day.
    """
    if allowed <= 0:
        return DAY.total_seconds()
    if await spent_today(session, user_id, at) < allowed:
        return 0.0
    rows = await session.execute(
        select(EnrichmentRun.created_at, _TOKENS)
        .where(EnrichmentRun.user_id == user_id, EnrichmentRun.created_at > at - DAY)
        .order_by(EnrichmentRun.created_at.desc())
    )
    total = 0
    for created_at, tokens in rows:
        total += tokens
        if total >= allowed:
            # With this run a day old, what came after it is less than what is allowed.
            return max(1.0, (created_at + DAY - at).total_seconds())
    return 0.0
