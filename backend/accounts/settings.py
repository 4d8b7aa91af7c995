"""What a user sets once for all chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar
from uuid import UUID

import msgspec

from backend.errors import ValidationError
from backend.generation.sampling import Sampling

ValueT = TypeVar("ValueT")
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


class LoreOverrides(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How lorebooks are scanned where a book or an entry does not say; absent is the default.

    `scan_depth` is in messages (2), `budget_percent` in per cent of the total budget (25),
    `budget_cap` in tokens (0: none). `include_names` scans `Name: text` and not the text alone.
    `min_activations` looks further back, as far as `min_activations_depth`, until so many entries
    are found (0: no further).
    """

    scan_depth: Annotated[int, msgspec.Meta(ge=0, le=1_000)] | None = None
    budget_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    budget_cap: Tokens | None = None
    include_names: bool | None = None
    recursive: bool | None = None
    max_recursion_steps: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    case_sensitive: bool | None = None
    match_whole_words: bool | None = None
    use_group_scoring: bool | None = None
    min_activations: Annotated[int, msgspec.Meta(ge=0, le=1_000)] | None = None
    min_activations_depth: Annotated[int, msgspec.Meta(ge=0, le=1_000)] | None = None


class SourceWeights(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How much each source of memory counts against the others; 0 leaves it out."""

    lore: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0
    message: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0
    event: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0


class MemorySettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What search brings into a prompt; absent is the default.

    `min_relevance` is from 0, where everything passes that was found, to 1. `max_items` is how many
    memories a prompt gets at most (40).
    """

    enabled: bool | None = None
    min_relevance: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    max_items: Annotated[int, msgspec.Meta(ge=0, le=200)] | None = None
    weights: SourceWeights | None = None


class EnrichmentSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The agent that keeps chronicles, and what writes summaries; absent is the default.

    `model` is the model that they ask. `may_edit_lore` lets the agent change entries of lorebooks
    that the user wrote; without it only those that it made itself.
    """

    model: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    may_edit_lore: bool | None = None


class UserSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Defaults of one user's chats. Sampling goes with the model that is named beside it."""

    model: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    budgets: BudgetSettings = msgspec.field(default_factory=BudgetSettings)
    lore: LoreOverrides = msgspec.field(default_factory=LoreOverrides)
    memory: MemorySettings = msgspec.field(default_factory=MemorySettings)
    enrichment: EnrichmentSettings = msgspec.field(default_factory=EnrichmentSettings)
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


def first_set(chain: Sequence[msgspec.Struct], name: str, default: ValueT) -> ValueT:
    """The first setting of that name that is set."""
    for settings in chain:
        value: ValueT | None = getattr(settings, name)
        if value is not None:
            return value
    return default
