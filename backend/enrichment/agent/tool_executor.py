"""Carrying out what the agent calls: nothing is written yet, only proposed, checked and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from backend.chronicles.events import EventFields
from backend.chronicles.repository import SourceMessage, StoryEvent
from backend.database.base import new_id
from backend.enrichment.agent.duplicates import DuplicateCheck
from backend.enrichment.agent.lookup import KnowledgeLookup, KnownEntry
from backend.enrichment.agent.proposals import (
    MARK,
    Proposal,
    ProposedEntry,
    ProposedEvent,
    RefusedCallError,
    ShownReferences,
    apply_to_entry,
    apply_to_event,
    normalize_line_mark,
    quote_mark,
    read_content,
    read_keys,
    read_text,
    read_words,
    refuse_pinned,
)
from backend.enrichment.agent.tools import (
    KNOWLEDGE,
    AgentCall,
    CreateChronicleEvent,
    CreateLorebookEntry,
    FinishStudy,
    SearchKnowledgeBase,
    UpdateChronicleEvent,
    UpdateLorebookEntry,
    read_call,
)
from backend.enrichment.cleaning import to_one_line
from backend.enrichment.runs.store import RefusedCall
from backend.enrichment.story import StoryLine, TranscriptSlice
from backend.generation.model import ModelMalformedAnswerError, ToolCall
from backend.generation.tools.arguments import InvalidCallError
from backend.lorebooks.entries import LoreEntry

MAX_CALLS = 24
"""Calls in one answer of the model's; the rest are not carried out."""

MAX_SEARCHES = 12
"""Searches of one run."""

MAX_REFUSED = 50
"""Refusals of one run that are kept."""

MAX_REASON = 1_000
"""Characters of what the model is told about a refusal."""


@dataclass(slots=True, kw_only=True)
class ToolExecutor:
    """Carries out one run's calls: what is proposed, `most_writes` at most, and what is refused."""

    stretch: TranscriptSlice
    lookup: KnowledgeLookup
    duplicates: DuplicateCheck
    references: ShownReferences
    most_writes: int
    refused: list[RefusedCall] = field(default_factory=list[RefusedCall], init=False)
    is_finished: bool = field(default=False, init=False)
    _writes: int = field(default=0, init=False)
    _looks: int = field(default=0, init=False)
    _proposals: dict[UUID, Proposal] = field(default_factory=dict[UUID, Proposal], init=False)

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
        name, reason = to_one_line(tool)[:60], to_one_line(error.reason)[:MAX_REASON]
        if len(self.refused) < MAX_REFUSED:
            self.refused.append(
                RefusedCall(tool=name, reason=reason, duplicate_of=error.duplicate_of)
            )
        return {"error": reason}

    async def _carry_out(self, call: AgentCall) -> dict[str, Any]:
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
            case FinishStudy():
                self.is_finished = True
                return {"done": True}

    async def _search(self, call: SearchKnowledgeBase) -> dict[str, Any]:
        self._looks += 1
        if self._looks > MAX_SEARCHES:
            raise RefusedCallError("No more searches in this run. Write what you are sure of.")
        found = await self.lookup.look(
            to_one_line(call.query), limit=call.limit, sources=call.sources or KNOWLEDGE
        )
        references = self.references
        return {
            "events": [references.event(each) for each in found.events.values()],
            "lore": [references.entry(each) for each in found.entries.values()],
            "messages": [references.message(each) for each in found.messages.values()],
        }

    async def _create_event(self, call: CreateChronicleEvent) -> dict[str, Any]:
        self._check_room()
        fields = EventFields(
            summary=read_text(call.summary, "summary"),
            kind=call.kind,
            day=call.story_day,
            time=to_one_line(call.story_time),
            where=to_one_line(call.where),
            who=read_words(call.who),
            keywords=read_words(call.keywords),
        )
        self._check_names(fields.who)
        before = self._event(call.supersedes) if call.supersedes.strip() else None
        if isinstance(before, StoryEvent) and before.is_pinned:
            raise refuse_pinned(call.supersedes)
        lines = self._sources(call.source_messages)
        await self.duplicates.check_new(
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
        mended = apply_to_event(event, call, source=self._source(self.stretch.lines[-1]))
        self._check_names(mended.fields.who)
        await self.duplicates.check_changed(
            mended.fields, proposed=self._proposed_events(), besides=event
        )
        return self._propose(mended)

    async def _create_entry(self, call: CreateLorebookEntry) -> dict[str, Any]:
        self._check_room()
        title = read_text(call.title, "title")
        self._check_names([title])
        entry = LoreEntry(
            title=title, content=read_content(call.content), keys=read_keys(call.keys)
        )
        for known in [*self.references.entries.things, *await self.lookup.lore()]:
            if known.entry.title.strip().casefold() == title.casefold():
                mark = self.references.entries.show(known)
                raise RefusedCallError(
                    f"There is an entry of that title, {mark}: {to_one_line(known.entry.content)}",
                    duplicate_of=known.id,
                )
        return self._propose(
            ProposedEntry(id=new_id(), entry=entry, because=to_one_line(call.because))
        )

    def _update_entry(self, call: UpdateLorebookEntry) -> dict[str, Any]:
        self._check_room()
        known = self.references.entries.get(call.entry)
        if known is None:
            raise RefusedCallError(f"{quote_mark(call.entry)} is no entry that you were shown.")
        if isinstance(known, KnownEntry) and not known.may_edit:
            raise RefusedCallError(f"{call.entry} is the user's own: it is not changed.")
        mended = apply_to_entry(known, call)
        if isinstance(known, KnownEntry):
            content = mended.entry.content
            self.references.entries.put(replace(known, entry=mended.entry, text=content))
        return self._propose(mended)

    def _propose(self, proposal: Proposal) -> dict[str, Any]:
        self._writes += 1
        self._proposals[proposal.id] = proposal
        if isinstance(proposal, ProposedEvent):
            return {"written": self.references.events.put(proposal)}
        if isinstance(proposal, ProposedEntry):
            return {"written": self.references.entries.put(proposal)}
        return {"written": self.references.entries.of(proposal.id)}

    def _check_room(self) -> None:
        if self._writes >= self.most_writes:
            raise RefusedCallError(
                f"{self.most_writes} writes is all there is in one run. Call finish."
            )

    def _check_names(self, names: Sequence[str]) -> None:
        """Raise `RefusedCallError` for a mark instead of a name, unless a line contains it."""
        for name in names:
            is_told = any(name in line.text for line in self.stretch.lines)
            if MARK.fullmatch(name) and not is_told:
                raise RefusedCallError(f"{quote_mark(name)} is a mark. Give the name.")

    def _event(self, mark: str) -> StoryEvent | ProposedEvent:
        event = self.references.events.get(mark)
        if event is None:
            raise RefusedCallError(f"{quote_mark(mark)} is no event that you were shown.")
        if event.id in self._superseded():
            raise RefusedCallError(f"{quote_mark(mark)} was superseded in this run already.")
        return event

    def _superseded(self) -> set[UUID]:
        return {each.supersedes for each in self._proposed_events() if each.supersedes is not None}

    def _proposed_events(self) -> list[ProposedEvent]:
        return [each for each in self._proposals.values() if isinstance(each, ProposedEvent)]

    def _sources(self, marks: Sequence[str]) -> list[StoryLine]:
        """New lines by their marks, in order; the last one where none is named."""
        lines: dict[UUID, StoryLine] = {}
        for mark in map(normalize_line_mark, marks):
            line = self.references.lines.get(mark)
            if line is None:
                news = self.stretch.lines
                raise RefusedCallError(
                    f"{mark} is not among the new lines: they go from #{news[0].position + 1} "
                    f"to #{news[-1].position + 1}. Only what happens in them is written down."
                )
            lines[line.id] = line
        return sorted(lines.values(), key=lambda line: line.position) or [self.stretch.lines[-1]]

    def _source(self, line: StoryLine) -> SourceMessage:
        return SourceMessage(id=line.id, chat_id=self.stretch.chat_id, position=line.position)
