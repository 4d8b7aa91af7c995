"""Writes the changes and events of a compaction. Functions here never commit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from msgspec import structs
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.errors import CampaignFullError
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import Change, exists
from backend.campaigns.ledger.item_service import check_item_room
from backend.campaigns.ledger.records import get_item_name, list_references, load_states
from backend.campaigns.models import Campaign
from backend.campaigns.proposals.authority import Draft, judge_drafts
from backend.campaigns.proposals.store import store_proposals
from backend.campaigns.state.listeners import Listeners
from backend.campaigns.state.story_clock import StoryClock, StoryTime
from backend.chats.models import Chat, Message
from backend.chronicles import event_writer as writing
from backend.chronicles.errors import ChronicleFullError
from backend.chronicles.events import render_event
from backend.chronicles.models import ChronicleEvent, EventSource
from backend.chronicles.repository import (
    SourceMessage,
    StoryEvent,
    current_events,
    open_event,
    read_message_events,
    seal_event,
)
from backend.core.audience import AudienceMarks
from backend.database.engine import Database
from backend.enrichment.agent.duplicates import MAX_QUESTIONS, DuplicateFinder, is_any_known
from backend.enrichment.agent.lookup import MAX_LATEST_EVENTS
from backend.enrichment.agent.proposals import Marks, quote_mark
from backend.enrichment.cleaning import clip, to_one_line
from backend.enrichment.compaction.tools import EVENT_TOOL, DraftEvent, DraftItem
from backend.enrichment.pipeline import EventsChangedError
from backend.enrichment.runs.effects import Changed, build_effect, stamp_time
from backend.enrichment.runs.store import RefusedCall, RunEffect
from backend.vault.sealing import Sealer

MAX_EVENT = 300
"""Maximum characters of an event in a prompt."""


class KnownEvents:
    """The latest events of a chronicle, and the recorded events of the unread messages.

    Args:
        listeners: The viewpoints of all who heard the messages.
        marks: Labels for the audience of an event.
    """

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        finder: DuplicateFinder,
        chronicle_id: UUID,
        message_ids: Collection[UUID],
        *,
        listeners: Listeners,
        marks: AudienceMarks,
    ) -> None:
        self.seen: set[UUID] = set()
        self._database = database
        self._sealer = sealer
        self._finder = finder
        self._chronicle_id = chronicle_id
        self._message_ids = message_ids
        self._listeners = listeners
        self._who_knows = marks
        self._marks: Marks[StoryEvent | DraftEvent] = Marks("H")

    async def show(self, *, most: int) -> list[str]:
        """Render the latest events as lines with their references."""
        events = (await self._read())[-most:]
        return [f"{self._marks.show(event)}: {self._render(event)}" for event in events]

    async def check(self, new: DraftEvent, drafts: Sequence[DraftEvent]) -> RefusedCall | None:
        """Return a refusal if an event repeats or may repeat another one.

        If it may, the model is asked, unless its call says that the events differ.

        Args:
            new: The event.
            drafts: Earlier events of the run.
        """
        events: list[StoryEvent | DraftEvent] = [*await self._read(), *drafts]
        known = {event.id: event for event in events}
        self.seen.update(known)
        near = await self._finder.nearest(new.fields, list(known.values()))
        if (same := next((each.event for each in near if each.is_same), None)) is not None:
            reason = f"duplicate of {self._marks.show(same)}: {self._summarize(same)}"
            return RefusedCall(tool=EVENT_TOOL, reason=reason, duplicate_of=same.id)
        apart: set[UUID] = set()
        for mark in new.differs_from:
            if (found := self._marks.get(mark)) is None:
                reason = f"{quote_mark(mark)} is not an event that you were shown."
                return RefusedCall(tool=EVENT_TOOL, reason=reason)
            apart.add(found.id)
        asked = [each.event for each in near if each.may_be_same()][:MAX_QUESTIONS]
        asked = [event for event in asked if event.id not in apart]
        if not asked:
            return None
        marks = ", ".join(self._marks.show(event) for event in asked)
        shown = " ".join(f"{self._marks.show(event)}: {self._summarize(event)}" for event in asked)
        return RefusedCall(
            tool=EVENT_TOOL,
            reason=f"{marks} may say the same. {shown} If so, leave it. If yours is another event, "
            f"call again with add.differs_from: {marks}.",
            duplicate_of=asked[0].id,
        )

    async def _read(self) -> list[StoryEvent]:
        async with self._database.read() as session:
            latest = await current_events(
                session,
                self._sealer,
                self._chronicle_id,
                limit=MAX_LATEST_EVENTS,
                viewpoint=self._listeners,
            )
            own = await read_message_events(
                session,
                self._sealer,
                self._chronicle_id,
                self._message_ids,
                viewpoint=self._listeners,
            )
        found = {event.id: event for event in [*latest, *own]}
        return sorted(found.values(), key=lambda each: (each.happened_at, each.place, each.id))

    def _summarize(self, event: StoryEvent | DraftEvent) -> str:
        text = event.fields.summary
        if isinstance(event, StoryEvent):
            text = self._who_knows.mark(text, event.audience)
        return clip(to_one_line(text), MAX_EVENT)

    def _render(self, event: StoryEvent) -> str:
        text = self._who_knows.mark(render_event(event.fields), event.audience)
        return clip(to_one_line(text), MAX_EVENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionWriter:
    """Writes in the caller's transaction, which has locked the campaign.

    Attributes:
        messages: The messages by position.
        audience: Their audience, in the form of the database column.
        effects: The written changes.
        refused: The refused changes.
    """

    session: AsyncSession
    sealer: Sealer
    campaign: Campaign
    messages: Mapping[int, Message]
    audience: str
    effects: list[RunEffect] = field(default_factory=list[RunEffect])
    refused: list[RefusedCall] = field(default_factory=list[RefusedCall])

    async def change(self, chat: Chat, drafts: Sequence[DraftItem], *, since: datetime) -> None:
        """Write allowed changes as one version, and propose the others to the user.

        The version is raised even without changes, because the read marks refer to it.
        """
        session, sealer, campaign = self.session, self.sealer, self.campaign
        verdict = await judge_drafts(
            session, sealer, campaign, [self._build_draft(each) for each in drafts], since=since
        )
        kept = await store_proposals(session, sealer, campaign, chat, verdict.proposals)
        if left := len(verdict.proposals) - kept:
            reason = f"{left} were proposed before, or too many wait already."
            self.refused.append(RefusedCall(tool="proposal", reason=reason))
        wanted = await self._limit_to_room(verdict.drafts)
        if not wanted:
            campaign.version += 1
            return
        changes = [
            Change(each.kind, each.item_id, structs.replace(each.operations, because=each.because))
            for each in wanted
        ]
        change_ids = await ledger_store.append_changes(
            session,
            sealer,
            campaign,
            changes,
            actor="compactor",
            sources=[draft.message for draft in wanted],
        )
        states = await load_states(session, sealer, campaign, {each.item_id for each in wanted})
        self.effects.extend(
            RunEffect(
                what="item_changed",
                id=change_id,
                container_id=campaign.id,
                title=get_item_name(draft.kind, states[draft.item_id]),
                because=draft.because,
            )
            for change_id, draft in zip(change_ids, wanted, strict=True)
        )

    async def _limit_to_room(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Return the drafts; if the campaign is full, only those that change existing items."""
        made = {draft.item_id for draft in drafts if exists(draft.operations.set)}
        try:
            await check_item_room(self.session, self.campaign.id, more=len(made))
        except CampaignFullError as error:
            self.refused.append(RefusedCall(tool="", reason=error.detail))
            return [
                each
                for each in drafts
                if not made.intersection((each.item_id, *list_references(each.operations)))
            ]
        return drafts

    def _build_draft(self, draft: DraftItem) -> Draft:
        return Draft(
            kind=draft.kind,
            item_id=draft.item_id,
            operations=draft.operations,
            message=self.messages[draft.position],
            because=draft.because,
            audience=self.audience,
            replaces=draft.replaces,
            unclear=draft.unclear,
        )


class TimedEvent(NamedTuple):
    """An event with the story's time at its last message, and that message."""

    row: ChronicleEvent
    message_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ChronicleWriter:
    """Writes events in the caller's transaction.

    Attributes:
        messages: The messages by position.
        audience: Their audience, in the form of the database column.
        effects: The written events.
        refused: The refused events.
        changed: Ids of events to index, by container.
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
    refused: list[RefusedCall] = field(default_factory=list[RefusedCall])
    changed: Changed = field(default_factory=lambda: defaultdict(set))

    async def find_timed(self) -> Sequence[TimedEvent]:
        """Return the events since the first message whose time is the story's time there.

        Events with a time from a user or from the story itself are left out.
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
                EventSource.telling == 0,
                EventSource.position >= min(self.messages),
            )
            .order_by(EventSource.position)
        )
        told_by = dict((await self.session.execute(query)).all())
        times = await self._find_times(told_by.values())
        return [
            TimedEvent(row, message_id)
            for row, message_id in told_by.items()
            if (at := times.get(message_id)) is not None and at == _read_time(self.sealer, row)
        ]

    async def move(self, events: Sequence[TimedEvent]) -> None:
        """Update the time of events to the story's current knowledge.

        The agent reads each reply, a compaction reads several rounds. Only then is it known that a
        day had passed before the agent's last events.
        """
        times = await self._find_times([event.message_id for event in events])
        for row, message_id in events:
            at = times[message_id]
            if at == _read_time(self.sealer, row):
                continue
            before = await writing.snapshot(self.session, self.sealer, row)
            fields = structs.replace(open_event(self.sealer, row), day=at.day, time=at.time)
            row.sealed_event = seal_event(self.sealer, row.id, fields)
            writing.touch(row)
            effect = build_effect(
                row, "event_changed", title=fields.summary, because=at.label, before=before
            )
            self.effects.append(effect)
            self.changed["event", self.chronicle_id].add(row.id)

    async def add(self, events: Sequence[DraftEvent], *, seen: Collection[UUID]) -> None:
        """Write new events.

        Raises `EventsChangedError` if similar events were written that are not among `seen`.
        """
        if not events:
            return
        message_ids = [message.id for message in self.messages.values()]
        written = await read_message_events(
            self.session, self.sealer, self.chronicle_id, message_ids, audience=self.audience
        )
        if is_any_known([each.fields for each in events], written, seen=seen):
            raise EventsChangedError
        times = await self._find_times([self._get_last_line(each).id for each in events])
        new = [self._build_event(each, times.get(self._get_last_line(each).id)) for each in events]
        try:
            rows = await writing.add_events(self.session, self.sealer, self.chronicle_id, new)
        except ChronicleFullError as error:
            self.refused.append(RefusedCall(tool=EVENT_TOOL, reason=error.detail))
            return
        self.effects.extend(
            build_effect(row, "event_created", title=each.fields.summary, because=each.because)
            for row, each in zip(rows, events, strict=True)
        )
        self.changed["event", self.chronicle_id].update(row.id for row in rows)

    async def _find_times(self, message_ids: Collection[UUID]) -> Mapping[UUID, StoryTime]:
        """Return the story's time at messages, including the changes of this transaction."""
        return await self.clock.find_times(
            self.session, self.sealer, message_ids, is_committed=False
        )

    def _get_last_line(self, event: DraftEvent) -> Message:
        return self.messages[event.positions[-1]]

    def _build_event(self, event: DraftEvent, at: StoryTime | None) -> writing.NewEvent:
        sources = [
            SourceMessage(id=message.id, chat_id=message.chat_id, position=message.position)
            for message in (self.messages[position] for position in event.positions)
        ]
        return writing.NewEvent(
            fields=stamp_time(event.fields, at),
            significance=event.significance,
            source="campaign",
            happened_at=self._get_last_line(event).created_at,
            place=writing.first_place(sources),
            sources=sources,
            run_id=self.run_id,
            audience=self.audience,
        )


def _read_time(sealer: Sealer, row: ChronicleEvent) -> StoryTime | None:
    fields = open_event(sealer, row)
    return None if fields.day is None else StoryTime(fields.day, fields.time)
