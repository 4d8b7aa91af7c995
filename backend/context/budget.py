"""Token budgets: what a prompt may take, and where kept history begins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from backend.errors import AppError

STEP_PARTS = 10
"""Kept history moves by at most a tenth of its budget at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Tokens, as the model counts them. `total` is prompt and reply together."""

    total: int
    history: int
    retrieval: int
    reply_reserve: int
    min_tail_messages: int

    @property
    def prompt(self) -> int:
        """What the prompt may take at most."""
        return self.total - self.reply_reserve

    def counted(self, ratio: float) -> Budget:
        """The same in tokens of which the model makes `ratio` each."""
        return replace(
            self,
            total=math.floor(self.total / ratio),
            history=math.floor(self.history / ratio),
            retrieval=math.floor(self.retrieval / ratio),
            reply_reserve=math.ceil(self.reply_reserve / ratio),
        )

    def within(self, window: int) -> Budget:
        """The same for a model whose window may be smaller than `total`: shares of that window.

        The reply keeps a quarter of it at most. History and retrieval divide the rest as they would
        divide what they ask for, where that is more; history gets half of it if it asks for that.
        """
        if window >= self.total:
            return self
        reply = min(self.reply_reserve, window // 4)
        prompt, wanted = window - reply, self.history + self.retrieval
        share = prompt * self.history // wanted if wanted else 0
        history = min(self.history, max(share, prompt // 2))
        retrieval = min(self.retrieval, prompt - history)
        return replace(
            self, total=window, history=history, retrieval=retrieval, reply_reserve=reply
        )

    def for_history(self, fixed: int) -> int:
        """What recent history may take beside `fixed` tokens that are always sent."""
        return max(0, min(self.history, self.prompt - fixed))

    def for_reaching(self, fixed: int) -> int:
        """What history may take where it has to reach back to a summary: retrieval's part, too."""
        return max(0, min(self.history + self.retrieval, self.prompt - fixed))

    def for_retrieval(self, fixed: int, history: int) -> int:
        """What retrieved lore and memory may take once history has taken its part."""
        return max(0, min(self.retrieval, self.prompt - fixed - history))


class ContextOverflowError(AppError):
    """The required parts of the prompt exceed the context window. Nothing was stored.

    `sections` itemises it: `{kind, title, tokens}` each.
    """

    status, slug, title = 422, "context-overflow", "The message does not fit the context window"

    def __init__(self, *, needed: int, available: int, sections: list[dict[str, Any]]) -> None:
        super().__init__(
            f"{needed:,} tokens are needed and {available:,} are left for the prompt. Shorten one "
            "of the sections below, or raise the budget.",
            extra={"needed": needed, "available": available, "sections": sections},
        )
        self.needed, self.available, self.sections = needed, available, sections

    def scaled(self, ratio: float) -> ContextOverflowError:
        """The same in other tokens, `ratio` of them for each of these."""
        return ContextOverflowError(
            needed=round(self.needed * ratio),
            available=round(self.available * ratio),
            sections=[
                {**section, "tokens": round(section["tokens"] * ratio)} for section in self.sections
            ],
        )


def eviction_point(path_tokens: int, budget: int) -> int:
    """Tokens from the root after which kept history begins; lines that start earlier go.

    Lines wholly after the point take at most `budget`. While a chat grows, the point stays where
    it is for many turns and then moves on by a step, so that the prompt's beginning stays the same
    and a provider's prefix cache keeps hitting; no state is needed for it.

    The step is the largest power of two within a tenth of the budget. Powers of two, and the second
    candidate, make it monotone: a larger budget never begins later. (With a tenth itself, two
    budgets one token apart have steps that are no multiples of each other, and the larger one can
    keep less.)

    Args:
        path_tokens: Tokens of the whole path, from the root to its leaf.
        budget: Tokens that history may take.
    """
    if path_tokens <= budget:
        return 0
    step = step_of(budget)
    # Just above a power of two the step doubles, and the coarser grid may lie further on than the
    # finer one would for the smaller budget: whichever keeps more is taken.
    finer = max(1, step // 2)
    return min(
        _round_up(path_tokens - budget, step),
        _round_up(path_tokens - min(budget, STEP_PARTS * step), finer),
    )


def step_of(budget: int) -> int:
    """Tokens by which the beginning of kept history moves on at a time, at most."""
    return 1 << max(0, (budget // STEP_PARTS).bit_length() - 1)


def joined(begin: int, *, summarised: int, path_tokens: int, most: int) -> int | None:
    """Where kept history begins so that no line is missing between a summary and it.

    Args:
        begin: Tokens from the root after which it begins by its own budget.
        summarised: Tokens from the root that the summary covers.
        path_tokens: Tokens of the whole path.
        most: Tokens that history may take where it has to reach further back.

    Returns:
        Tokens from the root; None where the summary can't be reached.
    """
    if begin <= summarised:
        return begin
    return summarised if path_tokens - summarised <= most else None


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


class Sized(Protocol):
    """Anything that takes tokens."""

    @property
    def tokens(self) -> int:
        """What it takes."""
        ...


T = TypeVar("T")
SizedT = TypeVar("SizedT", bound=Sized)


def fill(ranked: Iterable[SizedT], budget: int) -> tuple[list[SizedT], list[SizedT]]:
    """Take by rank what fits: (taken, passed over), both in the order given.

    What does not fit is passed over and the next smaller one tried.
    """
    taken: list[SizedT] = []
    passed: list[SizedT] = []
    for each in ranked:
        if each.tokens <= budget:
            budget -= each.tokens
            taken.append(each)
        else:
            passed.append(each)
    return taken, passed


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages `start` to `stop` (exclusive) of the kept history are left out."""

    start: int
    stop: int

    @property
    def count(self) -> int:
        """How many messages are left out."""
        return self.stop - self.start

    def leave_out(self, messages: Sequence[T], begin: int, end: int) -> Sequence[T]:
        """Messages `begin` to `end` (exclusive), without those in the gap."""
        if end <= self.start or begin >= self.stop:
            return messages[begin:end]
        return [*messages[begin : self.start], *messages[self.stop : end]]


def middle_out(
    tokens: Sequence[int],
    is_turn_start: Sequence[bool],
    *,
    excess: int,
    gap_tokens: int,
    min_tail: int,
) -> Gap | None:
    """The smallest gap after the first message that frees `excess` tokens; None if none does.

    Whole turns go first, from just after the first message on, as long as `min_tail` messages stay
    at the end; then the tail shrinks message by message, oldest first, to the last two.

    Args:
        tokens: Of each kept message, oldest first.
        is_turn_start: Whether each message begins a turn (is the user's).
        excess: How many tokens must go.
        gap_tokens: What the line that stands in the gap takes.
        min_tail: Messages at the end that whole turns may not reach into.
    """
    count = len(tokens)
    tail = max(count - min_tail, 1)
    last_exchange = max(count - 2, 1)
    freed = 0
    for stop in range(2, last_exchange + 1):
        freed += tokens[stop - 1]
        between_turns = stop >= tail or is_turn_start[stop]
        if between_turns and freed - gap_tokens >= excess:
            return Gap(1, stop)
    return None
