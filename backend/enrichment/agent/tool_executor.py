"""Carrying out what the agent calls: nothing is written yet, only proposed, checked and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec

from backend.chronicles.events import MAX_SOURCES, EventFields
from backend.chronicles.reading import SourceMessage, StoryEvent
from backend.database.base import new_id
from backend.enrichment.agent.checks import (
    RefusedCallError,
    content_of,
    keys_of,
    mark_of,
    pinned,
    said_of,
    words_of,
)
from backend.enrichment.agent.duplicates import DuplicateCheck
from backend.enrichment.agent.knowledge_lookup import KnowledgeLookup, KnownEntry
from backend.enrichment.agent.references import References, line_mark
from backend.enrichment.agent.tools import (
    KNOWLEDGE,
    Call,
    CreateChronicleEvent,
    CreateLorebookEntry,
    Finish,
    InvalidCallError,
    SearchKnowledgeBase,
    UpdateChronicleEvent,
    UpdateLorebookEntry,
    read_call,
)
from backend.enrichment.cleaning import one_line
from backend.enrichment.detail import Refused
from backend.enrichment.story import StoryLine, TranscriptSlice
from backend.enrichment.study import Proposal, ProposedChange, ProposedEntry, ProposedEvent
from backend.generation.model import ModelMalformedAnswerError, ToolCall
from backend.lorebooks.entries import LoreEntry

MAX_ENTRY = 6_000
"""Characters of an entry that grows by what is added to it."""


def mended_event(
    event: StoryEvent | ProposedEvent, call: UpdateChronicleEvent, *, source: SourceMessage
) -> ProposedEvent:
    """An event that says it better and takes the place of the one that is there.

    That one stands behind it: should `source`, the last of the new lines, be swiped away, it is as
    it was. What this run proposed itself is proposed differently. Raises `RefusedCallError`.
    """
    if isinstance(event, StoryEvent) and event.is_pinned:
        raise pinned(call.event)
    if isinstance(event, StoryEvent) and event.is_users:
        raise RefusedCallError(
            f"{call.event} is the user's own: it is not changed. If it is no longer true, create "
            "an event that supersedes it."
        )
    changes: dict[str, Any] = {
        "summary": None if call.summary is None else said_of(call.summary, "summary"),
        "kind": call.kind,
        "day": call.story_day,
        "time": None if call.story_time is None else one_line(call.story_time),
        "where": None if call.where is None else one_line(call.where),
        "who": None if call.who is None else words_of(call.who),
        "keywords": None if call.keywords is None else words_of(call.keywords),
    }
    named = {name: value for name, value in changes.items() if value is not None}
    fields = msgspec.structs.replace(event.fields, **named)
    significance = call.significance or event.significance
    if fields == event.fields and significance == event.significance:
        raise RefusedCallError(f"{call.event} says that already.")
    is_stored = isinstance(event, StoryEvent)
    return ProposedEvent(
        id=new_id() if is_stored else event.id,
        fields=fields,
        significance=significance,
        sources=[*event.sources, source][-MAX_SOURCES:] if is_stored else event.sources,
        happened_at=event.happened_at,
        place=event.place,
        supersedes=event.id if isinstance(event, StoryEvent) else event.supersedes,
        mends=event.revision if isinstance(event, StoryEvent) else event.mends,
        because=one_line(call.because),
    )


def mended_entry(
    known: KnownEntry | ProposedEntry, call: UpdateLorebookEntry
) -> ProposedChange | ProposedEntry:
    """An entry said anew, or with something added. Raises `RefusedCallError`."""
    if (call.content is None) == (call.append is None):
        raise RefusedCallError("Give either content or append.")
    if call.content is not None:
        content = content_of(call.content)
    else:
        content = f"{known.entry.content.rstrip()}\n{content_of(call.append or '')}"
    if len(content) > max(MAX_ENTRY, len(known.entry.content)):
        raise RefusedCallError("The entry would be too long. Say it anew, in fewer words.")
    entry: LoreEntry = msgspec.structs.replace(known.entry, content=content)
    because = one_line(call.because)
    if isinstance(known, ProposedEntry):
        return ProposedEntry(id=known.id, entry=entry, because=because)
    return ProposedChange(
        id=known.id, book_id=known.book_id, revision=known.revision, entry=entry, because=because
    )


MAX_CALLS = 24
"""Calls in one answer of the model's; the rest are not carried out."""

MAX_LOOKS = 12
"""Searches of one run."""

MAX_REFUSED = 50
"""Refusals of one run that are kept."""

MAX_REASON = 1_000
"""Characters of what the model is told about a refusal."""


class ToolExecutor:
    """One run's desk: what was shown, what is proposed, what was refused.

    Args:
        stretch: What is read.
        looker: Looks into memory.
        duplicates: Refuses what is told already.
        marked: What the model was shown so far.
        most_writes: How much may be proposed.
    """

    def __init__(
        self,
        stretch: TranscriptSlice,
        *,
        looker: KnowledgeLookup,
        duplicates: DuplicateCheck,
        marked: References,
        most_writes: int,
    ) -> None:
        self._stretch = stretch
        self._looker = looker
        self._duplicates = duplicates
        self._marked = marked
        self._most_writes = most_writes
        self._writes = 0
        self._looks = 0
        self._proposals: dict[UUID, Proposal] = {}
        self.refused: list[Refused] = []
        self.is_finished = False

    @property
    def proposals(self) -> list[Proposal]:
        """What is to be written, in the order in which it was proposed."""
        return list(self._proposals.values())

    async def answer(self, calls: Sequence[ToolCall]) -> list[Any]:
        """Carry out the calls of one answer, in order; what each is answered with."""
        return [await self._answer(call, place) for place, call in enumerate(calls)]

    async def _answer(self, call: ToolCall, place: int) -> dict[str, Any]:
        if place >= MAX_CALLS:
            return self._refuse(call.name, RefusedCallError(f"Only {MAX_CALLS} calls at once."))
        try:
            return await self._carry_out(read_call(call.name, call.arguments))
        except InvalidCallError as error:
            return self._refuse(call.name, RefusedCallError(str(error)))
        except RefusedCallError as error:
            return self._refuse(call.name, error)

    def refuse_unread(self, error: ModelMalformedAnswerError) -> None:
        """Note an answer of which no call can be read."""
        self._refuse("", RefusedCallError(error.detail))

    def _refuse(self, tool: str, error: RefusedCallError) -> dict[str, Any]:
        name, reason = one_line(tool)[:60], one_line(error.reason)[:MAX_REASON]
        if len(self.refused) < MAX_REFUSED:
            self.refused.append(Refused(tool=name, reason=reason, duplicate_of=error.duplicate_of))
        return {"error": reason}

    async def _carry_out(self, call: Call) -> dict[str, Any]:
        match call:
            case SearchKnowledgeBase():
                return await self._search(call)
            case CreateChronicleEvent():
                return await self._create_event(call)
            case UpdateChronicleEvent():
                return await self._update_event(call)
            case CreateLorebookEntry():
                return await self._create_entry(call)
            case UpdateLorebookEntry():
                return self._update_entry(call)
            case Finish():
                self.is_finished = True
                return {"done": True}

    async def _search(self, call: SearchKnowledgeBase) -> dict[str, Any]:
        self._looks += 1
        if self._looks > MAX_LOOKS:
            raise RefusedCallError("No more searches in this run. Write what you are sure of.")
        found = await self._looker.look(
            one_line(call.query), limit=call.limit, sources=call.sources or KNOWLEDGE
        )
        marked = self._marked
        return {
            "events": [marked.event(each) for each in found.events.values()],
            "lore": [
                marked.entry(each, may_edit=self._may_edit(each)) for each in found.entries.values()
            ],
            "messages": [marked.message(each) for each in found.messages.values()],
        }

    async def _create_event(self, call: CreateChronicleEvent) -> dict[str, Any]:
        self._check_room()
        fields = EventFields(
            summary=said_of(call.summary, "summary"),
            kind=call.kind,
            day=call.story_day,
            time=one_line(call.story_time),
            where=one_line(call.where),
            who=words_of(call.who),
            keywords=words_of(call.keywords),
        )
        before = self._event(call.supersedes) if call.supersedes.strip() else None
        if isinstance(before, StoryEvent) and before.is_pinned:
            raise pinned(call.supersedes)
        lines = self._sources(call.source_messages)
        await self._duplicates.check_new(
            fields,
            proposed=self._proposed_events(),
            besides=before,
            apart={self._event(mark).id for mark in call.differs_from if mark.strip()},
        )
        return self._propose(
            ProposedEvent(
                id=new_id(),
                fields=fields,
                significance=call.significance,
                sources=[self._source(line) for line in lines],
                happened_at=lines[-1].said_at,
                place=lines[0].position,
                supersedes=before.id if before is not None else None,
            )
        )

    async def _update_event(self, call: UpdateChronicleEvent) -> dict[str, Any]:
        self._check_room()
        event = self._event(call.event)
        mended = mended_event(event, call, source=self._source(self._stretch.lines[-1]))
        await self._duplicates.check_changed(
            mended.fields, proposed=self._proposed_events(), besides=event
        )
        return self._propose(mended)

    async def _create_entry(self, call: CreateLorebookEntry) -> dict[str, Any]:
        self._check_room()
        title = said_of(call.title, "title")
        entry = LoreEntry(title=title, content=content_of(call.content), keys=keys_of(call.keys))
        for known in [*self._marked.entries.things, *await self._looker.lore()]:
            if known.entry.title.strip().casefold() == title.casefold():
                mark = self._marked.entries.show(known)
                raise RefusedCallError(
                    f"There is an entry of that title, {mark}: {one_line(known.entry.content)}",
                    duplicate_of=known.id,
                )
        return self._propose(
            ProposedEntry(id=new_id(), entry=entry, because=one_line(call.because))
        )

    def _update_entry(self, call: UpdateLorebookEntry) -> dict[str, Any]:
        self._check_room()
        known = self._marked.entries.get(call.entry)
        if known is None:
            raise RefusedCallError(f"{mark_of(call.entry)} is no entry that you were shown.")
        if isinstance(known, KnownEntry) and not self._may_edit(known):
            raise RefusedCallError(f"{call.entry} is the user's own: it is not changed.")
        mended = mended_entry(known, call)
        if isinstance(known, KnownEntry):
            content = mended.entry.content
            self._marked.entries.put(replace(known, entry=mended.entry, text=content))
        return self._propose(mended)

    def _propose(self, proposal: Proposal) -> dict[str, Any]:
        self._writes += 1
        self._proposals[proposal.id] = proposal
        if isinstance(proposal, ProposedEvent):
            return {"written": self._marked.events.put(proposal)}
        if isinstance(proposal, ProposedEntry):
            return {"written": self._marked.entries.put(proposal)}
        return {"written": self._marked.entries.of(proposal.id)}

    def _check_room(self) -> None:
        if self._writes >= self._most_writes:
            raise RefusedCallError(
                f"{self._most_writes} writes is all there is in one run. Call finish."
            )

    def _event(self, mark: str) -> StoryEvent | ProposedEvent:
        event = self._marked.events.get(mark)
        if event is None:
            raise RefusedCallError(f"{mark_of(mark)} is no event that you were shown.")
        if event.id in self._superseded():
            raise RefusedCallError(f"{mark_of(mark)} was superseded in this run already.")
        return event

    def _superseded(self) -> set[UUID]:
        return {each.supersedes for each in self._proposed_events() if each.supersedes is not None}

    def _proposed_events(self) -> list[ProposedEvent]:
        return [each for each in self._proposals.values() if isinstance(each, ProposedEvent)]

    def _sources(self, marks: Sequence[str]) -> list[StoryLine]:
        """New lines by their marks, in order; the last one where none is named."""
        lines: dict[UUID, StoryLine] = {}
        for mark in map(line_mark, marks):
            line = self._marked.lines.get(mark)
            if line is None:
                news = self._stretch.lines
                raise RefusedCallError(
                    f"{mark} is not among the new lines: they go from #{news[0].position + 1} "
                    f"to #{news[-1].position + 1}. Only what happens in them is written down."
                )
            lines[line.id] = line
        return sorted(lines.values(), key=lambda line: line.position) or [self._stretch.lines[-1]]

    def _source(self, line: StoryLine) -> SourceMessage:
        return SourceMessage(id=line.id, chat_id=self._stretch.chat_id, position=line.position)

    def _may_edit(self, entry: KnownEntry) -> bool:
        return entry.is_own or bool(self._stretch.settings.may_edit_lore)
