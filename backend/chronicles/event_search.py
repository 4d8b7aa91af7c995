"""Filters and pages of a chronicle's events."""

from __future__ import annotations

import asyncio
import binascii
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, exists, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chronicles.events import EventFields, EventKind
from backend.chronicles.models import ChronicleEvent, EventSource
from backend.chronicles.repository import (
    STORY_ORDER,
    StoryEvent,
    current,
    filter_known_events,
    get_events,
    open_event,
)
from backend.core.audience import GM, Viewpoint
from backend.errors import ValidationError
from backend.vault.sealing import Sealer

OPEN_BATCH_SIZE = 500
"""Events opened in one batch."""

MAX_SEARCHED_EVENTS = 5_000
"""Events that one request searches if their texts must be opened."""

READ_BATCH_SIZE = 200
"""Events opened before other tasks may run, if all events of a chronicle are read."""

_FORM = struct.Struct(">qi16s")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TYPES = tuple(each.type for each in STORY_ORDER)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of an event in story order. As text, it is the cursor of the next page."""

    happened_at: datetime
    place: int
    event_id: UUID

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse the result of `str`. Raises `ValidationError` for any other text."""
        try:
            microseconds, place, raw = _FORM.unpack(urlsafe_b64decode(text.encode("ascii") + b"=="))
            happened_at = _EPOCH + microseconds * _MICROSECOND
        except (binascii.Error, UnicodeEncodeError, struct.error, OverflowError) as error:
            raise ValidationError("after must be the `next` value of an earlier page.") from error
        return cls(happened_at, place, UUID(bytes=raw))

    def __str__(self) -> str:
        microseconds = (self.happened_at - _EPOCH) // _MICROSECOND
        packed = _FORM.pack(microseconds, self.place, self.event_id.bytes)
        return urlsafe_b64encode(packed).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Conditions on events. The defaults accept all.

    `q` are words that must each occur in the summary, the place, a name or a keyword. `who` is part
    of a name. Case is ignored. Kind, words and names are sealed, so there is no index of them.
    """

    current: bool = True
    q: str = ""
    kind: EventKind | None = None
    who: str = ""
    pinned: bool | None = None
    min_significance: int = 1
    chat_id: UUID | None = None

    @property
    def reads_texts(self) -> bool:
        """True if the filter needs the sealed fields."""
        return bool(self.q.split() or self.who.strip() or self.kind)

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions that the database can check."""
        found: list[ColumnElement[bool]] = []
        if self.pinned is not None:
            found.append(ChronicleEvent.is_pinned.is_(self.pinned))
        if self.min_significance > 1:
            found.append(ChronicleEvent.significance >= self.min_significance)
        if self.chat_id is not None:
            of_event = EventSource.event_id == ChronicleEvent.id
            found.append(exists().where(of_event, EventSource.chat_id == self.chat_id))
        if self.current:
            found.append(current())
        return found

    def matches(self, fields: EventFields) -> bool:
        """True if the opened fields meet the conditions."""
        if self.kind is not None and fields.kind != self.kind:
            return False
        who = self.who.strip().casefold()
        if who and not any(who in name.casefold() for name in fields.who):
            return False
        texts = (fields.summary, fields.where, *fields.who, *fields.keywords)
        text = "\n".join(texts).casefold()
        return all(word in text for word in self.q.casefold().split())


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
    """Return the ids of at most `limit` events in story order, and the next cursor or None.

    If texts must be opened, a page ends after `MAX_SEARCHED_EVENTS` events even if few of them
    matched.
    """
    bound = MAX_SEARCHED_EVENTS if wanted.reads_texts else limit
    size = OPEN_BATCH_SIZE if wanted.reads_texts else limit + 1
    conditions = [ChronicleEvent.chronicle_id == chronicle_id, *wanted.conditions()]
    found: list[UUID] = []
    looked_at = 0
    while True:
        rows = await _rows(session, sealer, conditions, limit=size, after=after, newest=newest)
        for row in rows:
            if looked_at == bound or len(found) == limit:
                return found, after
            looked_at, after = looked_at + 1, Cursor(row.happened_at, row.place, row.id)
            if not wanted.reads_texts or wanted.matches(open_event(sealer, row)):
                found.append(row.id)
        if len(rows) < size:
            return found, None


async def find_known_page(
    session: AsyncSession,
    sealer: Sealer,
    chronicle_ids: Sequence[UUID],
    viewpoint: Viewpoint,
    *,
    limit: int,
    after: Cursor | None,
) -> tuple[list[UUID], Cursor | None]:
    """Return the ids of current events that a viewpoint knows, newest first, and a cursor."""
    conditions = [
        ChronicleEvent.chronicle_id.in_(chronicle_ids),
        current(viewpoint),
        filter_known_events(viewpoint),
    ]
    rows = await _rows(session, sealer, conditions, limit=limit + 1, after=after, newest=True)
    page = rows[:limit]
    if len(rows) <= limit:
        return [row.id for row in page], None
    return [row.id for row in page], Cursor(page[-1].happened_at, page[-1].place, page[-1].id)


async def load_all_events(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, *, viewpoint: Viewpoint = GM
) -> list[StoryEvent]:
    """Return all events of a chronicle in story order, including inactive ones.

    Those that the viewpoint does not know are left out.
    """
    conditions = [ChronicleEvent.chronicle_id == chronicle_id]
    events: list[StoryEvent] = []
    after: Cursor | None = None
    while True:
        rows = await _rows(
            session, sealer, conditions, limit=READ_BATCH_SIZE, after=after, newest=False
        )
        part = await get_events(session, sealer, [row.id for row in rows], viewpoint=viewpoint)
        events += (part[row.id] for row in rows if row.id in part)
        if len(rows) < READ_BATCH_SIZE:
            return events
        after = Cursor(rows[-1].happened_at, rows[-1].place, rows[-1].id)
        await asyncio.sleep(0)


async def _rows(
    session: AsyncSession,
    sealer: Sealer,
    conditions: Sequence[ColumnElement[bool]],
    *,
    limit: int,
    after: Cursor | None,
    newest: bool,
) -> Sequence[Any]:
    """Return the positions and sealed fields of matching events, in story order."""
    query = (
        select(*STORY_ORDER, ChronicleEvent.sealed_event)
        .where(ChronicleEvent.user_id == sealer.user_id, *conditions)
        .order_by(*(each.desc() if newest else each.asc() for each in STORY_ORDER))
        .limit(limit)
    )
    if after is not None:
        here = tuple_(*STORY_ORDER)
        there = tuple_(after.happened_at, after.place, after.event_id, types=_TYPES)
        query = query.where(here < there if newest else here > there)
    return (await session.execute(query)).all()
