"""What a user sets for one chat; what is absent is the account's default."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec

from backend.accounts.settings import (
    BudgetSettings,
    EnrichmentSettings,
    LongText,
    LoreOverrides,
    MemorySettings,
)
from backend.generation.model import Role
from backend.generation.sampling import Sampling


class AuthorsNote(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A note of the user's to the model.

    It stands among the last messages, where `depth` 0 is after the newest, or around the system
    prompt. With an `interval` of n it comes with every n-th of the user's lines; 0 is never. With
    `scan`, lorebooks look for their keys in it, too. Where it has no text, the note of the
    character that speaks stands for it: `extensions.talekeeper.authors_note` of the card, of the
    same form.
    """

    text: Annotated[str, msgspec.Meta(max_length=20_000)] = ""
    depth: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 4
    role: Role = "system"
    position: Literal["at_depth", "before_prompt", "after_prompt"] = "at_depth"
    interval: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1
    scan: bool = False


class SummarySettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The rolling summary of what scrolls out of the history.

    `words` is about how long it is; `interval` how many messages at least lie between two.
    """

    enabled: bool = False
    words: Annotated[int, msgspec.Meta(ge=50, le=2_000)] = 250
    interval: Annotated[int, msgspec.Meta(ge=2, le=500)] = 20


class ChatSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Settings of one chat.

    Sampling goes with the model named beside it: a chat with a model of its own takes none of the
    account's sampling.
    """

    model: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    budgets: BudgetSettings = msgspec.field(default_factory=BudgetSettings)
    lore: LoreOverrides = msgspec.field(default_factory=LoreOverrides)
    memory: MemorySettings = msgspec.field(default_factory=MemorySettings)
    enrichment: EnrichmentSettings = msgspec.field(default_factory=EnrichmentSettings)
    chronicle_enabled: bool = False
    """Have the agent write down what happens: the opt-in. Makes a chronicle where none is set."""
    chronicle_id: UUID | None = None
    """The chronicle whose events the chat remembers, and into which the agent writes.

    Null takes it from the chat. While `chronicle_enabled` stays true, null makes a new one.
    """
    summary: SummarySettings = msgspec.field(default_factory=SummarySettings)
    system_prompt: LongText | None = None
    post_history_instructions: LongText | None = None
    authors_note: AuthorsNote = msgspec.field(default_factory=AuthorsNote)
    memory_placement: Literal["before_history", "after_history"] = "after_history"
    lore_placement: Literal["after_history", "as_written"] = "after_history"
    """Where activated lore stands whose place is around the character or the examples.

    `as_written` puts it there. By default it stands behind the history, so that what comes before
    stays the same and providers' caches keep hitting.
    """
    names: bool | None = None
    """Put each author's name before the text. Absent: only where several characters take part."""
