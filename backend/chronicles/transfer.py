"""Chronicles in and out of files."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.characters.exporting import ExportedFile
from backend.chats.models import Message
from backend.chronicles import repository
from backend.chronicles.bulk import AT_ONCE, add_all, all_events, set_all
from backend.chronicles.events import ChronicleFields, EventFields
from backend.chronicles.files import ChronicleFile, EventRecord, read_file, write_file
from backend.chronicles.index_source import KIND
from backend.chronicles.limits import check_pins, check_room
from backend.chronicles.making import UNNAMED, make_chronicle
from backend.chronicles.models import ChronicleEvent
from backend.chronicles.reading import STORY_ORDER, SourceMessage, chunks
from backend.chronicles.records import open_chronicle, open_event, sealed_event
from backend.chronicles.writing import NewEvent, hold_chats
from backend.cpu_pool import CpuPool, unhurried
from backend.database.base import new_id
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
class _Incoming:
    """An event of a file, with what takes time to make of it."""

    number: int
    record: EventRecord
    fields: EventFields
    same: _Same
    event_id: UUID
    sealed: bytes


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
        """A file of a chronicle with all its events. Raises `ChronicleNotFoundError`."""
        async with self._database.read() as session:
            chronicle = await repository.get_chronicle(
                session, chronicle_id, owner_id=identity.user_id
            )
            fields = open_chronicle(identity.sealer, chronicle)
            events = await all_events(session, identity.sealer, chronicle_id)
        data = await self._pool.run(identity.user_id, partial(write_file, fields, events))
        return ExportedFile(data, "application/json", fields.name, "json")

    async def import_new(self, identity: Identity, data: bytes, name: str) -> ImportedChronicle:
        """Make a chronicle of a file, with all its events or not at all.

        `name` is what it is called where the file does not say. Raises `ChronicleFileError`,
        `TooLargeError`, `ChronicleFullError`.
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
            await repository.get_chronicle(session, chronicle_id, owner_id=identity.user_id)

    async def import_into(
        self, identity: Identity, chronicle_id: UUID, data: bytes
    ) -> ImportedChronicle:
        """Add a file's events to a chronicle; those that are there word for word are skipped.

        The chronicle's own name and description stay. Raises `ChronicleNotFoundError`, or as
        `import_new` does.
        """
        owner_id = identity.user_id
        file, events = await self._read(identity.sealer, data)
        async with self._database.read() as session:
            await repository.get_chronicle(session, chronicle_id, owner_id=owner_id)
            seen = await _read_known(session, identity.sealer, chronicle_id, {})
        async with self._database.write() as session:
            messages = await _hold_messages(session, file.events, owner_id=owner_id)
            await repository.get_chronicle(session, chronicle_id, owner_id=owner_id, lock=True)
            # Again, now that nobody changes it: what changed meanwhile is little.
            seen = await _read_known(session, identity.sealer, chronicle_id, seen)
            known: dict[_Same, UUID] = {}
            async for event_id in unhurried(list(seen)):
                known.setdefault(seen[event_id].same, event_id)
            return await self._add(session, identity, chronicle_id, events, messages, known=known)

    async def _read(self, sealer: Sealer, data: bytes) -> tuple[ChronicleFile, Sequence[_Incoming]]:
        def read() -> tuple[ChronicleFile, Sequence[_Incoming]]:
            file = read_file(data)
            return file, [_incoming(sealer, *each) for each in enumerate(file.events)]

        return await self._pool.run(sealer.user_id, read)

    async def _add(
        self,
        session: AsyncSession,
        identity: Identity,
        chronicle_id: UUID,
        events: Sequence[_Incoming],
        messages: Mapping[UUID, SourceMessage],
        *,
        known: dict[_Same, UUID],
    ) -> ImportedChronicle:
        created = await _write(session, identity.sealer, chronicle_id, events, messages, known)
        if created:
            await self._outbox.changed(session, identity, kind=KIND, container_id=chronicle_id)
        return ImportedChronicle(
            chronicle_id=chronicle_id,
            created=created,
            skipped=len(events) - created,
        )


async def _write(
    session: AsyncSession,
    sealer: Sealer,
    chronicle_id: UUID,
    events: Sequence[_Incoming],
    messages: Mapping[UUID, SourceMessage],
    known: Mapping[_Same, UUID],
) -> int:
    """Store those events that are not `known`, and did not come from a branch that was left.

    Returns how many. What was there before stays as it was, also where the file says that something
    superseded it since.
    """
    rows: dict[int, UUID] = {}
    fresh: dict[int, NewEvent] = {}
    behind: defaultdict[datetime, int] = defaultdict(int)
    async for incoming in unhurried(events):
        event, number = incoming.record, incoming.number
        found = known.get(incoming.same)
        if found is not None:
            rows[number] = found
            continue
        sources = [messages[each] for each in event.source_message_ids if each in messages]
        if not event.counts and len(sources) < len(event.source_message_ids):
            # Nothing could tell any more that it does not count.
            continue
        first = min((each.position for each in sources), default=0)
        # What one moment holds stands as it does in the file.
        place = behind[event.happened_at] = max(behind[event.happened_at], first)
        fresh[number] = NewEvent(
            id=incoming.event_id,
            fields=incoming.fields,
            sealed=incoming.sealed,
            significance=event.significance,
            source="import",
            happened_at=event.happened_at,
            place=place,
            sources=sources,
            is_pinned=event.pinned,
        )
    await check_room(session, chronicle_id, more=len(fresh))
    pinned = sum(each.is_pinned for each in fresh.values())
    await check_pins(session, chronicle_id, more=pinned)
    made = await add_all(session, sealer, chronicle_id, list(fresh.values()))
    rows |= dict(zip(fresh, made, strict=True))
    numbers = {each.record.id: each.number for each in events if each.record.id}
    superseded = [
        {"id": rows[number], "superseded_by": rows.get(numbers[by])}
        for number in fresh
        if (by := events[number].record.superseded_by) is not None
    ]
    await set_all(session, superseded)
    return len(made)


async def _hold_messages(
    session: AsyncSession, events: Sequence[EventRecord], *, owner_id: UUID
) -> dict[UUID, SourceMessage]:
    """Those messages that events come from which are the owner's, and there; their chats stay.

    Raises `MessageNotFoundError` where a chat is deleted at this moment.
    """
    wanted = dict.fromkeys(each for event in events for each in event.source_message_ids)
    found: dict[UUID, SourceMessage] = {}
    for ids in chunks(list(wanted)):
        rows = await session.execute(
            select(Message.id, Message.chat_id, Message.position).where(
                Message.id.in_(ids), Message.user_id == owner_id, Message.status != "streaming"
            )
        )
        for row in rows:
            found[row.id] = SourceMessage(id=row.id, chat_id=row.chat_id, position=row.position)
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
    for start in range(0, len(news), AT_ONCE):
        for event in await session.scalars(
            select(ChronicleEvent).where(
                ChronicleEvent.id.in_(news[start : start + AT_ONCE]),
                ChronicleEvent.user_id == sealer.user_id,
            )
        ):
            same = _same(open_event(sealer, event), event.happened_at)
            known[event.id] = _Known(event.revision, same)
        await asyncio.sleep(0)
    return {each: known[each] for each in revisions}


def _incoming(sealer: Sealer, number: int, record: EventRecord) -> _Incoming:
    fields, event_id = record.fields, new_id()
    return _Incoming(
        number=number,
        record=record,
        fields=fields,
        same=_same(fields, record.happened_at),
        event_id=event_id,
        sealed=sealed_event(sealer, event_id, fields),
    )


def _same(fields: EventFields, happened_at: datetime) -> _Same:
    return msgspec.json.encode(fields), happened_at
