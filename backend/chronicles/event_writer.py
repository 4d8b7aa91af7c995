"""Changing events within the caller's transaction. The index is the caller's to tell.

Which event supersedes which makes chains within one chronicle that never go round.
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
from backend.chats.models import Chat
from backend.chronicles.events import EventFields
from backend.chronicles.models import ChronicleEvent, EventSource, EventSourceName
from backend.chronicles.repository import (
    SourceMessage,
    StoredEvent,
    check_room,
    open_event,
    sealed_event,
    sources_of,
)
from backend.core.audience import PUBLIC
from backend.database.base import new_id, now, split_chunks
from backend.errors import ValidationError
from backend.http.schemas import make_struct
from backend.vault.sealing import Sealer

AT_ONCE = 200
"""Events that are written in one go; in between others get their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to write down. `place` is the depth of its first source message.

    `sealed` is what its row holds, where the fields were sealed for this `id` before; `audience`
    is as its column holds it.
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


class _Snapshot(StoredEvent, frozen=True, kw_only=True):
    """An event with what points to it."""

    supersedes: list[UUID]


async def insert_events(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, events: Sequence[NewEvent]
) -> None:
    """Write events into a chronicle of the sealer's owner.

    Raises `ChronicleFullError`, and `MessageNotFoundError` where a chat that they come from was
    deleted meanwhile.
    """
    if not events:
        return
    await check_room(session, chronicle_id, more=len(events))
    await hold_chats(session, [source for new in events for source in new.sources])
    # Not as objects of the session: those take longer to make than their texts to seal.
    to_events, to_sources = insert(ChronicleEvent), insert(EventSource)
    for part in split_chunks(events, AT_ONCE):
        await session.execute(to_events, [_row_of(sealer, chronicle_id, new) for new in part])
        if sources := [row for new in part for row in _source_rows(new.id, new.sources)]:
            await session.execute(to_sources, sources)
        await asyncio.sleep(0)


async def add_events(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, events: Sequence[NewEvent]
) -> list[ChronicleEvent]:
    """`insert_events`, and read their rows, in the order given."""
    await insert_events(session, sealer, chronicle_id, events)
    ids = [new.id for new in events]
    rows = await session.scalars(select(ChronicleEvent).where(ChronicleEvent.id.in_(ids)))
    return sorted(rows, key=lambda row: ids.index(row.id))


def _row_of(sealer: Sealer, chronicle_id: UUID, new: NewEvent) -> dict[str, Any]:
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
        "sealed_event": new.sealed or sealed_event(sealer, new.id, new.fields),
    }


async def remove_events(
    session: AsyncSession, event_ids: Sequence[UUID], *, owner_id: UUID
) -> None:
    """Delete events of a user's. What they superseded is superseded no more.

    Rows of others in the session still say so until they are read anew.
    """
    await session.flush()
    for ids in split_chunks(event_ids):
        owned = ChronicleEvent.id.in_(ids), ChronicleEvent.user_id == owner_id
        await session.execute(delete(ChronicleEvent).where(*owned))


async def set_sources(
    session: AsyncSession, row: ChronicleEvent, sources: Sequence[SourceMessage]
) -> None:
    """Have an event come from these messages, and stand where the first of them does.

    Raises `MessageNotFoundError` where a chat of theirs was deleted meanwhile.
    """
    await hold_chats(session, sources)
    await _replace_sources(session, row.id, sources)
    row.place = first_place(sources)


def first_place(sources: Iterable[SourceMessage]) -> int:
    """The depth of the first of an event's messages; 0 for none."""
    return min((each.position for each in sources), default=0)


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
        }
        for each in sources
    }
    return list(rows.values())


async def supersede(session: AsyncSession, row: ChronicleEvent, by: UUID | None) -> None:
    """Mark an event as superseded; None takes it back.

    Raises `ValidationError` unless `by` is another event of the same chronicle, which is not itself
    superseded by this one, over however many others.
    """
    if by is not None:
        if by == row.id:
            raise ValidationError("An event cannot supersede itself.")
        if not await is_there(session, row.chronicle_id, by):
            raise ValidationError("The superseding event must be in the same chronicle.")
        if await leads_to(session, by, {row.id}):
            raise ValidationError("The superseding event is itself superseded by this one.")
    row.superseded_by = by
    touch(row)
    await session.flush()


async def mark_superseded(session: AsyncSession, marks: Mapping[UUID, UUID | None]) -> None:
    """Note of new events what supersedes each, as it is known to make no circle."""
    rows = [{"id": event_id, "superseded_by": by} for event_id, by in marks.items()]
    for part in split_chunks(rows, AT_ONCE):
        await session.execute(update(ChronicleEvent), part)


async def supersede_again(
    session: AsyncSession, chronicle_id: UUID, event_ids: Sequence[UUID], by: UUID
) -> None:
    """Have those of the events be superseded by one that are there, and by none yet."""
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
    """The events that are superseded by one of these."""
    query = select(ChronicleEvent.id).where(ChronicleEvent.superseded_by.in_(by))
    return list(await session.scalars(query))


async def is_there(session: AsyncSession, chronicle_id: UUID, event_id: UUID) -> bool:
    """Whether a chronicle has an event."""
    query = select(ChronicleEvent.id).where(
        ChronicleEvent.id == event_id, ChronicleEvent.chronicle_id == chronicle_id
    )
    return await session.scalar(query) is not None


async def leads_to(session: AsyncSession, start: UUID, ends: set[UUID]) -> bool:
    """Whether an event is, or is superseded by, over however many others, one of `ends`."""
    await session.flush()
    columns = select(ChronicleEvent.id, ChronicleEvent.superseded_by)
    walk = columns.where(ChronicleEvent.id == start).cte("walk", recursive=True)
    # UNION drops what was there before: a circle, which there must not be, would end, too.
    walk = walk.union(columns.join(walk, ChronicleEvent.id == walk.c.superseded_by))
    return not ends.isdisjoint(await session.scalars(select(walk.c.id)))


def touch(row: ChronicleEvent) -> None:
    """Note that an event was changed."""
    row.revision += 1
    row.updated_at = now()


async def snapshot(session: AsyncSession, sealer: Sealer, row: ChronicleEvent) -> dict[str, Any]:
    """An event as plain JSON, not sealed: what `restore` needs to put it back as it was."""
    await session.flush()
    taken = make_struct(
        _Snapshot,
        row,
        fields=open_event(sealer, row),
        supersedes=await find_superseded(session, [row.id]),
        sources=(await sources_of(session, [row.id]))[row.id],
    )
    found: dict[str, Any] = msgspec.to_builtins(taken)
    return found


async def restore(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, snapshot: dict[str, Any]
) -> ChronicleEvent:
    """Put an event back as it was, under its old id, whether it is still there or not.

    What superseded it is left out where that is gone by now, and so are sources in chats that are
    gone. Of an event that had gone, what it superseded is superseded by it again, unless something
    else supersedes that by now. The revision goes on, so that nobody takes it for what they saw.
    """
    taken = msgspec.convert(snapshot, _Snapshot)
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
    row.sealed_event = sealed_event(sealer, taken.id, taken.fields)
    touch(row)
    await session.flush()
    if had_gone:
        await supersede_again(session, chronicle_id, taken.supersedes, row.id)
    by = taken.superseded_by
    if by is not None and await is_there(session, chronicle_id, by):
        row.superseded_by = None if await leads_to(session, by, {row.id}) else by
    chat_ids = {each.chat_id for each in taken.sources}
    owned = Chat.id.in_(chat_ids), Chat.user_id == sealer.user_id
    there = set(await session.scalars(select(Chat.id).where(*owned)))
    sources = [each for each in taken.sources if each.chat_id in there]
    await _replace_sources(session, taken.id, sources)
    await session.flush()
    return row


async def hold_chats(session: AsyncSession, sources: Iterable[SourceMessage]) -> None:
    """Keep the chats of messages from being deleted until the transaction ends.

    Chats are locked before chronicles, everywhere: who locks a chronicle holds the chats first.
    Raises `MessageNotFoundError` where one is gone.
    """
    for ids in split_chunks(sorted({each.chat_id for each in sources})):
        query = select(Chat.id).where(Chat.id.in_(ids)).order_by(Chat.id)
        held = await session.scalars(query.with_for_update(read=True, key_share=True))
        if len(held.all()) < len(ids):
            raise MessageNotFoundError("A source message no longer exists.")
