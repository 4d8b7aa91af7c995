"""What is read of chronicles: events with their texts, and which of them count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from uuid import UUID

from sqlalchemy import ColumnElement, Select, exists, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.chats.errors import MessageNotFoundError
from backend.chats.models import Message
from backend.chronicles.events import EventFields
from backend.chronicles.models import ChronicleEvent, EventSource, EventSourceName
from backend.chronicles.records import open_event
from backend.errors import ValidationError
from backend.vault.sealing import Sealer

CHUNK = 5_000
"""Ids in one statement: both databases take some 32,000 parameters."""

STORY_ORDER = (ChronicleEvent.happened_at, ChronicleEvent.place, ChronicleEvent.id)
"""What events are ordered by, oldest first. An index has it, behind the chronicle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMessage:
    """A message that an event comes from. `position` is its depth in its chat's tree.

    `said_at` is known where the message itself was read.
    """

    id: UUID
    chat_id: UUID
    position: int
    said_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryEvent:
    """An event, unsealed.

    `counts` says that all of its messages are on their chats' active paths. `is_current` that,
    beside that, no event that counts has superseded it: `superseded_by` may be one that was swiped
    away. Sources stand in the order of their depth.
    """

    id: UUID
    chronicle_id: UUID
    fields: EventFields
    significance: int
    is_pinned: bool
    is_edited: bool
    source: EventSourceName
    happened_at: datetime
    place: int
    superseded_by: UUID | None
    run_id: UUID | None
    revision: int
    created_at: datetime
    updated_at: datetime
    sources: Sequence[SourceMessage]
    counts: bool
    is_current: bool

    @property
    def is_users(self) -> bool:
        """Whether a person wrote or changed it."""
        return self.source != "agent" or self.is_edited


@cache  # aliases are slow to make, and every turn asks
def counting(event: type[ChronicleEvent] = ChronicleEvent) -> ColumnElement[bool]:
    """The condition that an event counts: no source of it is off its chat's active path.

    A message that was deleted is on no path; an event without sources always counts. `event` is
    the table, or an alias of it. Asks one index entry a source.
    """
    source, message = aliased(EventSource), aliased(Message)
    is_active = exists().where(message.id == source.message_id, message.is_active)
    return ~exists().where(source.event_id == event.id, ~is_active)


@cache
def current(event: type[ChronicleEvent] = ChronicleEvent) -> ColumnElement[bool]:
    """The condition that an event counts, and that none which counts has superseded it."""
    later = aliased(ChronicleEvent)
    superseded = exists().where(later.id == event.superseded_by, counting(later))
    return counting(event) & ~superseded


def events_query(*conditions: ColumnElement[bool]) -> Select[ChronicleEvent, bool, bool]:
    """Events as `read_events` takes them: a row, whether it counts, whether it is current."""
    return select(ChronicleEvent, counting().label("counts"), current().label("is_current")).where(
        *conditions
    )


async def read_events(
    session: AsyncSession, sealer: Sealer, query: Select[ChronicleEvent, bool, bool]
) -> list[StoryEvent]:
    """The events of an `events_query`, in its order. The query names the owner.

    Rows that the session has already are read anew: deleting one event changes others.
    """
    rows = (await session.execute(query, execution_options={"populate_existing": True})).all()
    sources = await _sources(session, [row[0].id for row in rows])
    return [
        _story_event(sealer, row, sources[row.id], counts=counts, is_current=is_current)
        for row, counts, is_current in rows
    ]


async def get_events(
    session: AsyncSession, sealer: Sealer, event_ids: Sequence[UUID]
) -> dict[UUID, StoryEvent]:
    """Events by id, whether they count or not. Those that are gone, or not the sealer's, are not.

    Two queries for every 5,000 events.
    """
    found: dict[UUID, StoryEvent] = {}
    for ids in chunks(list(dict.fromkeys(event_ids))):
        query = events_query(ChronicleEvent.id.in_(ids), ChronicleEvent.user_id == sealer.user_id)
        found |= {event.id: event for event in await read_events(session, sealer, query)}
    return found


async def current_events(
    session: AsyncSession,
    sealer: Sealer,
    chronicle_id: UUID,
    *,
    limit: int,
    pinned: bool = False,
) -> list[StoryEvent]:
    """The latest `limit` events that are current, in story order, oldest first.

    `pinned` takes those alone that are pinned. What is not the sealer's chronicle has none.
    """
    query = events_query(
        ChronicleEvent.chronicle_id == chronicle_id, ChronicleEvent.user_id == sealer.user_id
    )
    if pinned:
        query = query.where(ChronicleEvent.is_pinned)
    latest = query.where(current()).order_by(*(each.desc() for each in STORY_ORDER)).limit(limit)
    return (await read_events(session, sealer, latest))[::-1]


async def find_sources(
    session: AsyncSession, message_ids: Sequence[UUID], *, owner_id: UUID
) -> list[SourceMessage]:
    """Messages as sources of an event, each once, in the order of their depth.

    Raises `MessageNotFoundError` where one is absent or someone else's, and `ValidationError` for
    one that is still being written.
    """
    wanted = list(dict.fromkeys(message_ids))
    found: list[SourceMessage] = []
    for ids in chunks(wanted):
        rows = await session.execute(
            select(
                Message.id, Message.chat_id, Message.position, Message.created_at, Message.status
            ).where(Message.id.in_(ids), Message.user_id == owner_id)
        )
        for row in rows:
            if row.status == "streaming":
                raise ValidationError(
                    "A source message is still being written: wait until it is there.",
                    extra={"message_id": str(row.id)},
                )
            found.append(
                SourceMessage(
                    id=row.id, chat_id=row.chat_id, position=row.position, said_at=row.created_at
                )
            )
    if missing := set(wanted) - {each.id for each in found}:
        first = next(each for each in wanted if each in missing)
        raise MessageNotFoundError(
            "A source message does not exist.", extra={"message_id": str(first)}
        )
    return sorted(found, key=_depth)


async def _sources(
    session: AsyncSession, event_ids: Sequence[UUID]
) -> defaultdict[UUID, list[SourceMessage]]:
    found: defaultdict[UUID, list[SourceMessage]] = defaultdict(list)
    for ids in chunks(event_ids):
        columns = EventSource.event_id, EventSource.message_id, EventSource.chat_id
        query = select(*columns, EventSource.position).where(EventSource.event_id.in_(ids))
        for event_id, message_id, chat_id, position in await session.execute(query):
            source = SourceMessage(id=message_id, chat_id=chat_id, position=position)
            found[event_id].append(source)
    for sources in found.values():
        sources.sort(key=_depth)
    return found


def _story_event(
    sealer: Sealer,
    row: ChronicleEvent,
    sources: Sequence[SourceMessage],
    *,
    counts: bool,
    is_current: bool,
) -> StoryEvent:
    return StoryEvent(
        id=row.id,
        chronicle_id=row.chronicle_id,
        fields=open_event(sealer, row),
        significance=row.significance,
        is_pinned=row.is_pinned,
        is_edited=row.is_edited,
        source=row.source,
        happened_at=row.happened_at,
        place=row.place,
        superseded_by=row.superseded_by,
        run_id=row.run_id,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
        sources=sources,
        counts=bool(counts),
        is_current=bool(is_current),
    )


def _depth(source: SourceMessage) -> tuple[int, UUID]:
    return source.position, source.id


def chunks(ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    """Ids in as many at a time as one statement takes."""
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]
