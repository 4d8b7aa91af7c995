"""What a user sets once for all chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import msgspec

from backend.errors import ValidationError
from backend.generation.sampling import Sampling

Tokens = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
LongText = Annotated[str, msgspec.Meta(max_length=200_000)]


class BudgetSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Token budgets; what is absent is the server's default."""

    total: Annotated[int, msgspec.Meta(ge=1024, le=10_000_000)] | None = None
    history: Tokens | None = None
    retrieval: Tokens | None = None
    reply_reserve: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    min_tail_messages: Annotated[int, msgspec.Meta(ge=2, le=1000)] | None = None


class UserSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Defaults of one user's chats. Sampling goes with the model that is named beside it."""

    model: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    budgets: BudgetSettings = msgspec.field(default_factory=BudgetSettings)
    persona_id: UUID | None = None
    system_prompt: LongText | None = None
    post_history_instructions: LongText | None = None


def check_budgets(chain: Sequence[BudgetSettings], *, total: int, reply_reserve: int) -> None:
    """Raise `ValidationError` where nothing is left for a prompt.

    Args:
        chain: Budgets as they are looked up, the nearest first.
        total: The server's own, for where none of them says.
        reply_reserve: Likewise.
    """
    window = first_set(chain, "total", total)
    reserve = first_set(chain, "reply_reserve", reply_reserve)
    if reserve >= window:
        raise ValidationError(
            f"budgets: of a total of {window:,} tokens a reply_reserve of {reserve:,} leaves "
            "nothing for the prompt."
        )


def first_set(chain: Sequence[BudgetSettings], name: str, default: int) -> int:
    """The first budget of that name that is set."""
    for settings in chain:
        value: int | None = getattr(settings, name)
        if value is not None:
            return value
    return default
