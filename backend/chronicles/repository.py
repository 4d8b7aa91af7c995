"""Read chronicles and events, and check limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Row, and_, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.accounts.auth.identity import Identity
from backend.chats.errors import MessageNotFoundError
from backend.chats.members import filter_heard_anywhere
from backend.chats.models import Message
from backend.chronicles.errors import ChronicleFullError, ChronicleNotFoundError, EventNotFoundError
from backend.chronicles.events import (
    MAX_CHRONICLES,
    MAX_EVENTS,
    MAX_PINNED,
    ChronicleFields,
    EventFields,
)
from backend.chronicles.models import (
    CHRONICLE,
    EVENT,
    Chronicle,
    ChronicleEvent,
    EventSource,
    EventSourceName,
)
from backend.core.audience import (
    GM,
    PUBLIC,
    Viewpoint,
    Witness,
    filter_known_to,
    filter_known_to_all,
    is_named,
)
from backend.database.base import new_id, skip_index, split_chunks
from backend.errors import ValidationError
from backend.http.schemas import make_struct
from backend.vault.sealing import Sealer

DEFAULT_NAME = "Chronicle"
"""Name of a chronicle if no name is given."""


async def get_chronicle(
    session: AsyncSession, chronicle_id: UUID, *, owner_id: UUID, lock: bool = False
) -> Chronicle:
    """Return a chronicle. Raises `ChronicleNotFoundError` if it is absent or another user's.

    `lock` makes other writers of the chronicle and its events wait.
    """
    query = select(Chronicle).where(Chronicle.id == chronicle_id, Chronicle.user_id == owner_id)
    chronicle = await session.scalar(query.with_for_update() if lock else query)
    if chronicle is None:
        raise ChronicleNotFoundError
    return chronicle


async def make_chronicle(
    session: AsyncSession, identity: Identity, fields: ChronicleFields
) -> Chronicle:
    """Create a chronicle without events. Raises `ChronicleFullError`."""
    if await _count(session, Chronicle.user_id == identity.user_id) >= MAX_CHRONICLES:
        raise ChronicleFullError(
            f"An account can have {MAX_CHRONICLES:,} chronicles. Delete some first.",
            extra={"limit": "chronicles", "allowed": MAX_CHRONICLES},
        )
    chronicle_id = new_id()
    row = Chronicle(
        id=chronicle_id,
        user_id=identity.user_id,
        sealed_chronicle=seal_chronicle(identity.sealer, chronicle_id, fields),
    )
    session.add(row)
    await session.flush()
    return row


async def get_event(
    session: AsyncSession, chronicle_id: UUID, event_id: UUID, *, owner_id: UUID
) -> ChronicleEvent:
    """Raises `EventNotFoundError` if absent, in another chronicle, or another user's."""
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
    """Raise `ChronicleFullError` if a chronicle has no room for `more` events."""
    if await _count(session, ChronicleEvent.chronicle_id == chronicle_id) + more > MAX_EVENTS:
        raise ChronicleFullError(
            f"A chronicle can have {MAX_EVENTS:,} events. Delete or merge some.",
            extra={"limit": "chronicle_events", "allowed": MAX_EVENTS},
        )


async def check_pins(session: AsyncSession, chronicle_id: UUID, *, more: int = 1) -> None:
    """Raise `ChronicleFullError` if `more` events of a chronicle cannot be pinned."""
    pinned = (ChronicleEvent.chronicle_id == chronicle_id) & ChronicleEvent.is_pinned
    if more and await _count(session, pinned) + more > MAX_PINNED:
        raise ChronicleFullError(
            f"A chronicle can have {MAX_PINNED} pinned events. Unpin some first.",
            extra={"limit": "pinned_events", "allowed": MAX_PINNED},
        )


async def _count(session: AsyncSession, condition: ColumnElement[bool]) -> int:
    return await session.scalar(select(func.count()).where(condition)) or 0


STORY_ORDER = (ChronicleEvent.happened_at, ChronicleEvent.place, ChronicleEvent.id)
"""Story order, oldest first. An index on it begins with the chronicle."""

_CHRONICLE = msgspec.json.Decoder(ChronicleFields)
_EVENT = msgspec.json.Decoder(EventFields)


def seal_chronicle(sealer: Sealer, chronicle_id: UUID, fields: ChronicleFields) -> bytes:
    return sealer.seal_bytes(CHRONICLE, chronicle_id, msgspec.json.encode(fields))


def open_chronicle(sealer: Sealer, row: Chronicle) -> ChronicleFields:
    return _CHRONICLE.decode(sealer.open_bytes(CHRONICLE, row.id, row.sealed_chronicle))


def seal_event(sealer: Sealer, event_id: UUID, fields: EventFields) -> bytes:
    return sealer.seal_bytes(EVENT, event_id, msgspec.json.encode(fields))


def open_event(sealer: Sealer, row: ChronicleEvent | Row[Any]) -> EventFields:
    """Open an event. `row` has the columns `id` and `seal_event`."""
    return _EVENT.decode(sealer.open_bytes(EVENT, row.id, row.sealed_event))


class SourceMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A source message of an event. `position` is its depth in its chat's tree."""

    id: UUID = msgspec.field(name="message_id")
    chat_id: UUID
    position: int


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The row of an event with its fields opened. Sources are in order of depth.

    `audience` is encoded as in its column.
    """

    id: UUID
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
    sources: Sequence[SourceMessage]
    audience: str = PUBLIC


class StoryEvent(StoredEvent, frozen=True, kw_only=True):
    """An event of a chronicle.

    `counts` is True if all of its messages are on their chats' active paths. `is_current` is True
    if it counts and no event that counts superseded it. `superseded_by` may be an event that does
    not count, because it was swiped away.
    """

    chronicle_id: UUID
    updated_at: datetime
    counts: bool
    is_current: bool

    @property
    def is_users(self) -> bool:
        """True if a user wrote or changed it."""
        return self.source != "agent" or self.is_edited


@cache  # aliases are slow to build, and every turn needs the condition
def counting(event: type[ChronicleEvent] = ChronicleEvent) -> ColumnElement[bool]:
    """Return the condition that all sources of one telling are on their chats' active paths.

    A deleted message is on no path, and an event without sources always counts. `event` is the
    table or an alias of it. The query reads an index entry for each source.
    """
    source, message, told, other = (
        *(aliased(EventSource), aliased(Message)),
        *(aliased(EventSource), aliased(EventSource)),
    )
    is_active = exists().where(message.id == source.message_id, message.is_active)
    is_inactive = exists().where(
        source.event_id == told.event_id, source.telling == told.telling, ~is_active
    )
    return or_(
        ~exists().where(other.event_id == event.id),
        exists().where(told.event_id == event.id, ~is_inactive),
    )


def filter_known_events(viewpoint: Viewpoint) -> ColumnElement[bool]:
    """Return the SQL condition that a viewpoint knows an event.

    A character knows an event if its audience allows that, and the character has heard one of its
    messages. An audience that a user has set needs no message.
    """
    if not isinstance(viewpoint, Witness):
        return filter_known_to(viewpoint, ChronicleEvent.audience)
    source, message, other = aliased(EventSource), aliased(Message), aliased(EventSource)
    heard = (
        exists()
        .where(source.event_id == ChronicleEvent.id, message.id == source.message_id)
        .where(message.is_active, filter_heard_anywhere(viewpoint, message))
    )
    named = is_named(viewpoint, ChronicleEvent.audience)
    return or_(
        and_(named, ChronicleEvent.is_edited),
        and_(
            or_(named, ChronicleEvent.audience == PUBLIC),
            or_(heard, ~exists().where(other.event_id == ChronicleEvent.id)),
        ),
    )


@cache
def current() -> ColumnElement[bool]:
    """Return the condition that an event counts and that no counting event superseded it."""
    later = aliased(ChronicleEvent)
    superseded = exists().where(later.id == ChronicleEvent.superseded_by, counting(later))
    return counting() & ~superseded


async def get_events(
    session: AsyncSession,
    sealer: Sealer,
    event_ids: Iterable[UUID],
    *,
    viewpoint: Viewpoint = GM,
) -> dict[UUID, StoryEvent]:
    """Return events that a viewpoint knows by id, including those that do not count.

    Two queries for every 5,000 events.
    """
    found: dict[UUID, StoryEvent] = {}
    for ids in split_chunks(list(dict.fromkeys(event_ids))):
        is_wanted = ChronicleEvent.id.in_(ids), filter_known_events(viewpoint)
        events = await _read_events(session, sealer, *is_wanted)
        found |= {event.id: event for event in events}
    return found


async def current_events(
    session: AsyncSession,
    sealer: Sealer,
    chronicle_id: UUID,
    *,
    limit: int,
    pinned: bool = False,
    viewpoint: Viewpoint = GM,
) -> list[StoryEvent]:
    """Return the latest `limit` current events in story order, oldest first.

    `pinned` selects only pinned events. Returns none if the chronicle is another user's.
    """
    conditions = [
        ChronicleEvent.chronicle_id == chronicle_id,
        current(),
        filter_known_events(viewpoint),
    ]
    if pinned:
        conditions.append(ChronicleEvent.is_pinned.expression)
    return (await _read_events(session, sealer, *conditions, latest=limit))[::-1]


async def read_message_events(
    session: AsyncSession,
    sealer: Sealer,
    chronicle_id: UUID,
    message_ids: Collection[UUID],
    *,
    audience: str,
) -> list[StoryEvent]:
    """Return current events with one of these source messages that an audience may know."""
    told = select(EventSource.event_id).where(EventSource.message_id.in_(message_ids))
    return await _read_events(
        session,
        sealer,
        ChronicleEvent.chronicle_id == chronicle_id,
        ChronicleEvent.id.in_(told),
        current(),
        filter_known_to_all(audience, ChronicleEvent.audience),
    )


async def _read_events(
    session: AsyncSession,
    sealer: Sealer,
    *conditions: ColumnElement[bool],
    latest: int | None = None,
) -> list[StoryEvent]:
    """Return events of the sealer's owner, or with `latest` only the last ones, newest first.

    Reloads rows that the session has already, because deleting one event changes others.
    """
    query = select(ChronicleEvent, counting().label("counts"), current().label("is_current")).where(
        *conditions, skip_index(ChronicleEvent.user_id) == sealer.user_id
    )
    if latest is not None:
        query = query.order_by(*(each.desc() for each in STORY_ORDER)).limit(latest)
    rows = (await session.execute(query, execution_options={"populate_existing": True})).all()
    sources = await load_sources(session, [row[0].id for row in rows])
    return [
        make_struct(
            StoryEvent,
            row,
            fields=open_event(sealer, row),
            sources=sources[row.id],
            counts=bool(counts),
            is_current=bool(is_current),
        )
        for row, counts, is_current in rows
    ]


async def load_sources(
    session: AsyncSession, event_ids: Sequence[UUID]
) -> defaultdict[UUID, list[SourceMessage]]:
    found: defaultdict[UUID, list[SourceMessage]] = defaultdict(list)
    for ids in split_chunks(event_ids):
        columns = EventSource.event_id, EventSource.message_id, EventSource.chat_id
        query = select(*columns, EventSource.position).where(EventSource.event_id.in_(ids))
        for event_id, message_id, chat_id, position in await session.execute(query):
            source = SourceMessage(id=message_id, chat_id=chat_id, position=position)
            found[event_id].append(source)
    for sources in found.values():
        sources.sort(key=_depth)
    return found


async def find_messages(
    session: AsyncSession, message_ids: Iterable[UUID], *, owner_id: UUID
) -> dict[UUID, SourceMessage]:
    found: dict[UUID, SourceMessage] = {}
    for ids in split_chunks(list(dict.fromkeys(message_ids))):
        rows = await session.execute(
            select(Message.id, Message.chat_id, Message.position).where(
                Message.id.in_(ids),
                skip_index(Message.user_id) == owner_id,
                Message.status != "streaming",
            )
        )
        found |= {row.id: make_struct(SourceMessage, row) for row in rows}
    return found


async def find_sources(
    session: AsyncSession, message_ids: Sequence[UUID], *, owner_id: UUID
) -> list[SourceMessage]:
    """Return messages as sources of an event, without duplicates, in order of depth.

    Raises `MessageNotFoundError` if one is absent or another user's, and `ValidationError` if one
    is still being written.
    """
    found = await find_messages(session, message_ids, owner_id=owner_id)
    if missing := [each for each in message_ids if each not in found]:
        extra = {"message_id": str(missing[0])}
        owned = Message.id == missing[0], Message.user_id == owner_id
        if await session.scalar(select(Message.id).where(*owned)) is None:
            raise MessageNotFoundError("A source message does not exist.", extra=extra)
        raise ValidationError(
            "A source message is still being written. Wait until it is finished.", extra=extra
        )
    return sorted(found.values(), key=_depth)


def _depth(source: SourceMessage) -> tuple[int, UUID]:
    return source.position, source.id
