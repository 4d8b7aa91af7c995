"""The agent that keeps chronicles: a small question first, then a loop of calls, then proposals.

It writes nothing. What it read and what it would write is a `AgentResult`; `effects` writes it. No
database transaction is open while a model or an embedder is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.enrichment.agent.duplicates import DuplicateCheck, DuplicateFinder
from backend.enrichment.agent.lookup import KnowledgeLookup, LookupResult
from backend.enrichment.agent.proposals import AgentResult, ShownReferences, render_story_line
from backend.enrichment.agent.tool_executor import ToolExecutor
from backend.enrichment.agent.tools import (
    EVENT_KINDS,
    TOOLS,
    TRIAGE_SCHEMA,
    Triage,
    read_triage,
)
from backend.enrichment.cleaning import to_one_line
from backend.enrichment.reader import OUTPUT_TOKENS, Reader, RunBudget
from backend.enrichment.runs.store import RunDetail
from backend.enrichment.story import TranscriptSlice
from backend.generation.declined_answers import check_declined
from backend.generation.model import (
    ChatModel,
    ModelContextOverflowError,
    ModelDeclinedError,
    ModelEmptyReplyError,
    ModelMalformedAnswerError,
    ModelSpec,
    Prompt,
    PromptMessage,
    ToolAnswer,
    ToolRound,
)
from backend.generation.sampling import Sampling
from backend.generation.tools.arguments import InvalidCallError
from backend.generation.tools.streams import answer_with_tools
from backend.memory.indexing.points import DocumentEmbedder
from backend.memory.search.search import MemorySearch
from backend.prompts import PromptLibrary
from backend.settings import Settings
from backend.vault.sealing import Sealer

MOST_CALLS = 6
"""Calls of a model in one run, the first question among them."""

_MOST_SHOWN = 8
"""Events, entries and messages each that are shown as known; the last events as often again."""

_WINDOW_OF_ONE = 4_000
"""Tokens of the model's window for one of each: small models are shown less."""

_MAX_WHY = 500
EVENT_KIND_NAMES = ", ".join(EVENT_KINDS)
DEMO_NOTE = "Demo model: simple rules, no language model read this."
_SPENT = "It ended early: the tokens of one run were spent."
_TOO_LONG = "It ended early: the prompt had become too long for the model."


EmbedderOf = Callable[[Sealer], Awaitable[DocumentEmbedder | None]]
"""What compares a user's texts by meaning."""


@dataclass(frozen=True, slots=True)
class Agent:
    """Reads a stretch of a story and says what it would write down.

    It reads `database` alone. Without an embedder for its user, events are compared by their words.
    """

    prompts: PromptLibrary
    search: MemorySearch
    database: Database
    embedder_of: EmbedderOf
    settings: Settings
    pool: CpuPool

    async def study(
        self,
        reader: Reader,
        stretch: TranscriptSlice,
        *,
        budget: RunBudget,
    ) -> AgentResult:
        """Read a stretch. `budget` is filled in as it goes, also where it ends in an error.

        Raises `UnknownModelError`, and `ModelError` as it left the model.
        """
        model, small = reader.model, reader.triage_model
        notes = [DEMO_NOTE] if model.spec.provider == "demo" else []
        try:
            triage = await self._triage(small, stretch, budget, reader.sampling_of(small))
        finally:
            budget.note_triage(small.spec.id)
        executor = references = None
        if triage.significant:
            lookup = KnowledgeLookup(self.database, self.search, reader.sealer, stretch, self.pool)
            references = ShownReferences(stretch.lines, stretch.marks)
            latest = await lookup.latest()
            count = _shown_of_each(model.spec)
            near = await lookup.near(count=count)
            # What the new lines go on with, whatever the index says.
            near.events |= {event.id: event for event in latest[-count:]}
            embedder = await self.embedder_of(reader.sealer)
            executor = ToolExecutor(
                stretch=stretch,
                lookup=lookup,
                duplicates=DuplicateCheck(
                    DuplicateFinder(reader.sealer, embedder, self.pool),
                    lookup,
                    references,
                    latest,
                ),
                references=references,
                most_writes=self.settings.enrichment_max_writes,
            )
            opening = self._opening(stretch, references, near)
            # Each event or entry that it writes is a call of about 250 tokens in one answer.
            room = max(OUTPUT_TOKENS, 256 * self.settings.enrichment_max_writes)
            sampling = reader.sampling_of(model, room)
            notes += await self._loop(model, executor, opening, budget, sampling)
        return AgentResult(
            detail=RunDetail(
                why=to_one_line(triage.why)[:_MAX_WHY],
                significant=triage.significant,
                kinds=list(triage.kinds),
                message_ids=[line.id for line in stretch.lines],
                memory_ids=references.memory_ids if references else [],
                refused=executor.refused if executor else [],
                note=" ".join(notes),
            ),
            proposals=executor.proposals if executor else [],
            seen=executor.duplicates.seen if executor else (),
        )

    async def _triage(
        self, model: ChatModel, stretch: TranscriptSlice, budget: RunBudget, sampling: Sampling
    ) -> Triage:
        """Whether there is anything to keep: most lines end here."""
        prompt = Prompt(
            [
                PromptMessage(
                    "system", self.prompts["enrichment/triage"].render(kinds=EVENT_KIND_NAMES)
                ),
                PromptMessage("user", self._story(stretch)),
            ]
        )
        try:
            answer = await model.structured(prompt, TRIAGE_SCHEMA, sampling)
        except (ModelMalformedAnswerError, ModelDeclinedError):
            budget.take(None, prompt, "")
            raise
        budget.take(answer.usage, prompt, str(answer.value))
        try:
            triage = read_triage(answer.value)
        except InvalidCallError as error:
            raise ModelMalformedAnswerError(
                "The model was asked for a decision and wrote something else."
            ) from error
        check_declined(triage.why)
        return triage

    async def _loop(
        self,
        model: ChatModel,
        executor: ToolExecutor,
        opening: list[PromptMessage],
        budget: RunBudget,
        sampling: Sampling,
    ) -> list[str]:
        """Have the model call until it has finished, calls are used up, or one cannot be read.

        Returns a note if it could have gone on. What it proposed before is kept.
        """
        rounds: list[ToolRound] = []
        while budget.calls < MOST_CALLS and not executor.is_finished:
            prompt = Prompt(opening, tuple(rounds))
            if not budget.affords(prompt):
                return [_SPENT]
            try:
                answer = await _asked(model, prompt, budget, sampling)
            except ModelMalformedAnswerError as error:
                # It may write the same again and again: what it proposed before is not lost by it.
                budget.take(None, prompt, "")
                executor.refuse_unread(error)
                break
            except ModelContextOverflowError:
                if not rounds:
                    raise
                return [_TOO_LONG]
            if not answer.calls:
                break
            results = await executor.answer(answer.calls)
            rounds.append(ToolRound(answer.calls, results, answer.text))
        return []

    def _opening(
        self, stretch: TranscriptSlice, references: ShownReferences, near: LookupResult
    ) -> list[PromptMessage]:
        instruction = self.prompts["enrichment/agent"].render(
            kinds=EVENT_KIND_NAMES,
            most_writes=self.settings.enrichment_max_writes,
            most_calls=MOST_CALLS - 1,
        )
        events = sorted(
            near.events.values(), key=lambda event: (event.happened_at, event.place, event.id)
        )
        story = self._story(
            stretch,
            events=[references.event(event) for event in events],
            entries=[references.entry(entry) for entry in near.entries.values()],
            messages=[
                references.message(message)
                for message in sorted(near.messages.values(), key=lambda each: each.position)
            ],
        )
        return [PromptMessage("system", instruction), PromptMessage("user", story)]

    def _story(self, stretch: TranscriptSlice, **known: Any) -> str:
        sections: dict[str, Any] = {"events": [], "entries": [], "messages": [], **known}
        return self.prompts["enrichment/story"].render(
            **sections,
            earlier=[render_story_line(line) for line in stretch.earlier],
            lines=[render_story_line(line) for line in stretch.lines],
        )


async def _asked(
    model: ChatModel, prompt: Prompt, budget: RunBudget, sampling: Sampling
) -> ToolAnswer:
    """One step of the loop. A model that has called and says no more has finished."""
    try:
        answer = await answer_with_tools(model, prompt, TOOLS, sampling)
    except ModelEmptyReplyError:
        if not prompt.rounds:
            raise
        answer = ToolAnswer(text="", calls=(), usage=None, finish="stop")
    said = "".join([answer.text, *(str(dict(call.arguments)) for call in answer.calls)])
    budget.take(answer.usage, prompt, said)
    if not (answer.calls or prompt.rounds):
        check_declined(answer.text)
    return answer


def _shown_of_each(spec: ModelSpec) -> int:
    return max(2, min(_MOST_SHOWN, spec.context_window // _WINDOW_OF_ONE))
