"""What turns and suggestions take of the day's tokens."""

from __future__ import annotations

from backend.generation.model import TokenUsage
from backend.generation.tokens import get_tokenizer
from backend.turns.runs import TurnRun


def tokens_of(usage: TokenUsage | None, *, counted: int) -> int:
    """Tokens of a prompt and its reply, as the provider reported them; else as `counted` here."""
    return usage.prompt_tokens + usage.completion_tokens if usage is not None else counted


def spent_tokens(run: TurnRun) -> int:
    """Tokens that a turn took, also one that was stopped before the provider reported any."""
    transcript = run.progress.transcript
    if run.usage is None and run.outcome == "failed" and not transcript.length:
        return 0  # the provider refused it
    said = transcript.joined("text") + transcript.joined("thinking")
    tokenizer = get_tokenizer(run.built.window.unit.tokenizer)
    counted = 0 if run.usage else run.built.assembled.tokens + tokenizer.count(said)
    return tokens_of(run.usage, counted=counted)
