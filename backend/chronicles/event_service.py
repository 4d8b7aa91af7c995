"""Create, list, change, merge and delete events of chronicles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec
from msgspec import UnsetType
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats.models import Message
from backend.chronicles.errors import EventNotFoundError
from backend.chronicles.event_search import Cursor, EventFilter, find_page
from backend.chronicles.event_writer import (
    NewEvent,
    find_superseded,
    find_told_audience,
    first_place,
    hold_chats,
    insert_events,
    is_superseded_by,
    remove_events,
    set_sources,
    supersede,
    supersede_again,
    touch,
)
from backend.chronicles.events import MAX_NAMES, MAX_SOURCES, MAX_SUMMARY, EventFields
from backend.chronicles.models import Chronicle, ChronicleEvent
from backend.chronicles.repository import (
    SourceMessage,
    StoryEvent,
    check_pins,
    find_knowers,
    find_sources,
    find_witnesses,
    get_chronicle,
    get_event,
    get_events,
    group_tellings,
    seal_event,
)
from backend.chronicles.schemas import (
    EventChange,
    EventMerge,
    EventView,
    MergedFields,
    NewChronicleEvent,
)
from backend.core.audience import (
    PUBLIC,
    Audience,
    Witness,
    decode_audience,
    encode_audience,
    intersect_audiences,
    limit_audience,
)
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.http.schemas import Page, check_revision, make_struct, merge_patch, reject_unknown
from backend.memory.indexing.outbox import IndexOutbox
from backend.vault.sealing import Sealer

T = TypeVar("T")

YEARS = range(1900, 3000)
"""Allowed years of `happened_at`. Both databases can store and order them in any zone."""


def build_fields(said: NewChronicleEvent | EventChange) -> EventFields:
    """Return the content fields of a request. Raises `ValidationError` for a blank summary."""
    fields = make_struct(EventFields, said)
    if not fields.summary.strip():
        raise ValidationError("An event needs a summary.")
    return fields


def convert_to_utc(moment: datetime | None) -> datetime | None:
    """Convert a time to UTC. Raises `ValidationError` if its year is out of range."""
    if moment is None:
        return None
    if moment.year not in YEARS:
        raise ValidationError(f"happened_at must be in the years {YEARS[0]} to {YEARS[-1]}.")
    return moment.astimezone(UTC)


def build_change(event: StoryEvent) -> EventChange:
    """Return the editable fields of an event."""
    return make_struct(
        EventChange,
        event,
        **msgspec.structs.asdict(event.fields),
        pinned=event.is_pinned,
        source_message_ids=[each.id for each in event.sources],
        audience=decode_audience(event.audience),
    )


async def apply_change(
    session: AsyncSession,
    sealer: Sealer,
    row: ChronicleEvent,
    event: StoryEvent,
    wanted: EventChange,
) -> bool:
    """Change the row of `event` to `wanted`. Return True if anything differed.

    An event of the agent becomes edited, unless only its pin changed.

    Raises `ValidationError`, `MessageNotFoundError`, `ChronicleFullError`.
    """
    fields = build_fields(wanted)
    was = build_change(event)
    sources = await find_next_sources(session, event, wanted, owner_id=sealer.user_id)
    happened_at = (
        convert_to_utc(wanted.happened_at)
        or await find_last_time(session, sources)
        or event.created_at
    )
    wanted = msgspec.structs.replace(
        wanted, source_message_ids=[each.id for each in sources], happened_at=happened_at
    )
    if wanted == was:
        return False
    revision = row.revision
    if wanted.pinned and not was.pinned:
        await check_pins(session, row.chronicle_id)
    row.is_pinned, row.significance = wanted.pinned, wanted.significance
    row.happened_at = happened_at
    if wanted.audience != was.audience:
        row.audience = encode_audience(wanted.audience)
    if fields != event.fields:
        row.sealed_event = seal_event(sealer, row.id, fields)
    if sources is not event.sources:
        await set_sources(session, row, sources)
    if wanted.superseded_by != was.superseded_by:
        await supersede(session, row, wanted.superseded_by)
    if row.source == "agent" and msgspec.structs.replace(wanted, pinned=was.pinned) != was:
        row.is_edited = True
    touch(row)
    # One change, even if it affects several parts of the event.
    row.revision = revision + 1
    await session.flush()
    return True


async def find_next_sources(
    session: AsyncSession, event: StoryEvent, wanted: EventChange, *, owner_id: UUID
) -> Sequence[SourceMessage]:
    """Return an event's new source messages. Those it already has may have been deleted since.

    Raises `MessageNotFoundError`, `ValidationError`.
    """
    ids = wanted.source_message_ids
    have = {each.id: each for each in event.sources}
    if set(ids) == have.keys():
        return event.sources
    added = [each for each in ids if each not in have]
    kept = [have[each] for each in dict.fromkeys(ids) if each in have]
    return [*kept, *await find_sources(session, added, owner_id=owner_id)]


async def find_last_time(
    session: AsyncSession, sources: Sequence[SourceMessage]
) -> datetime | None:
    ids = [each.id for each in sources]
    found: datetime | None = await session.scalar(
        select(func.max(Message.created_at)).where(Message.id.in_(ids))
    )
    return found


def merge_events(events: Sequence[StoryEvent], given: MergedFields) -> NewEvent:
    """Return the event that replaces several events in story order. `given` takes precedence.

    Summaries are joined. People, keywords and messages are united. Kind and significance are those
    of the most significant event. The result is pinned if any is, and takes the position of the
    first. Time and place in the story are the first ones given. The audience may know all of the
    events.

    Raises `ValidationError` if the result exceeds the limits of an event.
    """
    said = [event.fields for event in events]
    weightiest = max(events, key=lambda event: event.significance)
    timed = next((each for each in said if each.day is not None or each.time), said[0])
    fields = EventFields(
        summary=_or(given.summary, lambda: _join_summaries(each.summary for each in said)),
        kind=_or(given.kind, lambda: weightiest.fields.kind),
        day=_or(given.day, lambda: timed.day),
        time=_or(given.time, lambda: timed.time),
        where=_or(given.where, lambda: next((each.where for each in said if each.where), "")),
        who=_or(given.who, lambda: _unite_names("who", (each.who for each in said))),
        keywords=_or(
            given.keywords, lambda: _unite_names("keywords", (each.keywords for each in said))
        ),
    )
    return NewEvent(
        fields=fields,
        significance=_or(given.significance, lambda: weightiest.significance),
        source="user",
        is_pinned=_or(given.pinned, lambda: any(event.is_pinned for event in events)),
        happened_at=events[0].happened_at,
        place=events[0].place,
        sources=_all_sources(events),
        audience=intersect_audiences([event.audience for event in events]),
    )


def _or(given: T | UnsetType, made: Callable[[], T]) -> T:
    return made() if isinstance(given, UnsetType) else given


def _join_summaries(summaries: Iterable[str]) -> str:
    text = "\n".join(dict.fromkeys(summaries))
    if len(text) > MAX_SUMMARY:
        raise ValidationError(
            f"Together their summaries have {len(text):,} characters; {MAX_SUMMARY:,} are allowed. "
            "Send a shorter summary as `event.summary`.",
            extra={"limit": MAX_SUMMARY, "found": len(text)},
        )
    return text


def _unite_names(member: str, lists: Iterable[list[str]]) -> list[str]:
    """Return the names of several lists without duplicates, ignoring case."""
    found: dict[str, str] = {}
    for names in lists:
        for name in names:
            found.setdefault(name.casefold(), name)
    if len(found) > MAX_NAMES:
        raise ValidationError(
            f"Together they have {len(found)} {member}; {MAX_NAMES} are allowed. "
            f"Choose some as `event.{member}`.",
            extra={"limit": MAX_NAMES, "found": len(found)},
        )
    return list(found.values())


def _all_sources(events: Sequence[StoryEvent]) -> list[SourceMessage]:
    found = {
        source.id: msgspec.structs.replace(source, telling=0)
        for event in events
        for source in event.sources
    }
    if len(found) > MAX_SOURCES:
        raise ValidationError(
            f"Together they come from {len(found)} messages; {MAX_SOURCES} are allowed.",
            extra={"limit": MAX_SOURCES, "found": len(found)},
        )
    return list(found.values())


class AudienceCheck(Protocol):
    """Checks if an event of a chronicle may have an audience."""

    async def __call__(
        self, session: AsyncSession, chronicle_id: UUID, audience: Audience, *, owner_id: UUID
    ) -> None:
        """Raise `ValidationError` unless it may."""
        ...


class WitnessSource(Protocol):
    """Finds the viewpoints of the characters in the chats of a chronicle."""

    async def __call__(
        self, session: AsyncSession, sealer: Sealer, chronicle_id: UUID, /
    ) -> Mapping[UUID, Witness]: ...


class EventService:
    """Operations of a user on the events of a chronicle. The routes list the errors."""

    def __init__(
        self,
        database: Database,
        outbox: IndexOutbox,
        *,
        check_audience: AudienceCheck,
        find_witnesses: WitnessSource,
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._check_audience = check_audience
        self._find_witnesses = find_witnesses

    async def list_page(
        self,
        identity: Identity,
        chronicle_id: UUID,
        wanted: EventFilter,
        *,
        limit: int,
        after: str | None,
        newest: bool,
    ) -> Page[EventView]:
        """List a chronicle's events in story order, oldest first, or `newest` first.

        A page of a search may be short or empty even if there are more.
        """
        cursor = None if after is None else Cursor.parse(after)
        async with self._database.read() as session:
            await get_chronicle(session, chronicle_id, owner_id=identity.user_id)
            ids, follows = await find_page(
                session,
                identity.sealer,
                chronicle_id,
                wanted,
                limit=limit,
                after=cursor,
                newest=newest,
            )
            events = await get_events(session, identity.sealer, ids)
            items = await load_views(
                session,
                identity.sealer,
                [events[event_id] for event_id in ids],
                self._find_witnesses,
            )
        return Page(items=items, next=str(follows) if follows else None)

    async def create(
        self, identity: Identity, chronicle_id: UUID, new: NewChronicleEvent
    ) -> EventView:
        fields, sealer = build_fields(new), identity.sealer
        happened_at = convert_to_utc(new.happened_at)
        async with self._database.write() as session:
            await get_chronicle(session, chronicle_id, owner_id=sealer.user_id)
            await self._check_audience(session, chronicle_id, new.audience, owner_id=sealer.user_id)
            sources = await find_sources(session, new.source_message_ids, owner_id=sealer.user_id)
            await hold_chats(session, sources)
            await self._lock(session, sealer, chronicle_id)
            if new.pinned:
                await check_pins(session, chronicle_id)
            event = NewEvent(
                fields=fields,
                significance=new.significance,
                source="user",
                happened_at=happened_at or await find_last_time(session, sources) or now(),
                place=first_place(sources),
                sources=sources,
                is_pinned=new.pinned,
                audience=encode_audience(new.audience),
            )
            await insert_events(session, sealer, chronicle_id, [event])
            await self._note(session, identity, chronicle_id, [event.id])
            return await self._load_view(session, sealer, event.id)

    async def get(self, identity: Identity, chronicle_id: UUID, event_id: UUID) -> EventView:
        """Return an event. Raises `EventNotFoundError`."""
        async with self._database.read() as session:
            event = await _read(session, identity.sealer, chronicle_id, event_id)
            return await self._load_view(session, identity.sealer, event.id)

    async def patch(
        self,
        identity: Identity,
        chronicle_id: UUID,
        event_id: UUID,
        patch: dict[str, Any],
        *,
        if_match: str | None,
    ) -> EventView:
        """Merge `patch` into an event. Absent fields are kept, null resets one to its default."""
        reject_unknown(patch, EventChange)
        sealer = identity.sealer
        async with self._database.write() as session:
            await get_chronicle(session, chronicle_id, owner_id=sealer.user_id)
            if "source_message_ids" in patch:
                event = await _read(session, sealer, chronicle_id, event_id)
                wanted = merge_patch(build_change(event), patch)
                await hold_chats(
                    session,
                    await find_next_sources(session, event, wanted, owner_id=sealer.user_id),
                )
            await self._lock(session, sealer, chronicle_id)
            row = await get_event(session, chronicle_id, event_id, owner_id=sealer.user_id)
            # Also reloads the row, which may have changed before it was locked.
            event = await _read(session, sealer, chronicle_id, event_id)
            check_revision(if_match, row.revision)
            wanted = merge_patch(build_change(event), patch)
            if "audience" in patch:
                await self._check_audience(
                    session, chronicle_id, wanted.audience, owner_id=sealer.user_id
                )
            if await apply_change(session, sealer, row, event, wanted):
                await self._note(session, identity, chronicle_id, [event_id])
            return await self._load_view(session, sealer, event_id)

    async def delete(
        self, identity: Identity, chronicle_id: UUID, event_id: UUID, *, if_match: str | None
    ) -> None:
        """Delete an event. Events that it superseded become current again."""
        owner_id = identity.user_id
        async with self._database.write() as session:
            await self._lock(session, identity.sealer, chronicle_id)
            row = await get_event(session, chronicle_id, event_id, owner_id=owner_id)
            check_revision(if_match, row.revision)
            await remove_events(session, [row.id], owner_id=owner_id)
            await self._note(session, identity, chronicle_id, [event_id])

    async def merge(self, identity: Identity, chronicle_id: UUID, wanted: EventMerge) -> EventView:
        """Replace several events by one that belongs to the user.

        It supersedes the events that one of them superseded. An event that superseded all of them
        supersedes it.
        """
        sealer, ids = identity.sealer, list(dict.fromkeys(wanted.event_ids))
        async with self._database.write() as session:
            await get_chronicle(session, chronicle_id, owner_id=sealer.user_id)
            events = await _read_all(session, sealer, chronicle_id, ids)
            await hold_chats(session, [source for event in events for source in event.sources])
            await self._lock(session, sealer, chronicle_id)
            events = await _read_all(session, sealer, chronicle_id, ids)
            told = [await _take_last_telling(session, event) for event in events]
            made = merge_events(told, wanted.event)
            made = replace(made, superseded_by=await _find_superseder(session, events))
            superseded = await find_superseded(session, ids)
            await remove_events(session, ids, owner_id=sealer.user_id)
            if made.is_pinned:
                await check_pins(session, chronicle_id)
            await insert_events(session, sealer, chronicle_id, [made])
            await supersede_again(session, chronicle_id, superseded, made.id)
            await self._note(session, identity, chronicle_id, [*ids, made.id])
            return await self._load_view(session, sealer, made.id)

    async def _lock(self, session: AsyncSession, sealer: Sealer, chronicle_id: UUID) -> None:
        await get_chronicle(session, chronicle_id, owner_id=sealer.user_id, lock=True)

    async def _load_view(self, session: AsyncSession, sealer: Sealer, event_id: UUID) -> EventView:
        """Return an event after pending changes."""
        await session.flush()
        events = await get_events(session, sealer, [event_id])
        [view] = await load_views(session, sealer, [events[event_id]], self._find_witnesses)
        return view

    async def _note(
        self, session: AsyncSession, identity: Identity, chronicle_id: UUID, ids: Sequence[UUID]
    ) -> None:
        await self._outbox.changed(
            session, identity, kind="event", container_id=chronicle_id, source_ids=ids
        )


async def _read(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, event_id: UUID
) -> StoryEvent:
    """Raises `EventNotFoundError`."""
    is_it = Chronicle.id == chronicle_id, Chronicle.match_owner(sealer.user_id)
    has_chronicle = await session.scalar(select(Chronicle.id).where(*is_it)) is not None
    event = (await get_events(session, sealer, [event_id])).get(event_id)
    if not has_chronicle or event is None or event.chronicle_id != chronicle_id:
        raise EventNotFoundError
    return event


async def load_views(
    session: AsyncSession,
    sealer: Sealer,
    events: Sequence[StoryEvent],
    find_chronicle_witnesses: WitnessSource,
) -> list[EventView]:
    """Return events as the API shows them, with the characters that know them."""
    by_chronicle: defaultdict[UUID, list[UUID]] = defaultdict(list)
    for event in events:
        by_chronicle[event.chronicle_id].append(event.id)
    known: dict[UUID, list[UUID]] = {}
    for chronicle_id, event_ids in by_chronicle.items():
        witnesses = await find_chronicle_witnesses(session, sealer, chronicle_id)
        known |= await find_knowers(session, event_ids, witnesses)
    return [_build_view(event, known.get(event.id, [])) for event in events]


def _build_view(event: StoryEvent, known_to: list[UUID]) -> EventView:
    return make_struct(
        EventView,
        event,
        **msgspec.structs.asdict(event.fields),
        pinned=event.is_pinned,
        edited=event.is_edited,
        audience=decode_audience(event.audience),
        known_to=known_to,
        source_message_ids=[each.id for each in event.sources],
        source_chat_ids=list(dict.fromkeys(each.chat_id for each in event.sources)),
    )


async def _read_all(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID, ids: Sequence[UUID]
) -> list[StoryEvent]:
    """Events that are to be merged, in story order."""
    if len(ids) < 2:  # noqa: PLR2004  # what merging takes
        raise ValidationError("Send at least two events.")
    found = await get_events(session, sealer, ids)
    for event_id in ids:
        event = found.get(event_id)
        if event is None or event.chronicle_id != chronicle_id:
            raise EventNotFoundError(
                "One of the events is not in this chronicle.", extra={"event_id": str(event_id)}
            )
        if not event.counts:
            raise ValidationError(
                "One of the events is archived: a message that it comes from is not on its "
                "chat's active path. The merged event would be archived too.",
                extra={"event_id": str(event_id)},
            )
    return sorted(found.values(), key=lambda each: (each.happened_at, each.place, each.id))


async def _take_last_telling(session: AsyncSession, event: StoryEvent) -> StoryEvent:
    """Return an event with the messages of its last telling that counts.

    If it is public, its audience becomes those who heard it, because the text of a merged event is
    only for those who know all of its parts.
    """
    active = await find_witnesses(session, event.sources)
    counting = [
        telling
        for _, telling in sorted(group_tellings(event.sources).items())
        if all(each.id in active for each in telling)
    ]
    if not counting:
        return event
    audience = event.audience
    if audience == PUBLIC or not event.is_users_own:
        heard = await find_told_audience(session, [each for told in counting for each in told])
        audience = limit_audience(audience, heard)
    return msgspec.structs.replace(event, sources=counting[-1], audience=audience)


async def _find_superseder(session: AsyncSession, events: Sequence[StoryEvent]) -> UUID | None:
    """Return the event that supersedes a merged event, or None unless all were superseded."""
    ids = {event.id for event in events}
    if any(event.superseded_by is None for event in events):
        return None
    for event in reversed(events):
        by = event.superseded_by
        # An event that one of these supersedes would supersede itself.
        if by is not None and not await is_superseded_by(session, by, ids):
            return by
    return None
