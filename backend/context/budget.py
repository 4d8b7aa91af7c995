"""Token budgets: the size of a prompt and the start of the kept history."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from backend.errors import AppError

STEP_PARTS = 10
"""The start of kept history moves by at most a tenth of its budget at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Token counts of the model. `total` is prompt and reply together."""

    total: int
    history: int
    retrieval: int
    reply_reserve: int
    min_tail_messages: int

    @property
    def prompt(self) -> int:
        """Maximum tokens of the prompt."""
        return self.total - self.reply_reserve

    def convert(self, ratio: float) -> Budget:
        """Convert to tokens of another count. The model makes `ratio` of its tokens from each."""
        return replace(
            self,
            total=math.floor(self.total / ratio),
            history=math.floor(self.history / ratio),
            retrieval=math.floor(self.retrieval / ratio),
            reply_reserve=math.ceil(self.reply_reserve / ratio),
        )

    def within(self, window: int) -> Budget:
        """Reduce the budget to a model with a smaller window.

        The reply keeps at most a quarter of the window. History and retrieval share the rest in
        proportion to their budgets. History gets at least half of it if its budget allows.
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
        """Return the tokens for recent history next to `fixed` tokens that are always sent."""
        return max(0, min(self.history, self.prompt - fixed))

    def for_reaching(self, fixed: int) -> int:
        """Return the tokens for history that must reach a summary. Includes retrieval's part."""
        return max(0, min(self.history + self.retrieval, self.prompt - fixed))

    def for_retrieval(self, fixed: int, history: int) -> int:
        """Return the tokens for retrieved lore and memory after history has taken its part."""
        return max(0, min(self.retrieval, self.prompt - fixed - history))


class ContextOverflowError(AppError):
    """The required parts of the prompt exceed the window. Nothing was stored.

    `sections` lists the parts as `{kind, title, tokens}`.
    """

    status, slug, title = 422, "context-overflow", "The message does not fit the context window"

    def __init__(self, *, needed: int, available: int, sections: list[dict[str, Any]]) -> None:
        super().__init__(
            f"{needed:,} tokens are needed and {available:,} are left for the prompt. Shorten one "
            "of the sections below, or raise the budget.",
            extra={"needed": needed, "available": available, "sections": sections},
        )
        self.needed, self.available, self.sections = needed, available, sections

    def scale(self, ratio: float) -> ContextOverflowError:
        """Convert to other tokens, `ratio` of them for each of these."""
        return ContextOverflowError(
            needed=round(self.needed * ratio),
            available=round(self.available * ratio),
            sections=[
                {**section, "tokens": round(section["tokens"] * ratio)} for section in self.sections
            ],
        )


def find_eviction_point(path_tokens: int, budget: int) -> int:
    """Return the tokens from the root after which kept history begins.

    Messages that start earlier are evicted. The messages after the point take at most `budget`.
    While a chat grows, the point stays the same for many turns and then moves by a step. So the
    start of the prompt is stable and providers' prefix caches hit. This needs no stored state.

    The step is the largest power of two within a tenth of the budget. Powers of two and the second
    candidate make the result monotonic: a larger budget never begins later. With exact tenths, two
    budgets one token apart could have steps that are not multiples of each other, and the larger
    one could keep less.

    Args:
        path_tokens: Tokens of the whole path, from the root to its leaf.
        budget: Tokens for history.
    """
    if path_tokens <= budget:
        return 0
    step = compute_step(budget)
    # The step doubles just above a power of two. There the coarser grid may evict more than the
    # finer one would for a smaller budget. The candidate that keeps more is used.
    finer = max(1, step // 2)
    return min(
        _round_up(path_tokens - budget, step),
        _round_up(path_tokens - min(budget, STEP_PARTS * step), finer),
    )


def compute_step(budget: int) -> int:
    """Return the largest step by which the start of kept history moves."""
    return 1 << max(0, (budget // STEP_PARTS).bit_length() - 1)


def find_joined_start(begin: int, *, summarised: int, path_tokens: int, most: int) -> int | None:
    """Return the start of kept history that leaves no gap after a summary.

    Args:
        begin: Tokens from the root after which history begins by its own budget.
        summarised: Tokens from the root that the summary covers.
        path_tokens: Tokens of the whole path.
        most: Tokens of history if it must reach further back.

    Returns:
        Tokens from the root, or None if the summary cannot be reached.
    """
    if begin <= summarised:
        return begin
    return summarised if path_tokens - summarised <= most else None


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


class Sized(Protocol):
    """An object with a token count."""

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        ...


T = TypeVar("T")
SizedT = TypeVar("SizedT", bound=Sized)


def fill(ranked: Iterable[SizedT], budget: int) -> tuple[list[SizedT], list[SizedT]]:
    """Take what fits, in order of rank. Return the items taken and the items skipped.

    If an item does not fit, the next one is tried.
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
    """Range of kept messages that is left out. `stop` is exclusive."""

    start: int
    stop: int

    @property
    def count(self) -> int:
        """The number of messages left out."""
        return self.stop - self.start

    def leave_out(self, messages: Sequence[T], begin: int, end: int) -> Sequence[T]:
        """Return messages `begin` to `end` (exclusive) without those in the gap."""
        if end <= self.start or begin >= self.stop:
            return messages[begin:end]
        return [*messages[begin : self.start], *messages[self.stop : end]]


def find_middle_gap(
    tokens: Sequence[int],
    is_turn_start: Sequence[bool],
    *,
    excess: int,
    gap_tokens: int,
    min_tail: int,
) -> Gap | None:
    """Return the smallest gap after the first message that frees `excess` tokens, or None.

    Whole turns are removed first, starting after the first message, while `min_tail` messages
    remain at the end. Then the tail is removed message by message, oldest first, down to the last
    two.

    Args:
        tokens: Tokens of each kept message, oldest first.
        is_turn_start: True for each message of the user, which begins a turn.
        excess: Tokens to free.
        gap_tokens: Tokens of the line that replaces the gap.
        min_tail: Messages at the end that are not removed as whole turns.
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
