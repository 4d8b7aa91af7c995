"""Changing events within the caller's transaction. The index is the caller's to tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.errors import MessageNotFoundError
from backend.chats.models import Chat
from backend.chronicles.events import EventFields
from backend.chronicles.limits import check_room
from backend.chronicles.models import ChronicleEvent, EventSource, EventSourceName
from backend.chronicles.reading import SourceMessage, chunks
from backend.chronicles.records import open_event, sealed_event
from backend.chronicles.superseding import is_there, leads_to, supersede_again
from backend.database.base import new_id, now
from backend.errors import ValidationError
from backend.vault.sealing import Sealer


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to write down. `place` is the depth of its first source message.

    `sealed` is what its row holds, where the fields were sealed for this `id` before.
    """

    fields: EventFields
    significance: int = 3
    source: EventSourceName
    happened_at: datetime
    place: int = 0
    sources: Sequence[SourceMessage] = ()
    is_pinned: bool = False
    run_id: UUID | None = None
    id: UUID = field(default_factory=new_id)
    sealed: bytes | None = None


class _Source(msgspec.Struct, frozen=True):
    message_id: UUID
    chat_id: UUID
    position: int


class _Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An event with what points from it and to it."""

    id: UUID
    fields: EventFields
    significance: int
    is_pinned: bool
    is_edited: bool
    source: EventSourceName
    happened_at: datetime
    place: int
    superseded_by: UUID | None
    supersedes: list[UUID]
    run_id: UUID | None
    revision: int
    created_at: datetime
    sources: list[_Source]


async def add_events(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, events: Sequence[NewEvent]
) -> list[ChronicleEvent]:
    """Write events into a chronicle of the sealer's owner; their rows, in the order given.

    Raises `ChronicleFullError`, and `MessageNotFoundError` where a chat that they come from was
    deleted meanwhile.
    """
    if not events:
        return []
    await check_room(session, chronicle_id, more=len(events))
    await hold_chats(session, [source for new in events for source in new.sources])
    rows = [ChronicleEvent(**row_of(sealer, chronicle_id, new)) for new in events]
    session.add_all(rows)
    await session.flush()
    if sources := [row for new in events for row in source_rows(new.id, new.sources)]:
        await session.execute(insert(EventSource), sources)
    return rows


def row_of(sealer: Sealer, chronicle_id: UUID, new: NewEvent) -> dict[str, Any]:
    """The columns of a new event."""
    return {
        "id": new.id,
        "user_id": sealer.user_id,
        "chronicle_id": chronicle_id,
        "source": new.source,
        "significance": new.significance,
        "is_pinned": new.is_pinned,
        "is_edited": False,
        "happened_at": new.happened_at,
        "place": new.place,
        "run_id": new.run_id,
        "sealed_event": new.sealed or sealed_event(sealer, new.id, new.fields),
    }


async def remove_events(
    session: AsyncSession, events: Sequence[ChronicleEvent | UUID], *, owner_id: UUID
) -> None:
    """Delete events of a user's. What they superseded is superseded no more.

    Rows of others in the session still say so until they are read anew.
    """
    await session.flush()
    wanted = [each if isinstance(each, UUID) else each.id for each in events]
    for ids in chunks(wanted):
        await session.execute(
            delete(ChronicleEvent).where(
                ChronicleEvent.id.in_(ids), ChronicleEvent.user_id == owner_id
            )
        )


async def set_fields(
    session: AsyncSession, sealer: Sealer, row: ChronicleEvent, fields: EventFields
) -> None:
    """Have an event say something else."""
    row.sealed_event = sealed_event(sealer, row.id, fields)
    touch(row)
    await session.flush()


async def set_sources(
    session: AsyncSession, row: ChronicleEvent, sources: Sequence[SourceMessage]
) -> None:
    """Have an event come from these messages, and stand where the first of them does.

    Raises `MessageNotFoundError` where a chat of theirs was deleted meanwhile.
    """
    await hold_chats(session, sources)
    await session.execute(delete(EventSource).where(EventSource.event_id == row.id))
    if sources:
        await session.execute(insert(EventSource), source_rows(row.id, sources))
    row.place = min((each.position for each in sources), default=0)
    touch(row)
    await session.flush()


async def supersede(session: AsyncSession, row: ChronicleEvent, by: UUID | None) -> None:
    """Mark an event as superseded; None takes it back.

    Raises `ValidationError` unless `by` is another event of the same chronicle, which is not itself
    superseded by this one, over however many others.
    """
    if by is not None:
        if by == row.id:
            raise ValidationError("An event can't supersede itself.")
        if not await is_there(session, row.chronicle_id, by):
            raise ValidationError("What supersedes an event has to be one of the same chronicle.")
        if await leads_to(session, by, {row.id}):
            raise ValidationError("The event that is to supersede this one is superseded by it.")
    row.superseded_by = by
    touch(row)
    await session.flush()


def touch(row: ChronicleEvent) -> None:
    """Note that an event was changed."""
    row.revision += 1
    row.updated_at = now()


async def snapshot(session: AsyncSession, sealer: Sealer, row: ChronicleEvent) -> dict[str, Any]:
    """An event as plain JSON, not sealed: what `restore` needs to put it back as it was."""
    await session.flush()
    sources = await session.scalars(select(EventSource).where(EventSource.event_id == row.id))
    supersedes = await session.scalars(
        select(ChronicleEvent.id).where(ChronicleEvent.superseded_by == row.id)
    )
    taken = _Snapshot(
        id=row.id,
        fields=open_event(sealer, row),
        significance=row.significance,
        is_pinned=row.is_pinned,
        is_edited=row.is_edited,
        source=row.source,
        happened_at=row.happened_at,
        place=row.place,
        superseded_by=row.superseded_by,
        supersedes=list(supersedes),
        run_id=row.run_id,
        revision=row.revision,
        created_at=row.created_at,
        sources=[_Source(each.message_id, each.chat_id, each.position) for each in sources],
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
    row.source = taken.source
    row.significance = taken.significance
    row.is_pinned = taken.is_pinned
    row.is_edited = taken.is_edited
    row.happened_at = taken.happened_at
    row.place = taken.place
    row.run_id = taken.run_id
    row.superseded_by = None
    row.sealed_event = sealed_event(sealer, taken.id, taken.fields)
    touch(row)
    await session.flush()
    if had_gone:
        await supersede_again(session, chronicle_id, taken.supersedes, row.id)
    by = taken.superseded_by
    if by is not None and await is_there(session, chronicle_id, by):
        row.superseded_by = None if await leads_to(session, by, {row.id}) else by
    await _put_back_sources(session, sealer.user_id, taken)
    return row


async def _put_back_sources(session: AsyncSession, owner_id: UUID, taken: _Snapshot) -> None:
    await session.execute(delete(EventSource).where(EventSource.event_id == taken.id))
    chats = {each.chat_id for each in taken.sources}
    there = set(
        await session.scalars(select(Chat.id).where(Chat.id.in_(chats), Chat.user_id == owner_id))
    )
    sources = [
        SourceMessage(id=each.message_id, chat_id=each.chat_id, position=each.position)
        for each in taken.sources
        if each.chat_id in there
    ]
    if sources:
        await session.execute(insert(EventSource), source_rows(taken.id, sources))
    await session.flush()


async def hold_chats(session: AsyncSession, sources: Iterable[SourceMessage]) -> None:
    """Keep the chats of messages from being deleted until the transaction ends.

    Chats are locked before chronicles, everywhere: who locks a chronicle holds the chats first.
    Raises `MessageNotFoundError` where one is gone.
    """
    for ids in chunks(sorted({each.chat_id for each in sources})):
        query = select(Chat.id).where(Chat.id.in_(ids)).order_by(Chat.id)
        held = await session.scalars(query.with_for_update(read=True, key_share=True))
        if len(held.all()) < len(ids):
            raise MessageNotFoundError("A source message does not exist any more.")


def source_rows(event_id: UUID, sources: Sequence[SourceMessage]) -> list[dict[str, Any]]:
    """The rows of the messages that an event comes from."""
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
