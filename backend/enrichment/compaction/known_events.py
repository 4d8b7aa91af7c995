"""Events that a compaction's new ones are compared with, so that none is written twice.

The chronicle's agent reads the same messages, and often writes while the compaction's model reads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from backend.audience import GM, PUBLIC, AudienceMarks
from backend.chronicles.events import told
from backend.chronicles.reading import StoryEvent, current_events, read_events_from
from backend.database.engine import Database
from backend.enrichment.agent.duplicates import MAX_QUESTIONS, DuplicateFinder
from backend.enrichment.agent.knowledge_lookup import LATEST
from backend.enrichment.agent.proposals import mark_of
from backend.enrichment.agent.references import Marks
from backend.enrichment.cleaning import clipped, one_line
from backend.enrichment.compaction.values import DraftedEvent
from backend.enrichment.runs import Refused
from backend.vault.sealing import Sealer

MAX_EVENT = 300
"""Characters of an event that are shown."""

_TOOL = "chronicle_event_tool"


class KnownEvents:
    """The last events of a chronicle, and those of the messages that are read.

    Args:
        audience: That of the messages, as a column holds it.
        marks: Say who knows an event.
    """

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        finder: DuplicateFinder,
        chronicle_id: UUID,
        message_ids: Collection[UUID],
        *,
        audience: str,
        marks: AudienceMarks,
    ) -> None:
        self.seen: set[UUID] = set()
        self._database = database
        self._sealer = sealer
        self._finder = finder
        self._chronicle_id = chronicle_id
        self._message_ids = message_ids
        self._audience = audience
        self._who_knows = marks
        self._marks: Marks[StoryEvent | DraftedEvent] = Marks("H")

    async def show(self, *, most: int) -> list[str]:
        """Return the last events as lines that begin with their references."""
        events = (await self._read())[-most:]
        return [f"{self._marks.show(event)}: {self._render(event)}" for event in events]

    async def check(self, new: DraftedEvent, drafts: Sequence[DraftedEvent]) -> Refused | None:
        """Return why an event is not written: another one says the same, or may say the same.

        The model is asked about the latter, unless its call says that they differ.

        Args:
            new: The event.
            drafts: The run's events before it.
        """
        events: list[StoryEvent | DraftedEvent] = [*await self._read(), *drafts]
        known = {event.id: event for event in events}
        self.seen.update(known)
        near = await self._finder.nearest(new.fields, list(known.values()))
        if (same := next((each.event for each in near if each.is_same), None)) is not None:
            reason = f"duplicate of {self._marks.show(same)}: {self._summarize(same)}"
            return Refused(tool=_TOOL, reason=reason, duplicate_of=same.id)
        apart: set[UUID] = set()
        for mark in new.differs_from:
            if (found := self._marks.get(mark)) is None:
                reason = f"{mark_of(mark)} is no event that you were shown."
                return Refused(tool=_TOOL, reason=reason)
            apart.add(found.id)
        asked = [each.event for each in near if each.may_be_same()][:MAX_QUESTIONS]
        asked = [event for event in asked if event.id not in apart]
        if not asked:
            return None
        marks = ", ".join(self._marks.show(event) for event in asked)
        shown = " ".join(f"{self._marks.show(event)}: {self._summarize(event)}" for event in asked)
        return Refused(
            tool=_TOOL,
            reason=f"{marks} may say the same. {shown} If so, leave it. If yours is another event, "
            f"call again with add.differs_from: {marks}.",
            duplicate_of=asked[0].id,
        )

    async def _read(self) -> list[StoryEvent]:
        """Return the events as they are now, in story order."""
        async with self._database.read() as session:
            latest = await current_events(
                session,
                self._sealer,
                self._chronicle_id,
                limit=LATEST,
                viewpoint=GM if self._audience == GM else PUBLIC,
            )
            own = await read_events_from(
                session,
                self._sealer,
                self._chronicle_id,
                self._message_ids,
                audience=self._audience,
            )
        found = {event.id: event for event in [*latest, *own]}
        return sorted(found.values(), key=lambda each: (each.happened_at, each.place, each.id))

    def _summarize(self, event: StoryEvent | DraftedEvent) -> str:
        text = event.fields.summary
        if isinstance(event, StoryEvent):
            text = self._who_knows.mark(text, event.audience)
        return clipped(one_line(text), MAX_EVENT)

    def _render(self, event: StoryEvent) -> str:
        text = self._who_knows.mark(told(event.fields), event.audience)
        return clipped(one_line(text), MAX_EVENT)
