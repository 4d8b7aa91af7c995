"""What one run came to: what it wants to write, what it read, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from backend.chronicles.events import EventFields
from backend.chronicles.reading import SourceMessage
from backend.enrichment.detail import Refused, RunDetail, RunEffect
from backend.generation.model import Prompt, TokenUsage
from backend.lorebooks.entries import LoreEntry

DEMO_NOTE = "Demo model: simple rules, no language model read this."

CHARACTERS_A_TOKEN = 4
"""About as many as most texts have: for what no provider has counted."""


class RunBudget:
    """Tokens that a run may take, and what it took: as the provider reports them.

    It is filled in while the run goes on, so that it is known of one that fails, too.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.calls = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0

    @property
    def spent(self) -> int:
        """Tokens of prompts and answers so far."""
        return self.prompt_tokens + self.completion_tokens

    def affords(self, prompt: Prompt) -> bool:
        """Whether a prompt goes into what is left. The first call always does."""
        return not self.calls or self.spent + estimate(prompt) <= self.limit

    def take(self, usage: TokenUsage | None, prompt: Prompt, answer: str) -> None:
        """Note a call; without a report it is estimated by length."""
        self.calls += 1
        if usage is None:
            self.prompt_tokens += estimate(prompt)
            self.completion_tokens += len(answer) // CHARACTERS_A_TOKEN + 1
        else:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens


def estimate(prompt: Prompt) -> int:
    """About how many tokens a prompt has, tools aside."""
    said = sum(len(message.text) for message in prompt.messages)
    for each in prompt.rounds:
        asked = [dict(call.arguments) for call in each.calls]
        said += len(each.text) + len(msgspec.json.encode([asked, list(each.results)]))
    return said // CHARACTERS_A_TOKEN + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedEvent:
    """An event to write. `id` stands for it until it has a row.

    `supersedes` is the event, or the proposal of the same run, that is not true any more with it.
    Where it says that one better, `mends` is the revision that was read of it.
    """

    id: UUID
    fields: EventFields
    significance: int
    sources: Sequence[SourceMessage]
    happened_at: datetime
    place: int
    supersedes: UUID | None = None
    mends: int | None = None
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedEntry:
    """An entry to write into the chronicle's own lorebook; `id` as of a proposed event."""

    id: UUID
    entry: LoreEntry
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedChange:
    """An entry to be said anew: `id` and `revision` are those of the row as it was read."""

    id: UUID
    book_id: UUID
    revision: int
    entry: LoreEntry
    because: str = ""


Proposal = ProposedEvent | ProposedEntry | ProposedChange


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """What came of reading a stretch. `note` is for people."""

    why: str
    significant: bool
    kinds: Sequence[str] = ()
    message_ids: Sequence[UUID] = ()
    memory_ids: Sequence[UUID] = ()
    proposals: Sequence[Proposal] = ()
    refused: Sequence[Refused] = ()
    note: str = ""
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def detail(
        self, effects: Sequence[RunEffect] = (), refused: Sequence[Refused] = ()
    ) -> RunDetail:
        """The study as it is stored, with what was written, and what could not be after all."""
        return RunDetail(
            why=self.why,
            significant=self.significant,
            kinds=list(self.kinds),
            message_ids=list(self.message_ids),
            memory_ids=list(self.memory_ids),
            effects=list(effects),
            refused=[*self.refused, *refused],
            note=self.note,
        )
