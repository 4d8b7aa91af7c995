"""Import and export of chronicles as files."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, cast
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.characters.card_rows import FileDownload
from backend.characters.cards.model import check_file_size
from backend.characters.cards.text import parse_json
from backend.characters.errors import CardError, CardLimitError
from backend.chronicles.errors import ChronicleFileError
from backend.chronicles.event_search import load_all_events
from backend.chronicles.event_service import YEARS
from backend.chronicles.event_writer import (
    EVENT_BATCH_SIZE,
    NewEvent,
    first_place,
    hold_chats,
    insert_events,
    mark_superseded,
)
from backend.chronicles.events import (
    MAX_EVENTS,
    MAX_PINNED,
    MAX_SOURCES,
    ChronicleFields,
    EventFields,
    Significance,
)
from backend.chronicles.index_source import KIND
from backend.chronicles.models import ChronicleEvent, EventSourceName
from backend.chronicles.repository import (
    DEFAULT_NAME,
    STORY_ORDER,
    SourceMessage,
    StoryEvent,
    check_pins,
    check_room,
    find_messages,
    get_chronicle,
    group_tellings,
    make_chronicle,
    open_chronicle,
    open_event,
    seal_event,
)
from backend.chronicles.schemas import Moment, Sources, Summary
from backend.core.audience import GM, PUBLIC
from backend.core.cpu_pool import CpuPool, iterate_in_slices
from backend.database.base import RecordCreated, new_id, record_nothing, split_chunks
from backend.database.engine import Database
from backend.http.schemas import convert_list, make_struct
from backend.memory.indexing.outbox import IndexOutbox
from backend.vault.sealing import Sealer

FILE_FORMAT = "talekeeper-chronicle"
FILE_VERSION = 1

LocalId = Annotated[str, msgspec.Meta(max_length=100)]

TranslateAudience = Callable[[str], str]
"""Returns the column value of an audience with the ids of this account."""


class EventRecord(EventFields, frozen=True, kw_only=True, omit_defaults=False):
    """An event in a file.

    `source` is the author in the exporting account. Imported events have the source `import`.
    `counts` is false if the event came from an inactive branch. `told_again` are the messages in
    which it was told to others later. Ids of messages, and ids in `audience`, are valid only in the
    exporting account.
    """

    id: LocalId = ""
    summary: Summary  # pyright: ignore[reportGeneralTypeIssues]  # required in a file
    significance: Significance = 3
    pinned: bool = False
    happened_at: Moment
    source: EventSourceName = "import"
    source_message_ids: Sources = msgspec.field(default_factory=list[UUID])
    told_again: Annotated[list[Sources], msgspec.Meta(max_length=MAX_SOURCES)] = msgspec.field(
        default_factory=list[list[UUID]]
    )
    superseded_by: LocalId | None = None
    counts: bool = True
    audience: Annotated[str, msgspec.Meta(max_length=4_000)] = PUBLIC

    @property
    def fields(self) -> EventFields:
        """The content of the event."""
        return make_struct(EventFields, self)

    @property
    def message_ids(self) -> list[UUID]:
        """The messages of all tellings."""
        return [each for telling in (self.source_message_ids, *self.told_again) for each in telling]

    def find_sources(self, messages: Mapping[UUID, SourceMessage]) -> list[SourceMessage]:
        """Return the source messages that exist. `messages` are given by their ids in the file."""
        return [
            msgspec.structs.replace(messages[each], telling=number)
            for number, telling in enumerate((self.source_message_ids, *self.told_again))
            for each in telling
            if each in messages
        ]


class ChronicleFile(ChronicleFields, frozen=True, kw_only=True, omit_defaults=False):
    format: Literal["talekeeper-chronicle"]
    version: Literal[1]
    events: list[EventRecord] = msgspec.field(default_factory=list[EventRecord])


def write_file(fields: ChronicleFields, events: Sequence[StoryEvent]) -> bytes:
    """Return a chronicle with its events in story order as compact JSON."""
    ids = {event.id: str(number) for number, event in enumerate(events, start=1)}
    file = ChronicleFile(
        format="talekeeper-chronicle",
        version=1,
        name=fields.name,
        description=fields.description,
        events=[_record(event, ids) for event in events],
    )
    return msgspec.json.encode(file)


def _record(event: StoryEvent, ids: dict[UUID, str]) -> EventRecord:
    first, *later = [
        [each.id for each in telling]
        for _, telling in sorted(group_tellings(event.sources).items())
    ] or [[]]
    return make_struct(
        EventRecord,
        event,
        **msgspec.structs.asdict(event.fields),
        id=ids[event.id],
        pinned=event.is_pinned,
        source_message_ids=first,
        told_again=later,
        audience=event.stored_audience,
        superseded_by=ids.get(event.superseded_by) if event.superseded_by else None,
    )


def read_file(data: bytes) -> ChronicleFile:
    """Read an uploaded file.

    Raises `ChronicleFileError`, which names the invalid member (`events[12].significance`), and
    `TooLargeError`.
    """
    check_file_size(len(data))
    try:
        value: Any = parse_json(data)
    except CardLimitError as error:
        limit = {"limit": error.limit, "allowed": error.allowed, "found": error.found}
        raise ChronicleFileError(error.detail, extra=limit) from error
    except CardError as error:
        raise ChronicleFileError(error.detail) from error
    _check_kind(value)
    try:
        # Events are converted separately, because there may be very many.
        head: Any = {**value, "events": []} if isinstance(value.get("events"), list) else value
        file = msgspec.convert(head, ChronicleFile, strict=True)
        events = convert_list(value.get("events", []), EventRecord, at="$.events")
    except msgspec.ValidationError as error:
        raise ChronicleFileError(_format_message(str(error))) from error
    file = msgspec.structs.replace(file, events=events)
    pinned = sum(event.pinned for event in events)
    _check_count("pinned events", pinned, MAX_PINNED, "pinned_events")
    for number, event in enumerate(events):
        if event.happened_at.year not in YEARS:
            raise ChronicleFileError(
                f"events[{number}].happened_at must be in the years {YEARS[0]} to {YEARS[-1]}."
            )
    _check_ids(events)
    return file


def _check_kind(value: Any) -> None:
    """Raise `ChronicleFileError` unless it is a chronicle of a supported version and size."""
    if not isinstance(value, dict):
        raise ChronicleFileError("This is not a chronicle: the file is not a JSON object.")
    raw = cast("dict[str, Any]", value)
    if raw.get("format") != FILE_FORMAT:
        raise ChronicleFileError(f"This is not a chronicle: `format` is not `{FILE_FORMAT}`.")
    version = raw.get("version")
    if isinstance(version, bool) or version != FILE_VERSION:
        raise ChronicleFileError(
            f"`version` must be {FILE_VERSION}. Other versions are not supported."
        )
    events: list[Any] | None = raw.get("events")
    if isinstance(events, list):  # the value is not validated yet
        _check_count("events", len(events), MAX_EVENTS, "chronicle_events")


def _check_count(noun: str, found: int, allowed: int, limit: str) -> None:
    if found > allowed:
        raise ChronicleFileError(
            f"The chronicle has {found:,} {noun}; {allowed:,} are allowed.",
            extra={"limit": limit, "allowed": allowed, "found": found},
        )


def _check_ids(events: Sequence[EventRecord]) -> None:
    """Check that ids are unique and that `superseded_by` refers to events without cycles."""
    places: dict[str, int] = {}
    for number, event in enumerate(events):
        if event.id and places.setdefault(event.id, number) != number:
            raise ChronicleFileError(
                f"events[{number}].id is already used by events[{places[event.id]}]."
            )
    known_good: set[int] = set()
    for number, event in enumerate(events):
        if event.superseded_by is not None and event.superseded_by not in places:
            raise ChronicleFileError(
                f"events[{number}].superseded_by is not the id of an event in the file."
            )
        walked: set[int] = set()
        at: int | None = number
        while at is not None and at not in known_good:
            if at in walked:
                raise ChronicleFileError(
                    f"events[{at}].superseded_by leads back to the event itself."
                )
            walked.add(at)
            following = events[at].superseded_by
            at = places.get(following) if following is not None else None
        known_good |= walked


def _format_message(message: str) -> str:
    """Return msgspec's message after the member: `events[12].significance: Expected ...`."""
    said, _, path = message.partition(" - at `$")
    place = path.removesuffix("`").removeprefix(".")
    return f"{place}: {said}." if place else f"{said}."


_Same = tuple[bytes, datetime]
"""Identity of an event: its content and its time."""


class _KnownEvent(NamedTuple):
    """An existing event: its revision and its identity."""

    revision: int
    same: _Same


@dataclass(frozen=True, slots=True)
class IncomingEvent:
    """An event of a file, prepared outside the transaction.

    The messages and the place of `new` are not known yet.
    """

    record: EventRecord
    same: _Same
    new: NewEvent


class ImportedChronicle(msgspec.Struct, kw_only=True):
    """The result of an import.

    `skipped` counts events that existed already, and events of an inactive branch without all of
    their messages, because those could never become active.
    """

    chronicle_id: UUID
    created: int
    skipped: int


class ChronicleTransfer:
    def __init__(self, database: Database, outbox: IndexOutbox, pool: CpuPool) -> None:
        self._database = database
        self._outbox = outbox
        self._pool = pool

    async def export(self, identity: Identity, chronicle_id: UUID) -> FileDownload:
        async with self._database.read() as session:
            chronicle = await get_chronicle(session, chronicle_id, owner_id=identity.user_id)
            fields = open_chronicle(identity.sealer, chronicle)
            events = await load_all_events(session, identity.sealer, chronicle_id)
        data = await self._pool.run(identity.user_id, partial(write_file, fields, events))
        return FileDownload(data, "application/json", fields.name, "json")

    async def import_new(
        self,
        identity: Identity,
        data: bytes,
        name: str,
        *,
        translate: TranslateAudience | None = None,
        record: RecordCreated = record_nothing,
    ) -> ImportedChronicle:
        """Create a chronicle from a file with all its events, or nothing.

        `name` is used if the file contains no name. A file of an archive has a `translate`, which
        returns the audience of an event with its ids in this account. Then events keep their
        authors.
        """
        file, events = await self._read(identity.sealer, data, translate=translate)
        called = file.name.strip() or name.strip()[:500] or DEFAULT_NAME
        fields = ChronicleFields(name=called, description=file.description)
        async with self._database.write() as session:
            chronicle = await make_chronicle(session, identity, fields)
            await record(session, chronicle.id)
            messages = await _hold_messages(session, file.events, owner_id=identity.user_id)
            return await self._add(session, identity, chronicle.id, events, messages, known={})

    async def check(self, identity: Identity, chronicle_id: UUID) -> None:
        """Raise `ChronicleNotFoundError` if the chronicle does not exist."""
        async with self._database.read() as session:
            await get_chronicle(session, chronicle_id, owner_id=identity.user_id)

    async def import_into(
        self, identity: Identity, chronicle_id: UUID, data: bytes
    ) -> ImportedChronicle:
        """Add a file's events to a chronicle. Identical events are skipped.

        The chronicle keeps its name and description.
        """
        owner_id = identity.user_id
        file, events = await self._read(identity.sealer, data)
        async with self._database.read() as session:
            await get_chronicle(session, chronicle_id, owner_id=owner_id)
            seen = await _read_known(session, identity.sealer, chronicle_id, {})
        async with self._database.write() as session:
            messages = await _hold_messages(session, file.events, owner_id=owner_id)
            await get_chronicle(session, chronicle_id, owner_id=owner_id, lock=True)
            # Read again under the lock. Usually few events have changed.
            seen = await _read_known(session, identity.sealer, chronicle_id, seen)
            known: dict[_Same, UUID] = {}
            async for event_id in iterate_in_slices(list(seen)):
                known.setdefault(seen[event_id].same, event_id)
            return await self._add(session, identity, chronicle_id, events, messages, known=known)

    async def _read(
        self, sealer: Sealer, data: bytes, *, translate: TranslateAudience | None = None
    ) -> tuple[ChronicleFile, Sequence[IncomingEvent]]:
        def read() -> tuple[ChronicleFile, Sequence[IncomingEvent]]:
            file = read_file(data)
            events = [
                incoming_event(
                    sealer,
                    record,
                    audience=translate(record.audience) if translate else GM,
                    keeps_source=translate is not None,
                )
                for record in file.events
            ]
            return file, events

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
    """Store the events that are neither `known` nor from an inactive branch. Return their number.

    `messages` are the source messages by their ids in the file. Existing events are not changed,
    even if they are superseded in the file.
    """
    rows: dict[int, UUID] = {}
    fresh: dict[int, NewEvent] = {}
    behind: defaultdict[datetime, int] = defaultdict(int)
    async for number, incoming in iterate_in_slices(list(enumerate(events))):
        event = incoming.record
        found = known.get(incoming.same)
        if found is not None:
            rows[number] = found
            continue
        sources = event.find_sources(messages)
        if not event.counts and len(sources) < len(event.message_ids):
            # Without its messages, nothing would mark it as inactive.
            continue
        # Events of one moment keep the order of the file.
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
    """Return the owner's existing source messages and protect their chats from deletion.

    Raises `MessageNotFoundError` if a chat is deleted at the same time.
    """
    ids = [each for event in events for each in event.message_ids]
    found = await find_messages(session, ids, owner_id=owner_id)
    await hold_chats(session, found.values())
    return found


async def _read_known(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, seen: Mapping[UUID, _KnownEvent]
) -> dict[UUID, _KnownEvent]:
    """Return the events of a chronicle in story order. Unchanged ones come from `seen`."""
    rows = await session.execute(
        select(ChronicleEvent.id, ChronicleEvent.revision)
        .where(ChronicleEvent.chronicle_id == chronicle_id)
        .order_by(*STORY_ORDER)
    )
    revisions = {row.id: row.revision for row in rows}
    known = {each: at for each, at in seen.items() if revisions.get(each) == at.revision}
    news = [each for each in revisions if each not in known]
    for ids in split_chunks(news, EVENT_BATCH_SIZE):
        owned = ChronicleEvent.id.in_(ids), ChronicleEvent.user_id == sealer.user_id
        for event in await session.scalars(select(ChronicleEvent).where(*owned)):
            same = _same(open_event(sealer, event), event.happened_at)
            known[event.id] = _KnownEvent(event.revision, same)
        await asyncio.sleep(0)
    return {each: known[each] for each in revisions}


def incoming_event(
    sealer: Sealer, record: EventRecord, *, audience: str = GM, keeps_source: bool = False
) -> IncomingEvent:
    """Seal an event of a file. `audience` may know it if it is not public.

    With `keeps_source`, the event keeps its author, because the file is from the same user.
    """
    fields, event_id = record.fields, new_id()
    new = NewEvent(
        id=event_id,
        fields=fields,
        sealed=seal_event(sealer, event_id, fields),
        significance=record.significance,
        source=record.source if keeps_source else "import",
        happened_at=record.happened_at,
        is_pinned=record.pinned,
        audience=PUBLIC if record.audience == PUBLIC else audience,
    )
    return IncomingEvent(record, _same(fields, record.happened_at), new)


def _same(fields: EventFields, happened_at: datetime) -> _Same:
    return msgspec.json.encode(fields), happened_at
