"""Prompts that a model refused as too long, and the limits of the prompt that is built next.

The model's adapter learns the window from a refusal. If the prompt was built for that window, its
tokens are worth more than was assumed, or tools and rounds of calls took the rest of the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from backend.generation.model import ModelContextOverflowError, Tool, ToolRound
from backend.generation.tokens import RATIO_BOUNDS, get_tokenizer
from backend.turns.prompt.built_prompt import BuiltPrompt
from backend.turns.prompt.context import Constraint

MAX_REBUILDS = 2
"""Of one request. The first refusal names the window, or bounds it; the second corrects that."""

STEP = 1.25
"""Factor on the tokens of a prompt after a refusal that explains nothing: it has to get smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPrompt:
    """A prompt that was refused as too long.

    Attributes:
        needed: Its length in the model's tokens, reported or estimated.
        window: The model's window, as the refusal named it or as it was learned from it.
        counted: Its counted tokens.
        is_reported: True if the server reported `needed`, and a tokenizer can explain it.
        extra: The model's tokens that the request took in addition to the prompt.
    """

    needed: int
    window: int
    counted: int
    is_reported: bool
    extra: int

    @property
    def note(self) -> str:
        """The sentence that the record of the next prompt has of it."""
        return (
            f"The model refused a first prompt of {self.needed:,} tokens: its context window has "
            f"{self.window:,}. The prompt was built again."
        )

    def complete(self, error: ModelContextOverflowError) -> ModelContextOverflowError:
        """Return the error of a turn that ends with this refusal: with both numbers.

        Those that the server did not report are estimated.
        """
        if error.window is not None and error.needed is not None:
            return error
        completed = ModelContextOverflowError(
            f"The prompt takes about {self.needed:,} tokens. The model's window has about "
            f"{self.window:,} tokens. Lower the context size, or load the model with a larger "
            "window.",
            window=self.window,
            needed=self.needed,
        )
        completed.extra, completed.private = {**error.extra, **completed.extra}, error.private
        return completed


def describe_refusal(
    error: ModelContextOverflowError, built: BuiltPrompt, *, extra: int
) -> RefusedPrompt:
    """Complete a refusal with the estimates of the prompt and the learned window.

    A server may report the prompt alone, or with the reply that was asked for. The reading that is
    nearer to the estimate counts.

    Args:
        error: The refusal.
        built: The prompt that was refused.
        extra: The model's tokens of tools and rounds of calls in the request.
    """
    spec = built.window.models.spec(built.window.spec.id)
    estimate = max(1, built.totals.prompt + extra)
    needed = estimate
    if error.needed is not None:
        without_reply = error.needed - (error.reply_limit or 0)
        readings = [each for each in (error.needed, without_reply) if each > 0]
        needed = min(readings, key=lambda each: abs(math.log(each / estimate)))
    counted = built.assembled.tokens
    least, most = RATIO_BOUNDS
    is_explained = counted * least <= needed - extra <= counted * most
    return RefusedPrompt(
        needed=needed,
        window=error.window or spec.usable_window,
        counted=counted,
        is_reported=error.needed is not None and is_explained,
        extra=extra,
    )


def constraint_after(refused: RefusedPrompt, built: BuiltPrompt) -> Constraint:
    """Return the limits of the next prompt. They make it smaller than the refused one."""
    window = built.window
    ratio = (refused.needed - refused.extra) / max(1, refused.counted)
    ratio = max(window.ratio, min(ratio, RATIO_BOUNDS[1]))
    is_smaller = window.models.spec(window.spec.id).usable_window < window.limits.total
    if not is_smaller and ratio == window.ratio and refused.extra <= window.extra:
        ratio *= STEP
    return Constraint(ratio=ratio, extra=refused.extra)


def count_extra(built: BuiltPrompt, *, tools: Sequence[Tool], rounds: Sequence[ToolRound]) -> int:
    """Estimate the model's tokens of tools and rounds of calls. CPU-bound: some milliseconds."""
    declared = [(tool.name, tool.description, tool.parameters) for tool in tools]
    called = [
        (each.text, [(call.name, call.arguments) for call in each.calls], each.results)
        for each in rounds
    ]
    text = msgspec.json.encode([declared, called]).decode()
    window = built.window
    return window.to_model_tokens(get_tokenizer(window.unit.tokenizer).count(text))
