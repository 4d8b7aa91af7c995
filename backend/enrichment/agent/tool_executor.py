"""Executes the tool calls of the agent: validates and counts proposals, without writing them."""

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
from backend.generation.tools.calls import InvalidCallError
from backend.lorebooks.entries import LoreEntry

MAX_CALLS = 24
"""Maximum calls in one answer. The others are refused."""

MAX_SEARCHES = 12
"""Maximum searches of one run."""

MAX_REFUSED = 50
"""Maximum refusals of one run that are stored."""

MAX_REASON = 1_000
"""Maximum characters of the reason of a refusal."""


@dataclass(slots=True, kw_only=True)
class ToolExecutor:
    """Executes the calls of one run, with at most `most_writes` proposals."""

    stretch: TranscriptSlice
    lookup: KnowledgeLookup
    duplicates: DuplicateCheck
    references: ShownReferences
    most_writes: int
    refused: list[RefusedCall] = field(default_factory=list[RefusedCall], init=False)
    is_finished: bool = field(default=False, init=False)
    _writes: int = field(default=0, init=False)
    _searches: int = field(default=0, init=False)
    _proposals: dict[UUID, Proposal] = field(default_factory=dict[UUID, Proposal], init=False)

    @property
    def proposals(self) -> list[Proposal]:
        """The proposals in the order of the calls."""
        return list(self._proposals.values())

    async def execute(self, calls: Sequence[ToolCall]) -> list[Any]:
        """Execute the calls of one answer in order, and return a result for each."""
        return [await self._execute(call, place) for place, call in enumerate(calls)]

    async def _execute(self, call: ToolCall, place: int) -> dict[str, Any]:
        if place >= MAX_CALLS:
            return self._refuse(call.name, RefusedCallError(f"Only {MAX_CALLS} calls at once."))
        try:
            return await self._dispatch(read_call(call.name, call.arguments))
        except InvalidCallError as error:
            return self._refuse(call.name, RefusedCallError(str(error)))
        except RefusedCallError as error:
            return self._refuse(call.name, error)

    def refuse_unread(self, error: ModelMalformedAnswerError) -> None:
        """Record that an answer could not be parsed."""
        self._refuse("", RefusedCallError(error.detail))

    def _refuse(self, tool: str, error: RefusedCallError) -> dict[str, Any]:
        name, reason = to_one_line(tool)[:60], to_one_line(error.reason)[:MAX_REASON]
        if len(self.refused) < MAX_REFUSED:
            self.refused.append(
                RefusedCall(tool=name, reason=reason, duplicate_of=error.duplicate_of)
            )
        return {"error": reason}

    async def _dispatch(self, call: AgentCall) -> dict[str, Any]:
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
        self._searches += 1
        if self._searches > MAX_SEARCHES:
            raise RefusedCallError("No more searches in this run. Write what you are sure of.")
        found = await self.lookup.find(
            to_one_line(call.query), limit=call.limit, sources=call.sources or KNOWLEDGE
        )
        references = self.references
        return {
            "events": [references.render_event(each) for each in found.events.values()],
            "lore": [references.render_entry(each) for each in found.entries.values()],
            "messages": [references.render_message(each) for each in found.messages.values()],
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
        before = self._get_event(call.supersedes) if call.supersedes.strip() else None
        if isinstance(before, StoryEvent) and before.is_pinned:
            raise refuse_pinned(call.supersedes)
        lines = self._read_sources(call.source_messages)
        await self.duplicates.check_new(
            fields,
            proposed=self._list_proposed_events(),
            besides=before,
            apart={self._get_event(mark).id for mark in call.differs_from if mark.strip()},
        )
        return self._propose(
            ProposedEvent(
                id=new_id(),
                fields=fields,
                significance=call.significance,
                sources=[self._build_source(line) for line in lines],
                happened_at=lines[-1].said_at,
                place=lines[0].position,
                supersedes=before.id if before is not None else None,
            )
        )

    async def _update_event(self, call: UpdateChronicleEvent) -> dict[str, Any]:
        self._check_room()
        event = self._get_event(call.event)
        mended = apply_to_event(event, call, source=self._build_source(self.stretch.lines[-1]))
        self._check_names(mended.fields.who)
        await self.duplicates.check_changed(
            mended.fields, proposed=self._list_proposed_events(), besides=event
        )
        return self._propose(mended)

    async def _create_entry(self, call: CreateLorebookEntry) -> dict[str, Any]:
        self._check_room()
        title = read_text(call.title, "title")
        self._check_names([title])
        entry = LoreEntry(
            title=title, content=read_content(call.content), keys=read_keys(call.keys)
        )
        for known in [*self.references.entries.things, *await self.lookup.list_lore()]:
            if known.entry.title.strip().casefold() == title.casefold():
                mark = self.references.entries.show(known)
                raise RefusedCallError(
                    f"{mark} has the same title: {to_one_line(known.entry.content)}",
                    duplicate_of=known.id,
                )
        return self._propose(
            ProposedEntry(id=new_id(), entry=entry, because=to_one_line(call.because))
        )

    def _update_entry(self, call: UpdateLorebookEntry) -> dict[str, Any]:
        self._check_room()
        known = self.references.entries.get(call.entry)
        if known is None:
            raise RefusedCallError(f"{quote_mark(call.entry)} is not an entry that you were shown.")
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
        return {"written": self.references.entries.find_mark(proposal.id)}

    def _check_room(self) -> None:
        if self._writes >= self.most_writes:
            raise RefusedCallError(f"One run has at most {self.most_writes} writes. Call finish.")

    def _check_names(self, names: Sequence[str]) -> None:
        """Raise `RefusedCallError` if a name is a mark, unless a line contains it."""
        for name in names:
            is_told = any(name in line.text for line in self.stretch.lines)
            if MARK.fullmatch(name) and not is_told:
                raise RefusedCallError(f"{quote_mark(name)} is a mark. Give the name.")

    def _get_event(self, mark: str) -> StoryEvent | ProposedEvent:
        event = self.references.events.get(mark)
        if event is None:
            raise RefusedCallError(f"{quote_mark(mark)} is not an event that you were shown.")
        if event.id in self._list_superseded():
            raise RefusedCallError(f"{quote_mark(mark)} was already superseded in this run.")
        return event

    def _list_superseded(self) -> set[UUID]:
        return {
            each.supersedes for each in self._list_proposed_events() if each.supersedes is not None
        }

    def _list_proposed_events(self) -> list[ProposedEvent]:
        return [each for each in self._proposals.values() if isinstance(each, ProposedEvent)]

    def _read_sources(self, marks: Sequence[str]) -> list[StoryLine]:
        """Return the new lines with these marks in order; the last line without marks."""
        lines: dict[UUID, StoryLine] = {}
        for mark in map(normalize_line_mark, marks):
            line = self.references.lines.get(mark)
            if line is None:
                news = self.stretch.lines
                raise RefusedCallError(
                    f"{mark} is not among the new lines: they go from #{news[0].position + 1} "
                    f"to #{news[-1].position + 1}. Only events of these lines are recorded."
                )
            lines[line.id] = line
        return sorted(lines.values(), key=lambda line: line.position) or [self.stretch.lines[-1]]

    def _build_source(self, line: StoryLine) -> SourceMessage:
        return SourceMessage(id=line.id, chat_id=self.stretch.chat_id, position=line.position)
