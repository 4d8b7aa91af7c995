"""The lines that history may take, and a summary that they follow on from without a gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from backend.chats.repository import StoredLines
from backend.context.assembly import Counter, History, Item, LeftOut, Plan, plan
from backend.context.budget import Budget, eviction_point, joined
from backend.context.errors import ContextOverflowError
from backend.reasons import Reason, ReasonKind

SUMMARY = "summary"
"""The kind of the section that a summary is."""


class Read(Protocol):
    """What was read for a prompt, as far as its history goes; see `composing.Material`."""

    @property
    def budget(self) -> Budget:
        """In counted tokens."""
        ...

    @property
    def scale(self) -> float:
        """Makes stored tokens counted ones."""
        ...

    @property
    def widest(self) -> int:
        """Stored tokens that the lines were read for."""
        ...

    @property
    def path_tokens(self) -> int:
        """Stored tokens of the whole path."""
        ...

    @property
    def summarised(self) -> int | None:
        """Stored tokens from the root that a summary covers; None without one."""
        ...

    @property
    def lines(self) -> StoredLines:
        """Oldest first, down to the leaf."""
        ...

    @property
    def history(self) -> History:
        """The same, unsealed."""
        ...


def reading_from(
    begin: int, *, summarised: int | None, path_tokens: int, budget: Budget, scale: float
) -> int:
    """Tokens from the root behind which lines are read: as far back as a summary may need them."""
    if summarised is None:
        return begin
    most = math.floor(budget.for_reaching(0) / scale)
    reached = joined(begin, summarised=summarised, path_tokens=path_tokens, most=most)
    return begin if reached is None else reached


def fit(
    read: Read, items: Sequence[Item], *, count: Counter, reserved: int = 0
) -> tuple[Plan, History, list[LeftOut]]:
    """What is always sent, counted, and the lines beside it; and the summary, if it is left out.

    The lines leave `reserved` tokens to others, unless they have to reach back to a summary. A
    summary that the kept lines do not follow on from is left out, as is one that would leave no
    room for what has to be sent.

    Raises:
        ContextOverflowError: What is always sent is over the budget by itself.
    """
    summary = next((item for item in items if item.kind == SUMMARY), None)
    if summary is None or read.summarised is None:
        fixed = plan(items, budget=read.budget, count=count)
        return fixed, _fitting(read, fixed, reserved), []
    kind: ReasonKind = "summary_no_room"
    try:
        fixed = plan(items, budget=read.budget, count=count)
    except ContextOverflowError:
        pass
    else:
        history = _following(read, fixed, read.summarised, reserved)
        if history is not None:
            return fixed, history, []
        kind = "summary_too_old"
    fixed = plan([item for item in items if item is not summary], budget=read.budget, count=count)
    left_out = LeftOut(
        kind=summary.kind,
        title=summary.title,
        tokens=count(summary.text),
        reasons=[Reason(kind, count=each.count) for each in summary.reasons],
        source_id=summary.source_id,
    )
    return fixed, _fitting(read, fixed, reserved), [left_out]


def _fitting(read: Read, fixed: Plan, reserved: int) -> History:
    """The lines that history may take beside what is always sent."""
    fits = math.floor(read.budget.for_history(fixed.fixed + reserved) / read.scale)
    if fits >= read.widest and read.summarised is None:
        return read.history
    return _behind(read, eviction_point(read.path_tokens, min(fits, read.widest)))


def _following(read: Read, fixed: Plan, summarised: int, reserved: int) -> History | None:
    """The same, reaching back to where a summary ends; None where there is no room for that."""
    fits = math.floor(read.budget.for_history(fixed.fixed + reserved) / read.scale)
    begin = eviction_point(read.path_tokens, min(fits, read.widest))
    room = read.budget.for_reaching(fixed.fixed)
    most = math.floor(room / read.scale)
    start = joined(begin, summarised=summarised, path_tokens=read.path_tokens, most=most)
    if start is None:
        return None
    history = _behind(read, start)
    # Stored counts may be estimates: what they let through has to fit as it is counted.
    return history if start == begin or sum(history.tokens) <= room else None


def _behind(read: Read, begin: int) -> History:
    """The lines that stand wholly behind `begin` tokens from the root."""
    history = read.history
    start = read.path_tokens - sum(read.lines.tokens)
    dropped = 0
    for tokens in read.lines.tokens:
        if start >= begin:
            break
        start += tokens
        dropped += 1
    if not dropped:
        return history
    return replace(
        history,
        messages=history.messages[dropped:],
        tokens=history.tokens[dropped:],
        positions=history.positions[dropped:],
    )
