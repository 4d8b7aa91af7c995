"""Events of chronicles: listing, writing down, changing, merging, deleting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.audience import Audience, opened, stored
from backend.chronicles.errors import EventNotFoundError
from backend.chronicles.event_changes import (
    apply_change,
    change_of,
    fields_of,
    in_utc,
    last_said,
    merge_events,
    next_sources,
)
from backend.chronicles.event_search import Cursor, EventFilter, find_page
from backend.chronicles.reading import StoryEvent, find_sources, get_events
from backend.chronicles.repository import check_pins, get_chronicle, get_event
from backend.chronicles.schemas import EventChange, EventMerge, EventView, NewChronicleEvent
from backend.chronicles.writing import (
    NewEvent,
    find_superseded,
    first_place,
    hold_chats,
    insert_events,
    leads_to,
    remove_events,
    supersede_again,
)
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.memory.outbox import IndexOutbox
from backend.vault.sealing import Sealer
from backend.wire import Page, check_revision, merge_patch, reject_unknown, struct_from


class AudienceCheck(Protocol):
    """Whether an event of a chronicle may have an audience."""

    async def __call__(
        self, session: AsyncSession, chronicle_id: UUID, audience: Audience, *, owner_id: UUID
    ) -> None:
        """Raise `ValidationError` unless it may."""
        ...


class EventService:
    """What a user does with the events of a chronicle. Each route names what may be raised."""

    def __init__(
        self, database: Database, outbox: IndexOutbox, *, check_audience: AudienceCheck
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._check_audience = check_audience

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
        """A chronicle's events in story order, oldest first, or `newest` first.

        A page of a search may be short, or empty, and lead on all the same.
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
        items = [_view_of(events[event_id]) for event_id in ids]
        return Page(items=items, next=str(follows) if follows else None)

    async def create(
        self, identity: Identity, chronicle_id: UUID, new: NewChronicleEvent
    ) -> EventView:
        """Write an event down."""
        fields, sealer = fields_of(new), identity.sealer
        happened_at = in_utc(new.happened_at)
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
                happened_at=happened_at or await last_said(session, sources) or now(),
                place=first_place(sources),
                sources=sources,
                is_pinned=new.pinned,
                audience=stored(new.audience),
            )
            await insert_events(session, sealer, chronicle_id, [event])
            await self._note(session, identity, chronicle_id, [event.id])
            return await _view(session, sealer, event.id)

    async def get(self, identity: Identity, chronicle_id: UUID, event_id: UUID) -> EventView:
        """Raises `EventNotFoundError`."""
        async with self._database.read() as session:
            event = await _read(session, identity.sealer, chronicle_id, event_id)
        return _view_of(event)

    async def patch(
        self,
        identity: Identity,
        chronicle_id: UUID,
        event_id: UUID,
        patch: dict[str, Any],
        *,
        if_match: str | None,
    ) -> EventView:
        """Merge into an event: what is absent stays, null goes back to the default."""
        reject_unknown(patch, EventChange)
        sealer = identity.sealer
        async with self._database.write() as session:
            await get_chronicle(session, chronicle_id, owner_id=sealer.user_id)
            if "source_message_ids" in patch:
                event = await _read(session, sealer, chronicle_id, event_id)
                wanted = merge_patch(change_of(event), patch)
                await hold_chats(
                    session, await next_sources(session, event, wanted, owner_id=sealer.user_id)
                )
            await self._lock(session, sealer, chronicle_id)
            row = await get_event(session, chronicle_id, event_id, owner_id=sealer.user_id)
            # Reads the row anew, too, which somebody may have changed before it was locked.
            event = await _read(session, sealer, chronicle_id, event_id)
            check_revision(if_match, row.revision)
            wanted = merge_patch(change_of(event), patch)
            if "audience" in patch:
                await self._check_audience(
                    session, chronicle_id, wanted.audience, owner_id=sealer.user_id
                )
            if await apply_change(session, sealer, row, event, wanted):
                await self._note(session, identity, chronicle_id, [event_id])
            return await _view(session, sealer, event_id)

    async def delete(
        self, identity: Identity, chronicle_id: UUID, event_id: UUID, *, if_match: str | None
    ) -> None:
        """Delete an event. What it superseded is current again."""
        owner_id = identity.user_id
        async with self._database.write() as session:
            await self._lock(session, identity.sealer, chronicle_id)
            row = await get_event(session, chronicle_id, event_id, owner_id=owner_id)
            check_revision(if_match, row.revision)
            await remove_events(session, [row.id], owner_id=owner_id)
            await self._note(session, identity, chronicle_id, [event_id])

    async def merge(self, identity: Identity, chronicle_id: UUID, wanted: EventMerge) -> EventView:
        """Put one event in place of several. It is the user's.

        What one of them superseded it supersedes; what superseded all of them supersedes it.
        """
        sealer, ids = identity.sealer, list(dict.fromkeys(wanted.event_ids))
        async with self._database.write() as session:
            await get_chronicle(session, chronicle_id, owner_id=sealer.user_id)
            events = await _read_all(session, sealer, chronicle_id, ids)
            await hold_chats(session, [source for event in events for source in event.sources])
            await self._lock(session, sealer, chronicle_id)
            events = await _read_all(session, sealer, chronicle_id, ids)
            made = merge_events(events, wanted.event)
            made = replace(made, superseded_by=await _superseder(session, events))
            superseded = await find_superseded(session, ids)
            await remove_events(session, ids, owner_id=sealer.user_id)
            if made.is_pinned:
                await check_pins(session, chronicle_id)
            await insert_events(session, sealer, chronicle_id, [made])
            await supersede_again(session, chronicle_id, superseded, made.id)
            await self._note(session, identity, chronicle_id, [*ids, made.id])
            return await _view(session, sealer, made.id)

    async def _lock(self, session: AsyncSession, sealer: Sealer, chronicle_id: UUID) -> None:
        await get_chronicle(session, chronicle_id, owner_id=sealer.user_id, lock=True)

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
    event = (await get_events(session, sealer, [event_id])).get(event_id)
    if event is None or event.chronicle_id != chronicle_id:
        raise EventNotFoundError
    return event


async def _view(session: AsyncSession, sealer: Sealer, event_id: UUID) -> EventView:
    """An event as it stands now."""
    await session.flush()
    return _view_of((await get_events(session, sealer, [event_id]))[event_id])


def _view_of(event: StoryEvent) -> EventView:
    return struct_from(
        EventView,
        event,
        **msgspec.structs.asdict(event.fields),
        pinned=event.is_pinned,
        edited=event.is_edited,
        audience=opened(event.audience),
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


async def _superseder(session: AsyncSession, events: Sequence[StoryEvent]) -> UUID | None:
    """What supersedes events that become one: nothing, where one of them is superseded by none."""
    ids = {event.id for event in events}
    if any(event.superseded_by is None for event in events):
        return None
    for event in reversed(events):
        by = event.superseded_by
        # One whose chain comes back to these events would supersede itself.
        if by is not None and not await leads_to(session, by, ids):
            return by
    return None
