"""What a counted token is worth in the model's own, learned from what providers report."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.upsert import upsert
from backend.generation.model import ModelSpec
from backend.generation.tokens import learn_ratio, starting_ratio
from backend.turns.models import TokenRatio


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
