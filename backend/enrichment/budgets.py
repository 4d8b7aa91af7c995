"""What work behind the reply may spend: of one user's in a day, and in one run."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.base import now
from backend.enrichment.models import EnrichmentRun
from backend.generation.model import Prompt, TokenUsage
from backend.jobs.errors import RetryLaterError
from backend.settings import Settings

DAY = timedelta(hours=24)

CHARACTERS_A_TOKEN = 4
"""About as many as most texts have: for what no provider has counted."""

_TOKENS = EnrichmentRun.prompt_tokens + EnrichmentRun.completion_tokens
_COUNTS = EnrichmentRun.kind != "suggestions"
"""The user asks for those: they count with turns, not with background work."""


class RunBudget:
    """Tokens that a run may take, and what it took: as the provider reports them.

    It is filled in while the run goes on, so that it is known of one that fails, too.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.calls = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._triage = ("", 0, 0)

    def note_triage(self, model_id: str) -> None:
        """Note that what was taken so far was a model's that only says whether to go on."""
        self._triage = (model_id, self.prompt_tokens, self.completion_tokens)

    def columns(self, model_id: str) -> dict[str, Any]:
        """What was taken, as columns of the run of a model."""
        taken: dict[str, Any] = {
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }
        small, read, written = self._triage
        if self.calls and small not in {"", model_id}:
            taken |= {
                "triage_model": small,
                "triage_prompt_tokens": read,
                "triage_completion_tokens": written,
            }
        return taken

    def affords(self, prompt: Prompt) -> bool:
        """Whether a prompt goes into what is left. The first call always does."""
        spent = self.prompt_tokens + self.completion_tokens
        return not self.calls or spent + estimate(prompt) <= self.limit

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


async def open_budget(session: AsyncSession, settings: Settings, user_id: UUID) -> RunBudget:
    """What one run may take of what is left of a user's day.

    Raises `RetryLaterError` where nothing is left.
    """
    allowed, at = settings.enrichment_tokens_per_day, now()
    after = await seconds_to_wait(session, user_id, at, allowed=allowed)
    if after:
        raise RetryLaterError("The user's tokens for the day are spent.", after=after)
    left = allowed - await spent_today(session, user_id, at)
    return RunBudget(min(settings.enrichment_tokens_per_run, left))


async def spent_today(session: AsyncSession, user_id: UUID, at: datetime) -> int:
    """Tokens that runs took in the 24 hours before `at`, as providers reported them."""
    spent = await session.scalar(
        select(func.coalesce(func.sum(_TOKENS), 0)).where(
            EnrichmentRun.user_id == user_id, EnrichmentRun.created_at > at - DAY, _COUNTS
        )
    )
    return int(spent or 0)


async def seconds_to_wait(
    session: AsyncSession, user_id: UUID, at: datetime, *, allowed: int
) -> float:
    """Seconds until a user has spent less than `allowed` tokens in 24 hours; 0 when that is so now.

    With nothing allowed it is a day, each day.
    """
    if allowed <= 0:
        return DAY.total_seconds()
    if await spent_today(session, user_id, at) < allowed:
        return 0.0
    rows = await session.execute(
        select(EnrichmentRun.created_at, _TOKENS)
        .where(EnrichmentRun.user_id == user_id, EnrichmentRun.created_at > at - DAY, _COUNTS)
        .order_by(EnrichmentRun.created_at.desc())
    )
    total = 0
    for created_at, tokens in rows:
        total += tokens
        if total >= allowed:
            # With this run a day old, what came after it is less than what is allowed.
            return max(1.0, (created_at + DAY - at).total_seconds())
    return 0.0
