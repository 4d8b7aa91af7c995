"""Chronicles in and out of files."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.audience import GM, PUBLIC
from backend.characters.exporting import ExportedFile
from backend.chronicles.event_search import all_events
from backend.chronicles.events import ChronicleFields, EventFields
from backend.chronicles.files import ChronicleFile, EventRecord, read_file, write_file
from backend.chronicles.index_source import KIND
from backend.chronicles.models import ChronicleEvent
from backend.chronicles.reading import (
    STORY_ORDER,
    SourceMessage,
    find_messages,
    open_chronicle,
    open_event,
    sealed_event,
)
from backend.chronicles.repository import (
    UNNAMED,
    check_pins,
    check_room,
    get_chronicle,
    make_chronicle,
)
from backend.chronicles.writing import (
    AT_ONCE,
    NewEvent,
    first_place,
    hold_chats,
    insert_events,
    mark_superseded,
)
from backend.cpu_pool import CpuPool, unhurried
from backend.database.base import chunks, new_id
from backend.database.engine import Database
from backend.memory.outbox import IndexOutbox
from backend.vault.sealing import Sealer

_Same = tuple[bytes, datetime]
"""What makes two events the same: what they say, and when they happened."""


class _Known(NamedTuple):
    """An event that is there: its revision, and what makes another the same."""

    revision: int
    same: _Same


@dataclass(frozen=True, slots=True)
class IncomingEvent:
    """An event of a file, with what takes time to make of it.

    Of `new` the messages are not known yet, nor its place.
    """

    record: EventRecord
    same: _Same
    new: NewEvent


class ImportedChronicle(msgspec.Struct, kw_only=True):
    """What came of a file.

    `skipped` counts events that were there already, and those of a branch that was left whose
    messages are not here: nothing could bring them back.
    """

    chronicle_id: UUID
    created: int
    skipped: int


class ChronicleTransfer:
    """Exports chronicles, and imports what was exported."""

    def __init__(self, database: Database, outbox: IndexOutbox, pool: CpuPool) -> None:
        self._database = database
        self._outbox = outbox
        self._pool = pool

    async def export(self, identity: Identity, chronicle_id: UUID) -> ExportedFile:
        """A file of a chronicle with all its events."""
        async with self._database.read() as session:
            chronicle = await get_chronicle(session, chronicle_id, owner_id=identity.user_id)
            fields = open_chronicle(identity.sealer, chronicle)
            events = await all_events(session, identity.sealer, chronicle_id)
        data = await self._pool.run(identity.user_id, partial(write_file, fields, events))
        return ExportedFile(data, "application/json", fields.name, "json")

    async def import_new(self, identity: Identity, data: bytes, name: str) -> ImportedChronicle:
        """Make a chronicle of a file, with all its events or not at all.

        `name` is what it is called where the file does not say.
        """
        file, events = await self._read(identity.sealer, data)
        called = file.name.strip() or name.strip()[:500] or UNNAMED
        fields = ChronicleFields(name=called, description=file.description)
        async with self._database.write() as session:
            chronicle = await make_chronicle(session, identity, fields)
            messages = await _hold_messages(session, file.events, owner_id=identity.user_id)
            return await self._add(session, identity, chronicle.id, events, messages, known={})

    async def check(self, identity: Identity, chronicle_id: UUID) -> None:
        """Raise `ChronicleNotFoundError` unless there is such a chronicle."""
        async with self._database.read() as session:
            await get_chronicle(session, chronicle_id, owner_id=identity.user_id)

    async def import_into(
        self, identity: Identity, chronicle_id: UUID, data: bytes
    ) -> ImportedChronicle:
        """Add a file's events to a chronicle; those that are there word for word are skipped.

        The chronicle's own name and description stay.
        """
        owner_id = identity.user_id
        file, events = await self._read(identity.sealer, data)
        async with self._database.read() as session:
            await get_chronicle(session, chronicle_id, owner_id=owner_id)
            seen = await _read_known(session, identity.sealer, chronicle_id, {})
        async with self._database.write() as session:
            messages = await _hold_messages(session, file.events, owner_id=owner_id)
            await get_chronicle(session, chronicle_id, owner_id=owner_id, lock=True)
            # Again, now that nobody changes it: what changed meanwhile is little.
            seen = await _read_known(session, identity.sealer, chronicle_id, seen)
            known: dict[_Same, UUID] = {}
            async for event_id in unhurried(list(seen)):
                known.setdefault(seen[event_id].same, event_id)
            return await self._add(session, identity, chronicle_id, events, messages, known=known)

    async def _read(
        self, sealer: Sealer, data: bytes
    ) -> tuple[ChronicleFile, Sequence[IncomingEvent]]:
        def read() -> tuple[ChronicleFile, Sequence[IncomingEvent]]:
            file = read_file(data)
            return file, [incoming_event(sealer, record) for record in file.events]

        return await self._pool.run(sealer.user_id, read)

    async def _add(
        self,
        session: AsyncSession,
        identity: Identity,
        chronicle_id: UUID,
        events: Sequence[IncomingEvent],
        messages: Mapping[UUID, SourceMessage],
        *,
        known: dict[_Same, UUID],
    ) -> ImportedChronicle:
        created = await write_events(
            session, identity.sealer, chronicle_id, events, messages, known
        )
        if created:
            await self._outbox.changed(session, identity, kind=KIND, container_id=chronicle_id)
        return ImportedChronicle(
            chronicle_id=chronicle_id,
            created=created,
            skipped=len(events) - created,
        )


async def write_events(
    session: AsyncSession,
    sealer: Sealer,
    chronicle_id: UUID,
    events: Sequence[IncomingEvent],
    messages: Mapping[UUID, SourceMessage],
    known: Mapping[_Same, UUID],
) -> int:
    """Store those events that are not `known`, and did not come from a branch that was left.

    `messages` are those that the events come from, by their ids in the file. Returns how many were
    stored. What was there before stays as it was, also where the file says that something
    superseded it since.
    """
    rows: dict[int, UUID] = {}
    fresh: dict[int, NewEvent] = {}
    behind: defaultdict[datetime, int] = defaultdict(int)
    async for number, incoming in unhurried(list(enumerate(events))):
        event = incoming.record
        found = known.get(incoming.same)
        if found is not None:
            rows[number] = found
            continue
        sources = [messages[each] for each in event.source_message_ids if each in messages]
        if not event.counts and len(sources) < len(event.source_message_ids):
            # Nothing could tell any more that it does not count.
            continue
        # What one moment holds stands as it does in the file.
        place = max(behind[event.happened_at], first_place(sources))
        behind[event.happened_at] = place
        fresh[number] = replace(incoming.new, sources=sources, place=place)
    await check_room(session, chronicle_id, more=len(fresh))
    pinned = sum(each.is_pinned for each in fresh.values())
    await check_pins(session, chronicle_id, more=pinned)
    await insert_events(session, sealer, chronicle_id, list(fresh.values()))
    rows |= {number: new.id for number, new in fresh.items()}
    numbers = {each.record.id: number for number, each in enumerate(events) if each.record.id}
    marks = {
        new.id: rows.get(numbers[by])
        for number, new in fresh.items()
        if (by := events[number].record.superseded_by) is not None
    }
    await mark_superseded(session, marks)
    return len(fresh)


async def _hold_messages(
    session: AsyncSession, events: Sequence[EventRecord], *, owner_id: UUID
) -> dict[UUID, SourceMessage]:
    """Those messages that events come from which are the owner's, and there; their chats stay.

    Raises `MessageNotFoundError` where a chat is deleted at this moment.
    """
    ids = [each for event in events for each in event.source_message_ids]
    found = await find_messages(session, ids, owner_id=owner_id)
    await hold_chats(session, found.values())
    return found


async def _read_known(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, seen: Mapping[UUID, _Known]
) -> dict[UUID, _Known]:
    """The events of a chronicle in story order; what has not changed is taken from `seen`."""
    rows = await session.execute(
        select(ChronicleEvent.id, ChronicleEvent.revision)
        .where(ChronicleEvent.chronicle_id == chronicle_id)
        .order_by(*STORY_ORDER)
    )
    revisions = {row.id: row.revision for row in rows}
    known = {each: at for each, at in seen.items() if revisions.get(each) == at.revision}
    news = [each for each in revisions if each not in known]
    for ids in chunks(news, AT_ONCE):
        owned = ChronicleEvent.id.in_(ids), ChronicleEvent.user_id == sealer.user_id
        for event in await session.scalars(select(ChronicleEvent).where(*owned)):
            same = _same(open_event(sealer, event), event.happened_at)
            known[event.id] = _Known(event.revision, same)
        await asyncio.sleep(0)
    return {each: known[each] for each in revisions}


def incoming_event(sealer: Sealer, record: EventRecord, *, audience: str = GM) -> IncomingEvent:
    """An event of a file, sealed. `audience` knows of it where it is not for everybody."""
    fields, event_id = record.fields, new_id()
    new = NewEvent(
        id=event_id,
        fields=fields,
        sealed=sealed_event(sealer, event_id, fields),
        significance=record.significance,
        source="import",
        happened_at=record.happened_at,
        is_pinned=record.pinned,
        audience=PUBLIC if record.audience == PUBLIC else audience,
    )
    return IncomingEvent(record, _same(fields, record.happened_at), new)


def _same(fields: EventFields, happened_at: datetime) -> _Same:
    return msgspec.json.encode(fields), happened_at
