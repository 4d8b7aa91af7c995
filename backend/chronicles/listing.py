"""Which events a page of a list shows: read in pieces, and opened only where texts decide."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.chronicles import repository
from backend.chronicles.cursor import Cursor
from backend.chronicles.filtering import EventFilter
from backend.chronicles.models import ChronicleEvent
from backend.chronicles.records import read_event
from backend.vault.sealing import Sealer

READ_AT_ONCE = 500
"""Events that are opened in one go."""

SEARCHED_AT_ONCE = 5_000
"""Events that one request looks through where their texts decide."""


async def find_page(
    session: AsyncSession,
    sealer: Sealer,
    chronicle_id: UUID,
    wanted: EventFilter,
    *,
    limit: int,
    after: Cursor | None,
    newest: bool,
) -> tuple[list[UUID], Cursor | None]:
    """The ids of at most `limit` events in story order, and where to go on; None at the end.

    Where texts decide, a page ends after `SEARCHED_AT_ONCE` events, however few were found among
    them.
    """
    bound = SEARCHED_AT_ONCE if wanted.reads_texts else limit
    size = READ_AT_ONCE if wanted.reads_texts else limit + 1
    conditions = [ChronicleEvent.chronicle_id == chronicle_id, *wanted.conditions()]
    found: list[UUID] = []
    looked_at = 0
    while True:
        rows = await repository.event_page(
            session,
            conditions,
            owner_id=sealer.user_id,
            limit=size,
            after=after,
            newest=newest,
        )
        for here, sealed in rows:
            if looked_at == bound or len(found) == limit:
                return found, after
            looked_at, after = looked_at + 1, here
            if not wanted.reads_texts or wanted.matches(read_event(sealer, here.event_id, sealed)):
                found.append(here.event_id)
        if len(rows) < size:
            return found, None
