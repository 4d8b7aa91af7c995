"""Read chronicles and events, and check limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Row, and_, case, exists, func, literal, or_, select, true
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.accounts.auth.identity import Identity
from backend.chats.errors import MessageNotFoundError
from backend.chats.members import MAX_CONDITIONS, Group, filter_heard_anywhere, load_group
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
    intersect_audiences,
    is_named,
    limit_audience,
    unite_audiences,
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
    query = select(Chronicle).where(Chronicle.id == chronicle_id, Chronicle.match_owner(owner_id))
    chronicle = await session.scalar(query.with_for_update() if lock else query)
    if chronicle is None:
        raise ChronicleNotFoundError
    return chronicle


async def make_chronicle(
    session: AsyncSession, identity: Identity, fields: ChronicleFields
) -> Chronicle:
    """Create a chronicle without events. Raises `ChronicleFullError`."""
    if await _count(session, Chronicle.match_owner(identity.user_id)) >= MAX_CHRONICLES:
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
    """A source message of an event. `position` is its depth in its chat's tree.

    `telling` is 0 for the messages that the event was first told in, and else the number of a later
    telling to others.
    """

    id: UUID = msgspec.field(name="message_id")
    chat_id: UUID
    position: int
    telling: int = 0


def group_tellings(sources: Iterable[SourceMessage]) -> dict[int, list[SourceMessage]]:
    """Return the source messages of each telling, by its number."""
    found: defaultdict[int, list[SourceMessage]] = defaultdict(list)
    for each in sources:
        found[each.telling].append(each)
    return found


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


FOLLOWS_MESSAGES: Sequence[EventSourceName] = ("agent", "campaign")
"""The authors of events whose audience is that of their messages."""


class StoryEvent(StoredEvent, frozen=True, kw_only=True):
    """An event of a chronicle.

    `counts` is True if all messages of one telling are on their chats' active paths. `is_current`
    is True if it counts and no event that counts superseded it. `superseded_by` may be an event
    that does not count, because it was swiped away. For a limited viewpoint, events that it does
    not know supersede nothing.

    `audience` is that of the tellings that count; `stored_audience` is the column. `is_heard` is
    True if the viewpoint knows all messages of one telling that counts.
    """

    chronicle_id: UUID
    updated_at: datetime
    counts: bool
    is_current: bool
    stored_audience: str = PUBLIC
    is_heard: bool = True

    @property
    def is_users(self) -> bool:
        """True if a user wrote or changed it."""
        return self.source != "agent" or self.is_edited

    @property
    def is_users_own(self) -> bool:
        """True if its audience is the user's, and not that of its messages."""
        return self.source not in FOLLOWS_MESSAGES or self.is_edited


Event = type[ChronicleEvent]
"""The table of events, or an alias of it."""

Viewpoints = Viewpoint | tuple[Viewpoint, ...]
"""A viewpoint, or several that must all know a text."""


_keep = lru_cache(maxsize=MAX_CONDITIONS)
"""Keeps the last conditions, because aliases are slow to build, and every turn needs them."""


@_keep
def counting(event: Event = ChronicleEvent) -> ColumnElement[bool]:
    """Return the condition that all sources of one telling are on their chats' active paths.

    A deleted message is on no path, and an event without sources always counts. `event` is the
    table or an alias of it. The query reads an index entry for each source.
    """
    source = aliased(EventSource)
    return or_(~exists().where(source.event_id == event.id), _has_telling(event))


@_keep
def _has_telling(event: Event, viewpoint: Viewpoint = GM) -> ColumnElement[bool]:
    """Return the condition that a viewpoint knows all messages of one telling that counts."""
    source, message = aliased(EventSource), aliased(Message)
    if viewpoint == GM:
        told = aliased(EventSource)
        is_active = exists().where(message.id == source.message_id, message.is_active)
        is_left = exists().where(
            source.event_id == told.event_id, source.telling == told.telling, ~is_active
        )
        return exists().where(told.event_id == event.id, ~is_left)
    if isinstance(viewpoint, Witness):
        is_heard = filter_heard_anywhere(viewpoint, message)
    else:
        is_heard = filter_known_to(viewpoint, message.audience)
    # Grouping is flatter than nested conditions, of which SQLite's parser allows few.
    return (
        select(source.telling)
        .outerjoin(message, message.id == source.message_id)
        .where(source.event_id == event.id)
        .group_by(source.telling)
        .having(func.min(case((and_(message.is_active, is_heard), 1), else_=0)) == 1)
        .exists()
    )


@_keep
def filter_known_events(
    viewpoints: Viewpoints, event: Event = ChronicleEvent
) -> ColumnElement[bool]:
    """Return the SQL condition that a viewpoint, or each of several, knows an event.

    The audience must include the viewpoint, and the viewpoint must know all messages of one telling
    that counts. An audience that a user has set needs no message, as long as all of them are
    active. The same holds for a public event of a user, unless the viewpoint is a character, for
    which `public` means everyone who was there.
    """
    if isinstance(viewpoints, tuple):
        return and_(true(), *(filter_known_events(each, event) for each in viewpoints))
    if viewpoints == GM:
        return true()
    source, anywhere, message = aliased(EventSource), aliased(EventSource), aliased(Message)
    has_none = ~exists().where(anywhere.event_id == event.id)
    is_lost = exists().where(
        source.event_id == event.id,
        ~exists().where(message.id == source.message_id, message.is_active),
    )
    is_users = or_(event.is_edited, event.source.not_in(FOLLOWS_MESSAGES))
    set_by_user = and_(is_users, ~is_lost)
    heard = or_(has_none, _has_telling(event, viewpoints))
    if isinstance(viewpoints, Witness):
        named = is_named(viewpoints, event.audience)
        return or_(and_(named, or_(set_by_user, heard)), and_(event.audience == PUBLIC, heard))
    return and_(filter_known_to(viewpoints, event.audience), or_(set_by_user, heard))


def current(viewpoints: Viewpoints = GM) -> ColumnElement[bool]:
    """Return the condition that an event counts and that no counting event superseded it.

    A superseding event that one of the viewpoints does not know has no effect.
    """
    is_whole = viewpoints in {GM, (GM,)}
    return _CURRENT if is_whole else _make_current(viewpoints)


@_keep
def _make_current(viewpoints: Viewpoints) -> ColumnElement[bool]:
    later = aliased(ChronicleEvent)
    superseded = exists().where(
        later.id == ChronicleEvent.superseded_by,
        counting(later),
        filter_known_events(viewpoints, later),
    )
    return counting() & ~superseded


_CURRENT = _make_current(GM)


async def get_events(
    session: AsyncSession,
    sealer: Sealer,
    event_ids: Iterable[UUID],
    *,
    viewpoint: Viewpoints = GM,
) -> dict[UUID, StoryEvent]:
    """Return events that a viewpoint knows by id. For the game master, some may not count.

    Two queries for every 5,000 events.
    """
    found: dict[UUID, StoryEvent] = {}
    for ids in split_chunks(list(dict.fromkeys(event_ids))):
        events = await _read_events(
            session, sealer, ChronicleEvent.id.in_(ids), viewpoint=viewpoint
        )
        found |= {event.id: event for event in events}
    return found


async def current_events(
    session: AsyncSession,
    sealer: Sealer,
    chronicle_id: UUID,
    *,
    limit: int,
    pinned: bool = False,
    viewpoint: Viewpoints = GM,
    unknown_to: tuple[Viewpoint, ...] = (),
) -> list[StoryEvent]:
    """Return the latest `limit` current events in story order, oldest first.

    `pinned` selects only pinned events. `unknown_to` excludes events that each of these viewpoints
    knows. Returns none if the chronicle is another user's.
    """
    conditions = [ChronicleEvent.chronicle_id == chronicle_id, current(viewpoint)]
    if pinned:
        conditions.append(ChronicleEvent.is_pinned.expression)
    if unknown_to != ():
        conditions.append(~filter_known_events(unknown_to))
        if not any(isinstance(each, Witness) for each in unknown_to):
            # Without groups, all events are public, and their messages need not be read.
            conditions.append(ChronicleEvent.audience != PUBLIC)
    found = await _read_events(session, sealer, *conditions, viewpoint=viewpoint, latest=limit)
    return found[::-1]


async def read_message_events(
    session: AsyncSession,
    sealer: Sealer,
    chronicle_id: UUID,
    message_ids: Collection[UUID],
    *,
    viewpoint: Viewpoints = GM,
    audience: str = GM,
) -> list[StoryEvent]:
    """Return current events with one of these source messages that a viewpoint may know.

    `audience` must be able to know them, too.
    """
    told = select(EventSource.event_id).where(EventSource.message_id.in_(message_ids))
    return await _read_events(
        session,
        sealer,
        ChronicleEvent.chronicle_id == chronicle_id,
        ChronicleEvent.id.in_(told),
        current(viewpoint),
        filter_known_to_all(audience, ChronicleEvent.audience),
        viewpoint=viewpoint,
    )


async def find_knowers(
    session: AsyncSession, event_ids: Sequence[UUID], witnesses: Mapping[UUID, Witness]
) -> defaultdict[UUID, list[UUID]]:
    """Return the characters that know each event. One query for each character."""
    found: defaultdict[UUID, list[UUID]] = defaultdict(list)
    for character_id, witness in witnesses.items():
        for ids in split_chunks(event_ids):
            known = ChronicleEvent.id.in_(ids), filter_known_events(witness)
            for event_id in await session.scalars(select(ChronicleEvent.id).where(*known)):
                found[event_id].append(character_id)
    return found


async def _read_events(
    session: AsyncSession,
    sealer: Sealer,
    *conditions: ColumnElement[bool],
    viewpoint: Viewpoints = GM,
    latest: int | None = None,
) -> list[StoryEvent]:
    """Return events of the sealer's owner, or with `latest` only the last ones, newest first.

    Events of a chronicle that is being deleted are left out.
    Reloads rows that the session has already, because deleting one event changes others.
    """
    is_heard: ColumnElement[bool] = literal(value=True)
    if isinstance(viewpoint, Witness):
        is_heard = _has_telling(ChronicleEvent, viewpoint)
    query = select(
        ChronicleEvent,
        counting().label("counts"),
        current(viewpoint).label("is_current"),
        is_heard.label("is_heard"),
    ).where(
        *conditions,
        filter_known_events(viewpoint),
        skip_index(ChronicleEvent.user_id) == sealer.user_id,
        exists().where(Chronicle.id == ChronicleEvent.chronicle_id, Chronicle.deleted_at.is_(None)),
    )
    if latest is not None:
        query = query.order_by(*(each.desc() for each in STORY_ORDER)).limit(latest)
    rows = (await session.execute(query, execution_options={"populate_existing": True})).all()
    sources = await load_sources(session, [row[0].id for row in rows])
    audiences = await find_audiences(
        session, {row.id: sources[row.id] for row, *_ in rows if _is_agents(row)}
    )
    return [
        make_struct(
            StoryEvent,
            row,
            fields=open_event(sealer, row),
            sources=sources[row.id],
            counts=bool(counts),
            is_current=bool(is_current),
            is_heard=bool(is_heard),
            audience=limit_audience(row.audience, audiences.get(row.id, PUBLIC)),
            stored_audience=row.audience,
        )
        for row, counts, is_current, is_heard in rows
    ]


def _is_agents(row: ChronicleEvent) -> bool:
    return row.source in FOLLOWS_MESSAGES and not row.is_edited


async def find_audiences(
    session: AsyncSession, events: Mapping[UUID, Sequence[SourceMessage]]
) -> dict[UUID, str]:
    """Return the audiences of events that were told several times, from the tellings that count.

    The column is the union of all tellings, but some may have been swiped away. If none counts,
    the event is left out.
    """
    several = {key: group_tellings(each) for key, each in events.items() if _is_retold(each)}
    sources = [each for told in several.values() for telling in told.values() for each in telling]
    heard = await find_witnesses(session, sources)
    found: dict[UUID, str] = {}
    for event_id, told in several.items():
        columns = [
            intersect_audiences([heard[each.id] for each in telling])
            for telling in told.values()
            if all(each.id in heard for each in telling)
        ]
        if columns:
            found[event_id] = unite_audiences(columns)
    return found


def _is_retold(sources: Sequence[SourceMessage]) -> bool:
    return len({each.telling for each in sources}) > 1


async def find_witnesses(
    session: AsyncSession, sources: Sequence[SourceMessage]
) -> dict[UUID, str]:
    """Return the audiences of active messages, without members who were not there, by message."""
    found: dict[UUID, str] = {}
    groups: dict[UUID, Group] = {}
    for ids in split_chunks(list({each.id for each in sources})):
        query = select(Message.id, Message.chat_id, Message.position, Message.audience)
        rows = await session.execute(query.where(Message.id.in_(ids), Message.is_active))
        for message_id, chat_id, position, audience in rows.all():
            if chat_id not in groups:
                groups[chat_id] = await load_group(session, chat_id)
            found[message_id] = groups[chat_id].find_witnesses(position, audience)
    return found


async def load_sources(
    session: AsyncSession, event_ids: Sequence[UUID]
) -> defaultdict[UUID, list[SourceMessage]]:
    found: defaultdict[UUID, list[SourceMessage]] = defaultdict(list)
    for ids in split_chunks(event_ids):
        columns = EventSource.event_id, EventSource.message_id, EventSource.chat_id
        query = select(*columns, EventSource.position, EventSource.telling)
        rows = await session.execute(query.where(EventSource.event_id.in_(ids)))
        for event_id, message_id, chat_id, position, telling in rows:
            source = SourceMessage(
                id=message_id, chat_id=chat_id, position=position, telling=telling
            )
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
        found |= {row.id: make_struct(SourceMessage, row, telling=0) for row in rows}
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
