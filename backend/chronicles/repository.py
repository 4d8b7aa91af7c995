"""Rows of chronicles. Nothing here commits; what is someone else's does not exist."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, column, exists, func, select, table, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import Chat
from backend.chronicles.cursor import Cursor
from backend.chronicles.errors import ChronicleNotFoundError, EventNotFoundError
from backend.chronicles.models import Chronicle, ChronicleEvent, EventSource
from backend.chronicles.reading import STORY_ORDER, current
from backend.database.types import Id

_LOREBOOKS = table(
    "lorebooks", column("id", Id()), column("user_id", Id()), column("chronicle_id", Id())
)
"""As much of that table as is needed here: lorebooks do not know chronicles, nor these them."""


class EventCounts(NamedTuple):
    """How many events a chronicle has, and how many of them are current."""

    all: int = 0
    current: int = 0


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


async def list_chronicles(
    session: AsyncSession, *, owner_id: UUID, limit: int, after: UUID | None
) -> list[Chronicle]:
    """Chronicles of a user, newest first, from behind `after`."""
    query = (
        select(Chronicle)
        .where(Chronicle.user_id == owner_id)
        .order_by(Chronicle.id.desc())
        .limit(limit)
    )
    if after is not None:
        query = query.where(Chronicle.id < after)
    return list(await session.scalars(query))


async def count_chronicles(session: AsyncSession, *, owner_id: UUID) -> int:
    """How many chronicles a user has."""
    query = select(func.count()).select_from(Chronicle).where(Chronicle.user_id == owner_id)
    return await session.scalar(query) or 0


async def event_counts(
    session: AsyncSession, chronicle_ids: Sequence[UUID]
) -> defaultdict[UUID, EventCounts]:
    """How many events each of some chronicles has. Looks at every one of them."""
    rows = await session.execute(
        select(ChronicleEvent.chronicle_id, func.count(), func.count().filter(current()))
        .where(ChronicleEvent.chronicle_id.in_(chronicle_ids))
        .group_by(ChronicleEvent.chronicle_id)
    )
    return defaultdict(EventCounts, {row[0]: EventCounts(row[1], row[2]) for row in rows})


async def chats_of(
    session: AsyncSession, chronicle_ids: Sequence[UUID], *, owner_id: UUID
) -> defaultdict[UUID, list[UUID]]:
    """The chats that use each of some chronicles, oldest first."""
    rows = await session.execute(
        select(Chat.chronicle_id, Chat.id)
        .where(Chat.chronicle_id.in_(chronicle_ids), Chat.user_id == owner_id)
        .order_by(Chat.id)
    )
    found: defaultdict[UUID, list[UUID]] = defaultdict(list)
    for chronicle_id, chat_id in rows:
        if chronicle_id is not None:
            found[chronicle_id].append(chat_id)
    return found


async def lock_chats(session: AsyncSession, chronicle_id: UUID, *, owner_id: UUID) -> None:
    """Let nobody else change the chats that use a chronicle until the transaction ends."""
    query = select(Chat.id).where(Chat.chronicle_id == chronicle_id, Chat.user_id == owner_id)
    await session.execute(query.order_by(Chat.id).with_for_update())


async def release_chats(session: AsyncSession, chronicle_id: UUID, *, owner_id: UUID) -> None:
    """Take a chronicle, and the consent to write into it, from the chats that use it."""
    await session.execute(
        update(Chat)
        .where(Chat.chronicle_id == chronicle_id, Chat.user_id == owner_id)
        .values(chronicle_id=None, chronicle_enabled=False, revision=Chat.revision + 1)
    )


async def lorebooks_of(
    session: AsyncSession, chronicle_ids: Sequence[UUID], *, owner_id: UUID
) -> dict[UUID, UUID]:
    """The lorebook of each of some chronicles; one without is left out."""
    books = _LOREBOOKS.c
    query = select(books.chronicle_id, books.id).where(
        books.chronicle_id.in_(chronicle_ids), books.user_id == owner_id
    )
    return dict((await session.execute(query)).all())


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


async def event_page(
    session: AsyncSession,
    conditions: Sequence[ColumnElement[bool]],
    *,
    owner_id: UUID,
    limit: int,
    after: Cursor | None,
    newest: bool,
) -> list[tuple[Cursor, bytes]]:
    """Events that meet the conditions, a chronicle's id among them, in story order.

    Of each where it stands, and what it says, still sealed.
    """
    query = (
        select(*STORY_ORDER, ChronicleEvent.sealed_event)
        .where(ChronicleEvent.user_id == owner_id, *conditions)
        .order_by(*(each.desc() if newest else each.asc() for each in STORY_ORDER))
        .limit(limit)
    )
    if after is not None:
        here = tuple_(*STORY_ORDER)
        there = tuple_(after.happened_at, after.place, after.event_id, types=_TYPES)
        query = query.where(here < there if newest else here > there)
    rows = await session.execute(query)
    return [(Cursor(row[0], row[1], row[2]), row[3]) for row in rows]


_TYPES = tuple(each.type for each in STORY_ORDER)


def comes_from(chat_id: UUID) -> ColumnElement[bool]:
    """The condition that an event comes from a message of a chat."""
    return exists().where(EventSource.event_id == ChronicleEvent.id, EventSource.chat_id == chat_id)
