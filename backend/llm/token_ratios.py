"""Ratios of a model's real tokens to counted tokens, learned from providers' reports.

Each user has their own ratios. A report changes only the budgets of the user who wrote the turn.
Users without a ratio start with the median of the others.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Float, ForeignKey, Index, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base
from backend.database.writes import Upsert
from backend.generation.model import ModelSpec
from backend.generation.tokens import SHARED_BOUNDS, find_starting_ratio, learn_ratio

RELOAD_SECONDS = 30.0
"""A cached ratio is used for this time. Other processes learn as well, but slowly."""

MAX_CACHED_RATIOS = 10_000

MIN_USERS = 3
"""With fewer settled ratios, the median is not reliable, and the table's value is used."""

SETTLED_SAMPLES = 5


class TokenRatio(Base):
    __tablename__ = "token_ratios"
    __table_args__ = (Index(None, "model", "ratio"),)

    user_id: Mapped[UUID] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), primary_key=True
    )
    model: Mapped[str] = mapped_column(primary_key=True)
    ratio: Mapped[float] = mapped_column(Float(53))
    samples: Mapped[int]


class Report(NamedTuple):
    """The tokens of a prompt: counted by us, and reported by its provider."""

    counted: int
    reported: int


class RatioCache:
    def __init__(self) -> None:
        self._known: OrderedDict[tuple[UUID, str], tuple[float, float]] = OrderedDict()

    async def get(
        self, session: AsyncSession, user_id: UUID, spec: ModelSpec, tokenizer: str
    ) -> float:
        """Return the real tokens of a model for each token that a vocabulary counts."""
        key = user_id, make_ratio_key(spec, tokenizer)
        ratio, read_at = self._known.get(key, (0.0, -RELOAD_SECONDS))
        if time.monotonic() - read_at >= RELOAD_SECONDS:
            ratio = await load_ratio(session, user_id, spec, tokenizer)
            self._known[key] = ratio, time.monotonic()
            self._known.move_to_end(key)
            if len(self._known) > MAX_CACHED_RATIOS:
                self._known.popitem(last=False)
        return ratio


def make_ratio_key(spec: ModelSpec, tokenizer: str) -> str:
    return f"{spec.id} {tokenizer}"


async def load_ratio(
    session: AsyncSession, user_id: UUID, spec: ModelSpec, tokenizer: str
) -> float:
    """Return the ratio of the user, or else of the installation, or else of the table."""
    row = await session.get(TokenRatio, (user_id, make_ratio_key(spec, tokenizer)))
    return row.ratio if row else await load_shared_ratio(session, spec, tokenizer)


async def load_shared_ratio(session: AsyncSession, spec: ModelSpec, tokenizer: str) -> float:
    """Return the median of users' ratios, which a single user cannot move far."""
    settled = (
        TokenRatio.model == make_ratio_key(spec, tokenizer),
        TokenRatio.samples >= SETTLED_SAMPLES,
    )
    users = await session.scalar(select(func.count()).where(*settled)) or 0
    if users < MIN_USERS:
        return find_starting_ratio(spec.tokenizer, counted_with=tokenizer)
    ratios = select(TokenRatio.ratio).where(*settled).order_by(TokenRatio.ratio)
    middle = ratios.offset((users - 1) // 2).limit(2 - users % 2)
    found = list(await session.scalars(middle))
    low, high = SHARED_BOUNDS
    return min(max(sum(found) / len(found), low), high)


async def learn(
    session: AsyncSession,
    user_id: UUID,
    spec: ModelSpec,
    tokenizer: str,
    row: TokenRatio | None,
    reports: Sequence[Report],
) -> Upsert:
    """Return the write that stores the user's ratio after some reports. `row` is the present one.

    It has no rows if the reports teach nothing.
    """
    rows = list[dict[str, Any]]()
    if reports:
        before = row.ratio if row else await load_shared_ratio(session, spec, tokenizer)
        ratio, samples = before, row.samples if row else 0
        for counted, reported in reports:
            ratio, samples = learn_ratio(ratio, samples, counted=counted, reported=reported)
        if samples != (row.samples if row else 0):
            model = make_ratio_key(spec, tokenizer)
            rows = [{"user_id": user_id, "model": model, "ratio": ratio, "samples": samples}]
    return Upsert(TokenRatio, rows, key=("user_id", "model"), update=("ratio", "samples"))
