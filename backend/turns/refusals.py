"""Prompts that a model refuses as too long: built again, smaller, and asked again in the same turn.

The adapter has learned the window from the refusal by then. What it cannot learn is why a prompt
that was built for a window did not fit: its tokens are worth more than was assumed, or tools and
rounds of calls took the rest.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from backend.generation.model import (
    ModelContextOverflowError,
    Piece,
    TextPiece,
    ThinkingPiece,
    Tool,
    ToolCall,
    ToolRound,
)
from backend.generation.tokens import get_tokenizer
from backend.turns.built import Built

MAX_REBUILDS = 2
"""Of one request. The first refusal tells the window, or bounds it; the second corrects that."""

STEP = 1.25
"""Factor by which the tokens of a prompt are taken to be worth more, if a refusal tells nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What a prompt has to fit, besides its budgets, because the model has refused the last one.

    Attributes:
        ratio: The model's tokens for one counted, at least.
        beside: The model's tokens that the request takes beside the prompt.
    """

    ratio: float = 0.0
    beside: int = 0


@dataclass(frozen=True, slots=True)
class RefusedPrompt:
    """A prompt's counted tokens, and the model's tokens of the same text as the refusal has them."""

    counted: int
    reported: int


Rebuild = Callable[[Constraint], Awaitable[Built]]
"""Builds a turn's prompt again, from the same chat and the same line."""

T = TypeVar("T")
