"""Write events within the caller's transaction. The caller updates the index.

Superseding events form chains without cycles within one chronicle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.errors import MessageNotFoundError
from backend.chats.models import Chat, Message
from backend.chronicles.events import EventFields
from backend.chronicles.models import ChronicleEvent, EventSource, EventSourceName
from backend.chronicles.repository import (
    SourceMessage,
    StoredEvent,
    check_room,
    find_witnesses,
    group_tellings,
    load_sources,
    open_event,
    seal_event,
)
from backend.core.audience import PUBLIC, intersect_audiences, limit_audience, unite_audiences
from backend.database.base import UNSYNCHRONIZED, new_id, now, split_chunks
from backend.errors import ValidationError
from backend.http.schemas import make_struct
from backend.vault.sealing import Sealer

EVENT_BATCH_SIZE = 200
"""Events written in one batch. Other tasks may run in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to create. `place` is the depth of its first source message.

    `sealed` is the sealed content if it was already sealed for this `id`. `audience` is encoded as
    in its column.
    """

    fields: EventFields
    significance: int = 3
    source: EventSourceName
    happened_at: datetime
    place: int = 0
    sources: Sequence[SourceMessage] = ()
    is_pinned: bool = False
    is_edited: bool = False
    superseded_by: UUID | None = None
    run_id: UUID | None = None
    audience: str = PUBLIC
    id: UUID = field(default_factory=new_id)
    sealed: bytes | None = None


_RESTORED = (
    "source",
    "significance",
    "is_pinned",
    "is_edited",
    "happened_at",
    "place",
    "run_id",
    "audience",
)


class _EventSnapshot(StoredEvent, frozen=True, kw_only=True):
    """An event and the ids of the events that it supersedes."""

    supersedes: list[UUID]


async def insert_events(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, events: Sequence[NewEvent]
) -> None:
    """Write events into a chronicle of the sealer's owner.

    Raises `ChronicleFullError`, and `MessageNotFoundError` if one of their chats was deleted at the
    same time.
    """
    if not events:
        return
    await check_room(session, chronicle_id, more=len(events))
    await hold_chats(session, [source for new in events for source in new.sources])
    # Without ORM objects, because creating them takes longer than sealing the texts.
    to_events, to_sources = insert(ChronicleEvent), insert(EventSource)
    for part in split_chunks(events, EVENT_BATCH_SIZE):
        await session.execute(to_events, [_build_row(sealer, chronicle_id, new) for new in part])
        if sources := [row for new in part for row in _source_rows(new.id, new.sources)]:
            await session.execute(to_sources, sources)
        await asyncio.sleep(0)


async def add_events(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, events: Sequence[NewEvent]
) -> list[ChronicleEvent]:
    """Call `insert_events` and return the rows in the order given."""
    await insert_events(session, sealer, chronicle_id, events)
    ids = [new.id for new in events]
    rows = await session.scalars(select(ChronicleEvent).where(ChronicleEvent.id.in_(ids)))
    return sorted(rows, key=lambda row: ids.index(row.id))


def _build_row(sealer: Sealer, chronicle_id: UUID, new: NewEvent) -> dict[str, Any]:
    return {
        "id": new.id,
        "user_id": sealer.user_id,
        "chronicle_id": chronicle_id,
        "source": new.source,
        "significance": new.significance,
        "is_pinned": new.is_pinned,
        "is_edited": new.is_edited,
        "happened_at": new.happened_at,
        "place": new.place,
        "superseded_by": new.superseded_by,
        "run_id": new.run_id,
        "audience": new.audience,
        "sealed_event": new.sealed or seal_event(sealer, new.id, new.fields),
    }


async def remove_events(
    session: AsyncSession, event_ids: Sequence[UUID], *, owner_id: UUID
) -> None:
    """Delete events of a user. Events that they superseded are no longer superseded.

    Other rows in the session are outdated until they are reloaded.
    """
    await session.flush()
    for ids in split_chunks(event_ids):
        owned = ChronicleEvent.id.in_(ids), ChronicleEvent.user_id == owner_id
        await session.execute(delete(ChronicleEvent).where(*owned))


async def set_sources(
    session: AsyncSession, row: ChronicleEvent, sources: Sequence[SourceMessage]
) -> None:
    """Replace an event's source messages and set its place to that of the first.

    Raises `MessageNotFoundError` if one of their chats was deleted at the same time.
    """
    await hold_chats(session, sources)
    await _replace_sources(session, row.id, sources)
    row.place = first_place(sources)


def first_place(sources: Iterable[SourceMessage]) -> int:
    """Return the depth of the first source message of the first telling, or 0 without any."""
    return min(((each.telling, each.position) for each in sources), default=(0, 0))[1]


async def add_telling(
    session: AsyncSession, row: ChronicleEvent, sources: Sequence[SourceMessage], audience: str
) -> int:
    """Record that an event was told again in other messages. Return the number of the telling.

    Their audience knows the event, too. Raises `MessageNotFoundError` if one of their chats was
    deleted at the same time.
    """
    await hold_chats(session, sources)
    earlier = (await load_sources(session, [row.id]))[row.id]
    telling = max((each.telling for each in earlier), default=-1) + 1
    added = [msgspec.structs.replace(each, telling=telling) for each in sources]
    await session.execute(insert(EventSource), _source_rows(row.id, added))
    row.audience = unite_audiences([row.audience, audience])
    touch(row)
    await session.flush()
    return telling


async def remove_telling(
    session: AsyncSession, row: ChronicleEvent, telling: int, *, before: str | None = None
) -> bool:
    """Remove one telling of an event. Return False if no other one remains.

    Only those who know another telling know the event afterwards: `before` is their audience, if it
    is known. A telling that was already removed changes nothing.
    """
    sources = (await load_sources(session, [row.id]))[row.id]
    left = [each for each in sources if each.telling != telling]
    if len(left) == len(sources):
        return True
    if not left:
        return False
    await session.execute(
        delete(EventSource).where(EventSource.event_id == row.id, EventSource.telling == telling),
        execution_options=UNSYNCHRONIZED,
    )
    others = before or await find_told_audience(session, left)
    row.audience = limit_audience(row.audience, others)
    touch(row)
    await session.flush()
    return True


async def find_told_audience(session: AsyncSession, sources: Sequence[SourceMessage]) -> str:
    """Return those who may know one of the tellings. It is `public` if there are no messages.

    For messages that are not on the active path, it is unknown who was there.
    """
    heard = await find_witnesses(session, sources)
    rest = [each.id for each in sources if each.id not in heard]
    for ids in split_chunks(rest):
        query = select(Message.id, Message.audience).where(Message.id.in_(ids))
        heard |= {row.id: row.audience for row in await session.execute(query)}
    columns = [
        intersect_audiences([heard[each.id] for each in telling if each.id in heard])
        for telling in group_tellings(sources).values()
    ]
    return unite_audiences(columns) if columns else PUBLIC


async def _replace_sources(
    session: AsyncSession, event_id: UUID, sources: Sequence[SourceMessage]
) -> None:
    await session.execute(delete(EventSource).where(EventSource.event_id == event_id))
    if sources:
        await session.execute(insert(EventSource), _source_rows(event_id, sources))


def _source_rows(event_id: UUID, sources: Sequence[SourceMessage]) -> list[dict[str, Any]]:
    rows = {
        each.id: {
            "event_id": event_id,
            "message_id": each.id,
            "chat_id": each.chat_id,
            "position": each.position,
            "telling": each.telling,
        }
        for each in sources
    }
    return list(rows.values())


async def supersede(session: AsyncSession, row: ChronicleEvent, by: UUID | None) -> None:
    """Mark an event as superseded, or clear the mark with None.

    Raises `ValidationError` unless `by` is another event of the same chronicle that this event does
    not supersede, directly or through others.
    """
    if by is not None:
        if by == row.id:
            raise ValidationError("An event cannot supersede itself.")
        if not await has_event(session, row.chronicle_id, by):
            raise ValidationError("The superseding event must be in the same chronicle.")
        if await is_superseded_by(session, by, {row.id}):
            raise ValidationError("The superseding event is itself superseded by this one.")
    row.superseded_by = by
    touch(row)
    await session.flush()


async def mark_superseded(session: AsyncSession, marks: Mapping[UUID, UUID | None]) -> None:
    """Set the superseding events of new events. The caller has checked for cycles."""
    rows = [{"id": event_id, "superseded_by": by} for event_id, by in marks.items()]
    for part in split_chunks(rows, EVENT_BATCH_SIZE):
        await session.execute(update(ChronicleEvent), part)


async def supersede_again(
    session: AsyncSession, chronicle_id: UUID, event_ids: Sequence[UUID], by: UUID
) -> None:
    """Mark the existing events that are not superseded yet as superseded by `by`."""
    for ids in split_chunks(event_ids):
        await session.execute(
            update(ChronicleEvent)
            .where(
                ChronicleEvent.id.in_(ids),
                ChronicleEvent.chronicle_id == chronicle_id,
                ChronicleEvent.superseded_by.is_(None),
            )
            .values(superseded_by=by)
        )


async def find_superseded(session: AsyncSession, by: Sequence[UUID]) -> list[UUID]:
    """Return the events that one of these supersedes."""
    query = select(ChronicleEvent.id).where(ChronicleEvent.superseded_by.in_(by))
    return list(await session.scalars(query))


async def has_event(session: AsyncSession, chronicle_id: UUID, event_id: UUID) -> bool:
    query = select(ChronicleEvent.id).where(
        ChronicleEvent.id == event_id, ChronicleEvent.chronicle_id == chronicle_id
    )
    return await session.scalar(query) is not None


async def is_superseded_by(session: AsyncSession, start: UUID, ends: set[UUID]) -> bool:
    """True if an event is one of `ends`, or one of them supersedes it directly or indirectly."""
    await session.flush()
    columns = select(ChronicleEvent.id, ChronicleEvent.superseded_by)
    walk = columns.where(ChronicleEvent.id == start).cte("walk", recursive=True)
    # UNION drops known rows, so the query would end even in a cycle.
    walk = walk.union(columns.join(walk, ChronicleEvent.id == walk.c.superseded_by))
    return not ends.isdisjoint(await session.scalars(select(walk.c.id)))


def touch(row: ChronicleEvent) -> None:
    """Count a change of the event."""
    row.revision += 1
    row.updated_at = now()


async def snapshot(session: AsyncSession, sealer: Sealer, row: ChronicleEvent) -> dict[str, Any]:
    """Return an event as plain JSON, not sealed, for `restore`."""
    await session.flush()
    taken = make_struct(
        _EventSnapshot,
        row,
        fields=open_event(sealer, row),
        supersedes=await find_superseded(session, [row.id]),
        sources=(await load_sources(session, [row.id]))[row.id],
    )
    found: dict[str, Any] = msgspec.to_builtins(taken)
    return found


async def restore(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, snapshot: dict[str, Any]
) -> ChronicleEvent:
    """Restore an event under its old id, even if it was deleted.

    A superseding event or source chats that no longer exist are left out. A deleted event
    supersedes its former events again, unless other events supersede them now. The revision
    increases, so that clients notice the change.
    """
    taken = msgspec.convert(snapshot, _EventSnapshot)
    await session.flush()
    row = await session.scalar(
        select(ChronicleEvent).where(
            ChronicleEvent.id == taken.id,
            ChronicleEvent.chronicle_id == chronicle_id,
            ChronicleEvent.user_id == sealer.user_id,
        )
    )
    had_gone = row is None
    if row is None:
        row = ChronicleEvent(
            id=taken.id,
            user_id=sealer.user_id,
            chronicle_id=chronicle_id,
            revision=taken.revision,
            created_at=taken.created_at,
        )
        session.add(row)
    for name in _RESTORED:
        setattr(row, name, getattr(taken, name))
    row.superseded_by = None
    row.sealed_event = seal_event(sealer, taken.id, taken.fields)
    touch(row)
    await session.flush()
    if had_gone:
        await supersede_again(session, chronicle_id, taken.supersedes, row.id)
    by = taken.superseded_by
    if by is not None and await has_event(session, chronicle_id, by):
        row.superseded_by = None if await is_superseded_by(session, by, {row.id}) else by
    chat_ids = {each.chat_id for each in taken.sources}
    owned = Chat.id.in_(chat_ids), Chat.user_id == sealer.user_id
    there = set(await session.scalars(select(Chat.id).where(*owned)))
    sources = [each for each in taken.sources if each.chat_id in there]
    await _replace_sources(session, taken.id, sources)
    await session.flush()
    return row


async def hold_chats(session: AsyncSession, sources: Iterable[SourceMessage]) -> None:
    """Protect the chats of messages from deletion until the transaction ends.

    All code locks chats before chronicles. Raises `MessageNotFoundError` if a chat was deleted.
    """
    for ids in split_chunks(sorted({each.chat_id for each in sources})):
        query = select(Chat.id).where(Chat.id.in_(ids)).order_by(Chat.id)
        held = await session.scalars(query.with_for_update(read=True, key_share=True))
        if len(held.all()) < len(ids):
            raise MessageNotFoundError("A source message no longer exists.")
