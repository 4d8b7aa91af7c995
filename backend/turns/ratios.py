"""What a counted token is worth in the model's own, learned from what providers report."""

from __future__ import annotations

import time

from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.upsert import upsert
from backend.generation.model import ModelSpec
from backend.generation.tokens import learn_ratio, starting_ratio
from backend.turns.models import TokenRatio

RELOAD_EVERY = 30.0
"""Seconds for which a ratio is not read again: other processes learn as well, slowly."""


class RatioCache:
    """The ratios that this process has read lately."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}

    async def get(self, session: AsyncSession, spec: ModelSpec, tokenizer: str) -> float:
        """Real tokens of a model for one counted with a vocabulary."""
        key = ratio_key(spec, tokenizer)
        ratio, read_at = self._known.get(key, (0.0, -RELOAD_EVERY))
        if time.monotonic() - read_at >= RELOAD_EVERY:
            ratio = ratio_of(await session.get(TokenRatio, key), spec, tokenizer)
            self._known[key] = ratio, time.monotonic()
        return ratio


def ratio_key(spec: ModelSpec, tokenizer: str) -> str:
    """Under what a ratio is kept: the model, and the vocabulary that counted."""
    return f"{spec.id} {tokenizer}"


def ratio_of(row: TokenRatio | None, spec: ModelSpec, tokenizer: str) -> float:
    """Real tokens for one counted: as learned, else from the table."""
    return row.ratio if row else starting_ratio(spec.tokenizer, counted_with=tokenizer)


async def learn(
    session: AsyncSession, spec: ModelSpec, tokenizer: str, *, counted: int, reported: int
) -> None:
    """Take a provider's report into account."""
    key = ratio_key(spec, tokenizer)
    row = await session.get(TokenRatio, key)
    before = ratio_of(row, spec, tokenizer), row.samples if row else 0
    ratio, samples = learn_ratio(*before, counted=counted, reported=reported)
    if samples != before[1]:
        values = {"ratio": ratio, "samples": samples}
        await upsert(session, TokenRatio, {"model": key, **values}, key=["model"], update=values)
