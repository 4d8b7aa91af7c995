"""What a rebuild would take, as well as it can be told without asking a model.

Lines are counted as they are stored, in their chat's unit; prompts by their length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from backend.enrichment.agent.agent import MOST_CALLS
from backend.enrichment.agent.tools import EVENT_KINDS, TOOLS, TRIAGE_SCHEMA
from backend.enrichment.schemas import AmountRange
from backend.enrichment.story import EARLIER_LINES, EARLIER_TOKENS
from backend.enrichment.study import CHARACTERS_A_TOKEN
from backend.prompts import PromptLibrary

LINE_MARK = 4
"""Tokens of the mark before each line."""
KNOWN = 1_500
"""Tokens of what is near in memory: some events, some lore, some old lines."""
ROUND = 400
"""Tokens of one step of the loop: what the model called, and what it was answered."""
DECISION = 60
"""Tokens of the answer to the first question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Calls and tokens, from where nothing of note is found to where every batch takes all."""

    calls: AmountRange
    prompt_tokens: AmountRange
    completion_tokens: AmountRange


def estimate_cost(
    batches: Sequence[Sequence[int]], prompts: PromptLibrary, *, most_writes: int, per_run: int
) -> Cost:
    """What it takes to study a chat's stretches.

    Args:
        batches: Of each stretch the tokens of its lines.
        prompts: What the agent is told.
        most_writes: How much one run may write.
        per_run: Tokens that one run may take; its first call is always made.
    """
    kinds = ", ".join(EVENT_KINDS)
    frame = prompts["enrichment/story"].render(
        events=[], entries=[], messages=[], earlier=[], lines=[]
    )
    question = _tokens(
        prompts["enrichment/triage"].render(kinds=kinds), frame, msgspec.json.encode(TRIAGE_SCHEMA)
    )
    task = _tokens(
        prompts["enrichment/agent"].render(
            kinds=kinds, most_writes=most_writes, most_calls=MOST_CALLS - 1
        ),
        frame,
        *(msgspec.json.encode(tool.parameters) for tool in TOOLS),
        *(tool.description for tool in TOOLS),
    )
    steps = MOST_CALLS - 1
    least = most = 0
    before: list[int] = []
    for batch in batches:
        lines = sum(batch) + LINE_MARK * len(batch) + _earlier(before)
        first = question + lines
        loop = steps * (task + lines + KNOWN) + ROUND * steps * (steps - 1) // 2
        least += first
        most += max(first, min(first + loop, per_run))
        before = [*before, *batch][-EARLIER_LINES:]
    count = len(batches)
    return Cost(
        calls=AmountRange(least=count, most=count * MOST_CALLS),
        prompt_tokens=AmountRange(least=least, most=most),
        completion_tokens=AmountRange(
            least=count * DECISION, most=count * (DECISION + steps * ROUND)
        ),
    )


def _earlier(tokens: Sequence[int]) -> int:
    """Tokens of the lines that are shown before a batch."""
    total = 0
    for each in reversed(tokens):
        if total + each > EARLIER_TOKENS:
            break
        total += each + LINE_MARK
    return total


def _tokens(*texts: str | bytes) -> int:
    return sum(map(len, texts)) // CHARACTERS_A_TOKEN
