"""Rows of turns and context records. Nothing here commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.turns.errors import TurnNotFoundError
from backend.turns.models import ContextRecord, ContextText, Turn


async def find_turn(session: AsyncSession, turn_id: UUID) -> Turn | None:
    """A turn by its id, whoever's: the caller looks at the owner."""
    return await session.get(Turn, turn_id, populate_existing=True)


async def get_turn(session: AsyncSession, turn_id: UUID, *, owner_id: UUID) -> Turn:
    """Raises `TurnNotFoundError`, both when absent and when someone else's."""
    turn = await find_turn(session, turn_id)
    if turn is None or turn.user_id != owner_id:
        raise TurnNotFoundError
    return turn


async def running_turn(session: AsyncSession, chat_id: UUID, *, owner_id: UUID) -> Turn | None:
    """The turn that runs in a chat."""
    return await session.scalar(
        select(Turn).where(
            Turn.chat_id == chat_id, Turn.user_id == owner_id, Turn.state == "running"
        )
    )


async def abandoned_turns(session: AsyncSession, *, before: datetime | None) -> Sequence[Turn]:
    """Running turns whose lease was over `before`; all of them where that is None."""
    query = select(Turn).where(Turn.state == "running")
    if before is not None:
        query = query.where(or_(Turn.lease_until.is_(None), Turn.lease_until < before))
    return list(await session.scalars(query))


async def request_stop(session: AsyncSession, turn_id: UUID) -> None:
    """Ask whichever process runs a turn to stop it."""
    await session.execute(update(Turn).where(Turn.id == turn_id).values(stop_requested=True))


async def find_record(
    session: AsyncSession, message_id: UUID, *, owner_id: UUID
) -> ContextRecord | None:
    """The context record of a reply."""
    return await session.scalar(
        select(ContextRecord).where(
            ContextRecord.id == message_id, ContextRecord.user_id == owner_id
        )
    )


async def texts_of(
    session: AsyncSession, chat_id: UUID, digests: Sequence[bytes]
) -> Sequence[ContextText]:
    """The kept texts of a chat with these hashes."""
    return list(
        await session.scalars(
            select(ContextText).where(
                ContextText.chat_id == chat_id, ContextText.digest.in_(digests)
            )
        )
    )


async def with_records(
    session: AsyncSession, message_ids: Sequence[UUID], *, owner_id: UUID
) -> set[UUID]:
    """Which of the messages have a context record."""
    query = select(ContextRecord.id).where(
        ContextRecord.id.in_(message_ids), ContextRecord.user_id == owner_id
    )
    return set(await session.scalars(query))
