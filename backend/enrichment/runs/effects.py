"""Write the proposals of a run, all or none, in the caller's transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.state.story_clock import StoryClock, StoryTime
from backend.chronicles import event_writer as writing
from backend.chronicles.errors import ChronicleFullError, ChronicleNotFoundError
from backend.chronicles.events import EventFields
from backend.chronicles.models import ChronicleEvent
from backend.chronicles.repository import (
    counting,
    get_chronicle,
    get_events,
    open_chronicle,
    open_event,
    read_message_events,
)
from backend.core.audience import PUBLIC
from backend.enrichment.agent.duplicates import is_any_known
from backend.enrichment.agent.proposals import (
    Proposal,
    ProposedChange,
    ProposedEntry,
    ProposedEvent,
)
from backend.enrichment.agent.retellings import is_retellable, tells_no_more
from backend.enrichment.pipeline import EventsChangedError
from backend.enrichment.runs.store import EffectKind, RefusedCall, RunEffect
from backend.enrichment.story import TranscriptSlice
from backend.lorebooks import authoring
from backend.lorebooks.errors import LorebookFullError
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.memory.index.protocol import Kind
from backend.memory.indexing.outbox import IndexOutbox, KeyHolder
from backend.vault.sealing import Sealer

_CHANGED = "It was changed while the agent was reading, and is kept."
_SUPERSEDED = "The superseded event was superseded by another one while the agent was reading."
_NOT_PUBLIC = "Lorebooks are for everyone, but these lines are not."
_TOLD_AGAIN = "told again to others"
_PINNED = "The superseded event was pinned while the agent was reading. Both are kept."


Changed = defaultdict[tuple[Kind, UUID], set[UUID]]
"""Ids of events and entries by container."""


async def update_index(
    session: AsyncSession, index: IndexOutbox, holder: KeyHolder, changed: Changed
) -> None:
    """Queue the indexing of everything that a run wrote or an undo changed."""
    for (kind, container_id), ids in changed.items():
        await index.changed(
            session, holder, kind=kind, container_id=container_id, source_ids=sorted(ids)
        )


def build_effect(
    row: ChronicleEvent | LoreEntryRow,
    what: EffectKind,
    *,
    title: str,
    because: str,
    before: dict[str, Any] | None = None,
    telling: int | None = None,
) -> RunEffect:
    """Build the effect on an event or an entry. `before` is its snapshot before the change.

    `telling` is the number of a telling that was added to an event.
    """
    return RunEffect(
        what=what,
        id=row.id,
        container_id=row.chronicle_id if isinstance(row, ChronicleEvent) else row.lorebook_id,
        title=title,
        because=because,
        revision=0 if what.endswith("removed") else row.revision,
        before=before,
        telling=telling,
    )


def stamp_time(fields: EventFields, at: StoryTime | None) -> EventFields:
    """Return an event's fields with the story's time, unless the story itself gives a day."""
    if at is None or fields.day is not None:
        return fields
    return msgspec.structs.replace(fields, day=at.day, time=fields.time or at.time)


def _find_line(event: ProposedEvent) -> UUID:
    """Return the last source message of an event, without the message that led to an edit of it."""
    told = event.sources[:-1] if event.mends is not None else event.sources
    return (told or event.sources)[-1].id


@dataclass(frozen=True, slots=True)
class ProposalWriter:
    """Writes the agent's proposals of one run. The caller updates the index.

    The caller has locked the chat and checked that its lines are unchanged. Proposals are `refused`
    if the user has changed their target since, or if there is no room.
    """

    session: AsyncSession
    sealer: Sealer
    stretch: TranscriptSlice
    run_id: UUID
    clock: StoryClock
    effects: list[RunEffect] = field(default_factory=list[RunEffect])
    refused: list[RefusedCall] = field(default_factory=list[RefusedCall])

    async def write(self, proposals: Sequence[Proposal], *, seen: Collection[UUID] = ()) -> None:
        """Write the proposals, and mark events that they supersede.

        Raises `EventsChangedError` if similar events were written that are not among `seen`.
        """
        if not proposals:
            return
        owner_id, chronicle_id = self.sealer.user_id, self.stretch.chronicle_id
        try:
            chronicle = await get_chronicle(
                self.session, chronicle_id, owner_id=owner_id, lock=True
            )
        except ChronicleNotFoundError:
            self._refuse("create_chronicle_event", "The chronicle is gone.")
            return
        events = [each for each in proposals if isinstance(each, ProposedEvent)]
        if events:
            lines = [line.id for line in self.stretch.lines]
            written = await read_message_events(
                self.session, self.sealer, chronicle_id, lines, viewpoint=self.stretch.listeners
            )
            if is_any_known([each.fields for each in events], written, seen=seen):
                raise EventsChangedError
        await self._write_events(events)
        name = open_chronicle(self.sealer, chronicle).name
        entries = [each for each in proposals if not isinstance(each, ProposedEvent)]
        if entries and self.stretch.audience != PUBLIC:
            self._refuse("create_lorebook_entry", _NOT_PUBLIC)
            return
        for each in entries:
            if isinstance(each, ProposedEntry):
                await self._add_entry(each, name)
            else:
                await self._change_entry(each)

    async def _write_events(self, proposed: Sequence[ProposedEvent]) -> None:
        proposed = [each for each in proposed if await self._is_as_read(each)]
        times = await self.clock.find_times(
            self.session, self.sealer, [_find_line(each) for each in proposed]
        )
        fields = {
            each.id: stamp_time(each.fields, times.get(_find_line(each))) for each in proposed
        }
        proposed = [each for each in proposed if not await self._tell_again(each, fields[each.id])]
        new = [
            writing.NewEvent(
                fields=fields[each.id],
                significance=each.significance,
                source="agent",
                happened_at=each.happened_at,
                place=each.place,
                sources=each.sources,
                run_id=self.run_id,
                audience=self.stretch.audience,
            )
            for each in proposed
        ]
        try:
            rows = await writing.add_events(
                self.session, self.sealer, self.stretch.chronicle_id, new
            )
        except ChronicleFullError as error:
            self._refuse("create_chronicle_event", error.detail)
            return
        by_id = {each.id: row for each, row in zip(proposed, rows, strict=True)}
        changed: list[RunEffect] = []
        for each, row in zip(proposed, rows, strict=True):
            if (old := each.supersedes) is None:
                continue
            if old in by_id:
                # This is not a separate effect, because undoing the run removes both.
                await writing.supersede(self.session, by_id[old], row.id)
            elif (effect := await self._mark_superseded(old, row, each)) is not None:
                changed.append(effect)
        self.effects.extend(
            build_effect(row, "event_created", title=each.fields.summary, because=each.because)
            for each, row in zip(proposed, rows, strict=True)
        )
        self.effects.extend(changed)

    async def _tell_again(self, new: ProposedEvent, fields: EventFields) -> bool:
        """Add the messages of `new` to the event that it tells again. False if it must be written.

        That is the case if the other event was changed since, or would tell more than `fields`.
        """
        if new.retells is None:
            return False
        found = await get_events(self.session, self.sealer, [new.retells.event_id])
        event = found.get(new.retells.event_id)
        is_as_read = (
            event is not None
            and event.is_current
            and event.chronicle_id == self.stretch.chronicle_id
            and event.revision == new.retells.revision
            and is_retellable(event, new)
            and tells_no_more(event.fields, fields)
        )
        row = await self._get_event(new.retells.event_id) if is_as_read else None
        if row is None:
            return False
        before = await writing.snapshot(self.session, self.sealer, row)
        audience = self.stretch.audience
        telling = await writing.add_telling(self.session, row, new.sources, audience)
        title = open_event(self.sealer, row).summary
        self.effects.append(
            build_effect(
                row,
                "event_changed",
                title=title,
                because=new.because or _TOLD_AGAIN,
                before=before,
                telling=telling,
            )
        )
        return True

    async def _is_as_read(self, new: ProposedEvent) -> bool:
        """True if an event that is to be replaced is unchanged since it was read."""
        if new.mends is None or new.supersedes is None:
            return True
        row = await self._get_event(new.supersedes)
        if row is not None and row.revision == new.mends:
            return True
        self._refuse("update_chronicle_event", _CHANGED)
        return False

    async def _mark_superseded(
        self, event_id: UUID, by: ChronicleEvent, new: ProposedEvent
    ) -> RunEffect | None:
        """Mark an existing event as superseded. Return None if the user was faster.

        That is the case if it was deleted or pinned, or if another current event supersedes it.
        """
        row = await self._get_event(event_id)
        if row is None:
            return None
        if row.is_pinned:
            self._refuse("create_chronicle_event", _PINNED)
            return None
        if row.superseded_by is not None and await self._counts(row.superseded_by):
            self._refuse("create_chronicle_event", _SUPERSEDED)
            return None
        before = await writing.snapshot(self.session, self.sealer, row)
        await writing.supersede(self.session, row, by.id)
        because = new.because or f"superseded by: {new.fields.summary}"
        title = open_event(self.sealer, row).summary
        return build_effect(row, "event_changed", title=title, because=because, before=before)

    async def _counts(self, event_id: UUID) -> bool:
        query = select(ChronicleEvent.id).where(ChronicleEvent.id == event_id, counting())
        return await self.session.scalar(query) is not None

    async def _get_event(self, event_id: UUID) -> ChronicleEvent | None:
        return await self.session.scalar(
            select(ChronicleEvent).where(
                ChronicleEvent.id == event_id,
                ChronicleEvent.chronicle_id == self.stretch.chronicle_id,
                ChronicleEvent.user_id == self.sealer.user_id,
            )
        )

    async def _add_entry(self, new: ProposedEntry, chronicle_name: str) -> None:
        try:
            book = await authoring.chronicle_book(
                self.session, self.sealer, self.stretch.chronicle_id, name=chronicle_name
            )
            row = await authoring.add_entry(
                self.session, self.sealer, book, new.entry, self._origin()
            )
        except LorebookFullError as error:
            self._refuse("create_lorebook_entry", error.detail)
            return
        self.effects.append(
            build_effect(row, "entry_created", title=new.entry.title, because=new.because)
        )

    async def _change_entry(self, change: ProposedChange) -> None:
        owner_id = self.sealer.user_id
        book = await self.session.scalar(
            select(Lorebook)
            .where(Lorebook.id == change.book_id, Lorebook.match_owner(owner_id))
            .with_for_update()
        )
        row = await self.session.scalar(
            select(LoreEntryRow).where(
                LoreEntryRow.id == change.id,
                LoreEntryRow.lorebook_id == change.book_id,
                LoreEntryRow.user_id == owner_id,
            )
        )
        if book is None or row is None or row.revision != change.revision:
            self._refuse("update_lorebook_entry", _CHANGED)
            return
        before = authoring.snapshot(self.sealer, row)
        await authoring.change_entry(
            self.session, self.sealer, book, row, change.entry, self._origin()
        )
        title, because = change.entry.title, change.because
        self.effects.append(
            build_effect(row, "entry_changed", title=title, because=because, before=before)
        )

    def _origin(self) -> authoring.EntryOrigin:
        stretch = self.stretch
        return authoring.EntryOrigin(self.run_id, stretch.chat_id, stretch.lines[-1].id)

    def _refuse(self, tool: str, reason: str) -> None:
        self.refused.append(RefusedCall(tool=tool, reason=reason))
