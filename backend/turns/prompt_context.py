"""What one prompt is made of, and how it is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from backend.chats.counting import CountUnit
from backend.chats.repository import SealedHistory
from backend.context.assembly import History
from backend.context.budget import Budget
from backend.generation.model import ModelSpec
from backend.generation.sampling import Sampling
from backend.generation.tokens import starting_ratio
from backend.memory.search import Memory
from backend.turns.load import LoadedChat


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWindow:
    """Whom a prompt is for, how it is counted, and what it may take.

    Attributes:
        unit: What the prompt is counted in.
        stored_unit: What the chat's stored counts are in.
        ratio: Makes counted tokens the model's.
        limits: The budgets in the model's tokens.
        budget: The same in counted ones.
    """

    spec: ModelSpec
    sampling: Sampling
    unit: CountUnit
    stored_unit: CountUnit
    ratio: float
    limits: Budget
    budget: Budget

    @property
    def is_estimated(self) -> bool:
        """Whether the stored counts are in another unit."""
        return self.unit != self.stored_unit

    @property
    def scale(self) -> float:
        """Makes stored tokens counted ones."""
        return starting_ratio(self.unit.tokenizer, counted_with=self.stored_unit.tokenizer)

    def to_model_tokens(self, count: int) -> int:
        """A count in the model's tokens."""
        return round(count * self.ratio)


@dataclass(slots=True, kw_only=True)
class PromptContext:
    """Everything that one prompt is made of. Loading makes it, retrieving fills in the rest.

    Attributes:
        loaded: The chat, its cast, its books, its place in the tree.
        widest: Stored tokens that the lines were read for; what is always sent may leave less.
        line: What the user says, where somebody says something new.
        lines: The history as it is stored, oldest first, down to the leaf.
        history: The same as the model gets it: unsealed, after regex scripts, with its tokens.
        memories: What was found and counts, best first.
        by_meaning: Whether it was looked for by meaning, too.
        notes: What there is to say about the search.
    """

    loaded: LoadedChat
    window: PromptWindow
    widest: int
    line: str | None
    lines: SealedHistory
    history: History = field(default_factory=History)
    memories: Sequence[Memory] = ()
    by_meaning: bool = False
    notes: Sequence[str] = ()

    @property
    def summarised(self) -> int | None:
        """Stored tokens from the root that the chat's summary covers; None without one."""
        summary = self.loaded.summary
        return summary.path_tokens if summary else None

    @property
    def path_tokens(self) -> int:
        """Stored tokens of the whole path."""
        return self.loaded.path_tokens
