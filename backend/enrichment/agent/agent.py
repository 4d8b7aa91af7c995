"""The agent that keeps chronicles: a triage, then a loop of tool calls, then proposals.

It writes nothing. Its result is an `AgentResult`, which `runs.effects` writes. No database
transaction is open while a model or an embedder is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.enrichment.agent.duplicates import DuplicateCheck, DuplicateFinder
from backend.enrichment.agent.lookup import KnowledgeLookup, LookupResult
from backend.enrichment.agent.proposals import (
    AgentResult,
    Proposal,
    ShownReferences,
    render_story_line,
)
from backend.enrichment.agent.retellings import RetellingFinder
from backend.enrichment.agent.tool_executor import ToolExecutor
from backend.enrichment.agent.tools import (
    EVENT_KINDS,
    TOOLS,
    TRIAGE_SCHEMA,
    Triage,
    read_triage,
)
from backend.enrichment.cleaning import to_one_line
from backend.enrichment.reader import OUTPUT_TOKENS, Reader
from backend.enrichment.runs.store import RunDetail
from backend.enrichment.story import TranscriptSlice
from backend.generation.declined_answers import check_declined
from backend.generation.model import (
    ChatModel,
    ModelContextOverflowError,
    ModelEmptyReplyError,
    ModelMalformedAnswerError,
    ModelSpec,
    Prompt,
    PromptMessage,
    ToolAnswer,
    ToolCall,
)
from backend.generation.sampling import Sampling
from backend.generation.tools.calls import InvalidCallError
from backend.generation.tools.streams import answer_with_tools
from backend.llm.answers import LoopEnd, RunBudget, ask, build_prompt, join_answer, run_tool_loop
from backend.memory.embedding.protocol import DocumentEmbedder
from backend.memory.search.search import MemorySearch
from backend.prompts import PromptLibrary
from backend.settings import Settings
from backend.vault.sealing import Sealer

MAX_CALLS = 6
"""Maximum calls of models in one run, the triage included."""

_MAX_SHOWN = 8
"""Maximum events, entries and messages each that are shown as known. As many recent events follow.
"""

_WINDOW_TOKENS_PER_ITEM = 4_000
"""Tokens of the context window for one item of each kind: small models are shown less."""

_MAX_WHY = 500
EVENT_KIND_NAMES = ", ".join(EVENT_KINDS)
DEMO_NOTE = "Demo model: simple rules, no language model read this."
_EARLY_ENDS: Mapping[LoopEnd, list[str]] = {
    "budget_spent": ["The run ended early because its tokens were used up."],
    "failed": ["The run ended early because the prompt became too long for the model."],
}
_NO_CALLS = ToolAnswer(text="", calls=(), usage=None, finish="stop")

EmbedderOf = Callable[[Sealer], Awaitable[DocumentEmbedder | None]]
"""Returns the embedder for a user's texts, if there is one."""


@dataclass(frozen=True, slots=True)
class Agent:
    """Reads new lines of a story, and proposes events and lorebook entries.

    Without an embedder for the user, events are compared by their words.
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
        """Read a slice of the story. `budget` is updated even if an error is raised.

        Raises `UnknownModelError` and `ModelError`.
        """
        model, small = reader.model, reader.triage_model
        notes = [DEMO_NOTE] if model.spec.provider == "demo" else []
        try:
            triage = await self._run_triage(small, stretch, budget, reader.build_sampling(small))
        finally:
            budget.mark_triage(small.spec.id)
        executor = references = None
        proposals: list[Proposal] = []
        if triage.significant:
            lookup = KnowledgeLookup(self.database, self.search, reader.sealer, stretch, self.pool)
            references = ShownReferences(stretch.lines, stretch.marks)
            latest = await lookup.list_latest()
            count = _count_shown(model.spec)
            near = await lookup.find_related(count=count)
            # The new lines usually continue the latest events, found or not.
            near.events |= {event.id: event for event in latest[-count:]}
            embedder = await self.embedder_of(reader.sealer)
            finder = DuplicateFinder(reader.sealer, embedder, self.pool)
            executor = ToolExecutor(
                stretch=stretch,
                lookup=lookup,
                duplicates=DuplicateCheck(finder, lookup, references, latest),
                references=references,
                most_writes=self.settings.enrichment_max_writes,
            )
            opening = self._build_messages(stretch, references, near)
            # Each event or entry is a call of about 250 tokens in one answer.
            room = max(OUTPUT_TOKENS, 256 * self.settings.enrichment_max_writes)
            sampling = reader.build_sampling(model, room)
            notes += await self._run_loop(model, executor, opening, budget, sampling)
            proposals = await RetellingFinder(self.prompts, lookup, finder).mark(
                executor.proposals, model, budget, reader.build_sampling(model), max_calls=MAX_CALLS
            )
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
            proposals=proposals,
            seen=executor.duplicates.seen if executor else (),
        )

    async def _run_triage(
        self, model: ChatModel, stretch: TranscriptSlice, budget: RunBudget, sampling: Sampling
    ) -> Triage:
        """Ask if there is anything to record. Most slices end here."""
        instruction = self.prompts["enrichment/triage"].render(kinds=EVENT_KIND_NAMES)
        prompt = build_prompt(instruction, self._render_story(stretch))
        value = await ask(model, prompt, TRIAGE_SCHEMA, sampling=sampling, budget=budget)
        try:
            triage = read_triage(value)
        except InvalidCallError as error:
            raise ModelMalformedAnswerError(
                "The model did not return a decision in the requested format."
            ) from error
        check_declined(triage.why)
        return triage

    async def _run_loop(
        self,
        model: ChatModel,
        executor: ToolExecutor,
        opening: list[PromptMessage],
        budget: RunBudget,
        sampling: Sampling,
    ) -> list[str]:
        """Let the model call tools until it has finished, or its calls or tokens are used up.

        Returns a note for the user if it ended early. Earlier proposals are kept.
        """

        async def ask_model(prompt: Prompt) -> ToolAnswer:
            try:
                return await _ask_for_calls(model, prompt, budget, sampling)
            except ModelMalformedAnswerError as error:
                # The model may repeat itself. Earlier proposals are kept.
                budget.count_call(None, prompt)
                executor.refuse_unread(error)
                return _NO_CALLS

        async def execute(calls: Sequence[ToolCall]) -> Sequence[Any] | None:
            results = await executor.execute(calls)
            return None if executor.is_finished else results

        end = await run_tool_loop(
            opening,
            ask_model,
            execute,
            budget=budget,
            max_calls=MAX_CALLS,
            tolerated=ModelContextOverflowError,
        )
        return _EARLY_ENDS.get(end, [])

    def _build_messages(
        self, stretch: TranscriptSlice, references: ShownReferences, near: LookupResult
    ) -> list[PromptMessage]:
        instruction = self.prompts["enrichment/agent"].render(
            kinds=EVENT_KIND_NAMES,
            most_writes=self.settings.enrichment_max_writes,
            most_calls=MAX_CALLS - 1,
        )
        events = sorted(
            near.events.values(), key=lambda event: (event.happened_at, event.place, event.id)
        )
        story = self._render_story(
            stretch,
            events=[references.render_event(event) for event in events],
            entries=[references.render_entry(entry) for entry in near.entries.values()],
            messages=[
                references.render_message(message)
                for message in sorted(near.messages.values(), key=lambda each: each.position)
            ],
        )
        return [PromptMessage("system", instruction), PromptMessage("user", story)]

    def _render_story(self, stretch: TranscriptSlice, **known: Any) -> str:
        sections: dict[str, Any] = {"events": [], "entries": [], "messages": [], **known}
        return self.prompts["enrichment/story"].render(
            **sections,
            earlier=[render_story_line(line) for line in stretch.earlier],
            lines=[render_story_line(line) for line in stretch.lines],
        )


async def _ask_for_calls(
    model: ChatModel, prompt: Prompt, budget: RunBudget, sampling: Sampling
) -> ToolAnswer:
    """Ask for the calls of one round. An empty answer after a round means that it has finished."""
    try:
        answer = await answer_with_tools(model, prompt, TOOLS, sampling)
    except ModelEmptyReplyError:
        if not prompt.rounds:
            raise
        answer = _NO_CALLS
    budget.count_call(answer.usage, prompt, join_answer(answer.text, answer.calls))
    if not (answer.calls or prompt.rounds):
        check_declined(answer.text)
    return answer


def _count_shown(spec: ModelSpec) -> int:
    return max(2, min(_MAX_SHOWN, spec.context_window // _WINDOW_TOKENS_PER_ITEM))
