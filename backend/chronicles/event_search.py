"""Pages of a chronicle's events: which a list shows, and where a page ends."""

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
from backend.chronicles.repository import STORY_ORDER, StoryEvent, current, get_events, open_event
from backend.errors import ValidationError
from backend.vault.sealing import Sealer

READ_AT_ONCE = 500
"""Events that are opened in one go."""

SEARCHED_AT_ONCE = 5_000
"""Events that one request looks through where their texts decide."""

ALL_AT_ONCE = 200
"""Events that are opened before others get their turn, where all of a chronicle's are wanted."""

_FORM = struct.Struct(">qi16s")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TYPES = tuple(each.type for each in STORY_ORDER)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in story order, that of one event, as a text that leads on to the next page."""

    happened_at: datetime
    place: int
    event_id: UUID

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor that `str` made a text of. Raises `ValidationError` for any other text."""
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
    """What events have to be like; what says nothing lets all through.

    `q` are words, each of which occurs in the summary, the place, a name or a keyword, and `who` is
    part of a name, whatever the case. Kind, words and names are sealed: no index finds them.
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
        """Whether events have to be opened to know."""
        return bool(self.q.split() or self.who.strip() or self.kind)

    def conditions(self) -> list[ColumnElement[bool]]:
        """What the database can tell."""
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
        """What the texts tell."""
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
        rows = await _rows(session, sealer, conditions, limit=size, after=after, newest=newest)
        for row in rows:
            if looked_at == bound or len(found) == limit:
                return found, after
            looked_at, after = looked_at + 1, Cursor(row.happened_at, row.place, row.id)
            if not wanted.reads_texts or wanted.matches(open_event(sealer, row)):
                found.append(row.id)
        if len(rows) < size:
            return found, None


async def all_events(session: AsyncSession, sealer: Sealer, chronicle_id: UUID) -> list[StoryEvent]:
    """All events of a chronicle in story order, whether they count or not."""
    conditions = [ChronicleEvent.chronicle_id == chronicle_id]
    events: list[StoryEvent] = []
    after: Cursor | None = None
    while True:
        rows = await _rows(
            session, sealer, conditions, limit=ALL_AT_ONCE, after=after, newest=False
        )
        part = await get_events(session, sealer, [row.id for row in rows])
        events += (part[row.id] for row in rows)
        if len(rows) < ALL_AT_ONCE:
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
    """Where events that meet the conditions stand, in story order, and what they say, sealed."""
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
