"""Writes a compaction's events into the chronicle. Nothing here commits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from msgspec import structs
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.story_clock import StoryClock, StoryTime
from backend.chats.models import Chat, Message
from backend.chronicles import writing
from backend.chronicles.errors import ChronicleFullError
from backend.chronicles.models import ChronicleEvent, EventSource
from backend.chronicles.reading import SourceMessage, open_event, read_events_from, sealed_event
from backend.enrichment.agent.duplicates import is_any_told
from backend.enrichment.compaction.values import DraftedEvent
from backend.enrichment.effects import Changed, effect_on, stamp_time
from backend.enrichment.pipeline import EventsChangedError
from backend.enrichment.runs import Refused, RunEffect
from backend.vault.sealing import Sealer


class TimedEvent(NamedTuple):
    """An event that has the story's time at its last message, and this message."""

    row: ChronicleEvent
    message_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ChronicleWriter:
    """Writes events within the caller's transaction.

    Attributes:
        messages: The messages that were read, by their positions.
        audience: Theirs, as a column holds it.
        effects: What was written.
        refused: What was not.
        changed: What the index has to look at.
    """

    session: AsyncSession
    sealer: Sealer
    clock: StoryClock
    chat: Chat
    chronicle_id: UUID
    messages: Mapping[int, Message]
    audience: str
    run_id: UUID
    effects: list[RunEffect] = field(default_factory=list[RunEffect])
    refused: list[Refused] = field(default_factory=list[Refused])
    changed: Changed = field(default_factory=lambda: defaultdict(set))

    async def find_timed(self) -> Sequence[TimedEvent]:
        """Return the events since the first message that have the story's time at their message.

        Events with a time that a user or the story gave are left out.
        """
        query = (
            select(ChronicleEvent, EventSource.message_id)
            .join(EventSource, EventSource.event_id == ChronicleEvent.id)
            .where(
                ChronicleEvent.chronicle_id == self.chronicle_id,
                ChronicleEvent.user_id == self.sealer.user_id,
                ChronicleEvent.source.in_(("agent", "campaign")),
                ~ChronicleEvent.is_edited,
                EventSource.chat_id == self.chat.id,
                EventSource.position >= min(self.messages),
            )
            .order_by(EventSource.position)
        )
        told_by = dict((await self.session.execute(query)).all())
        times = await self._times(told_by.values())
        return [
            TimedEvent(row, message_id)
            for row, message_id in told_by.items()
            if (at := times.get(message_id)) is not None and at == _read_time(self.sealer, row)
        ]

    async def move(self, events: Sequence[TimedEvent]) -> None:
        """Give events the story's time as it is known by now.

        The agent reads each reply, a compaction some rounds at once: only then is it known that a
        day had passed before the agent's last events.
        """
        times = await self._times([event.message_id for event in events])
        for row, message_id in events:
            at = times[message_id]
            if at == _read_time(self.sealer, row):
                continue
            before = await writing.snapshot(self.session, self.sealer, row)
            fields = structs.replace(open_event(self.sealer, row), day=at.day, time=at.time)
            row.sealed_event = sealed_event(self.sealer, row.id, fields)
            writing.touch(row)
            effect = effect_on(
                row, "event_changed", title=fields.summary, because=at.label, before=before
            )
            self.effects.append(effect)
            self.changed["event", self.chronicle_id].add(row.id)

    async def add(self, events: Sequence[DraftedEvent], *, seen: Collection[UUID]) -> None:
        """Write new events, each from its messages.

        Raises `EventsChangedError` for events like those that were written since the new ones were
        compared with those `seen`.
        """
        if not events:
            return
        message_ids = [message.id for message in self.messages.values()]
        written = await read_events_from(
            self.session, self.sealer, self.chronicle_id, message_ids, audience=self.audience
        )
        if is_any_told([each.fields for each in events], written, seen=seen):
            raise EventsChangedError
        times = await self._times([self._last_line(each).id for each in events])
        new = [self._event(each, times.get(self._last_line(each).id)) for each in events]
        try:
            rows = await writing.add_events(self.session, self.sealer, self.chronicle_id, new)
        except ChronicleFullError as error:
            self.refused.append(Refused(tool="chronicle_event_tool", reason=error.detail))
            return
        self.effects.extend(
            effect_on(row, "event_created", title=each.fields.summary, because=each.because)
            for row, each in zip(rows, events, strict=True)
        )
        self.changed["event", self.chronicle_id].update(row.id for row in rows)

    async def _times(self, message_ids: Collection[UUID]) -> Mapping[UUID, StoryTime]:
        """Return the story's time at messages, with the changes of this transaction."""
        return await self.clock.find_times(
            self.session, self.sealer, message_ids, is_committed=False
        )

    def _last_line(self, event: DraftedEvent) -> Message:
        return self.messages[event.positions[-1]]

    def _event(self, event: DraftedEvent, at: StoryTime | None) -> writing.NewEvent:
        sources = [
            SourceMessage(id=message.id, chat_id=message.chat_id, position=message.position)
            for message in (self.messages[position] for position in event.positions)
        ]
        return writing.NewEvent(
            fields=stamp_time(event.fields, at),
            significance=event.significance,
            source="campaign",
            happened_at=self._last_line(event).created_at,
            place=writing.first_place(sources),
            sources=sources,
            run_id=self.run_id,
            audience=self.audience,
        )


def _read_time(sealer: Sealer, row: ChronicleEvent) -> StoryTime | None:
    fields = open_event(sealer, row)
    return None if fields.day is None else StoryTime(fields.day, fields.time)
