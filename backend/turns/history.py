"""The lines that history may take, and a summary that they follow on from without a gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from backend.accounts.identity import Identity
from backend.chats.counting import line_text
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT
from backend.context.assembly import Counter, History, Item, LeftOut, Plan, plan
from backend.context.budget import Budget, eviction_point, joined
from backend.context.errors import ContextOverflowError
from backend.generation.model import PromptMessage
from backend.reasons import Reason, ReasonKind
from backend.turns.load import HistoryStart, LoadedChat
from backend.turns.prompt_context import PromptContext
from backend.turns.rewriting import sent_texts

SUMMARY = "summary"
"""The kind of the section that a summary is."""


def start_for_summary(
    start: HistoryStart, loaded: LoadedChat, budget: Budget, scale: float
) -> HistoryStart:
    """From where lines are read: further back where the history has to follow on a summary."""
    if loaded.summary is None or loaded.target.leaf is None:
        return start
    begin = reading_from(
        start.from_sum,
        summarised=loaded.summary.path_tokens,
        path_tokens=loaded.path_tokens,
        budget=budget,
        scale=scale,
    )
    return replace(start, from_sum=begin)


def reading_from(
    begin: int, *, summarised: int, path_tokens: int, budget: Budget, scale: float
) -> int:
    """Tokens from the root behind which lines are read: as far back as a summary may need them."""
    most = math.floor(budget.for_reaching(0) / scale)
    reached = joined(begin, summarised=summarised, path_tokens=path_tokens, most=most)
    return begin if reached is None else reached


def open_history(identity: Identity, context: PromptContext) -> History:
    """The lines unsealed, as they are sent, with their tokens. CPU-bound."""
    lines, unit, scripts = context.lines, context.window.unit, context.loaded.scripts
    stored = identity.sealer.open_many(
        MESSAGE_CONTENT, zip(lines.ids, lines.sealed_contents, strict=True)
    )
    tokens = list(lines.tokens)
    texts = sent_texts(scripts, lines.roles, stored, has_line=context.line is not None)
    changed = [at for at, text in enumerate(texts) if text != stored[at]]
    if unit.names or context.window.is_estimated:
        authors = identity.sealer.open_many(
            MESSAGE_AUTHOR, zip(lines.ids, lines.sealed_authors, strict=True)
        )
        spoken = list(zip(authors, texts, strict=True))
        if context.window.is_estimated:
            tokens = unit.count_many(spoken)
            changed = []
        texts = [line_text(author, text, names=unit.names) for author, text in spoken]
    # The names, if they are sent, stand in the texts by now.
    unnamed = replace(unit, names=False)
    for at, count in zip(
        changed, unnamed.count_many([("", texts[at]) for at in changed]), strict=True
    ):
        tokens[at] = count
    return History(list(map(PromptMessage, lines.roles, texts)), tokens, list(lines.positions))


def fit(
    context: PromptContext, items: Sequence[Item], *, count: Counter, reserved: int = 0
) -> tuple[Plan, History, list[LeftOut]]:
    """What is always sent, counted, and the lines beside it; and the summary, if it is left out.

    The lines leave `reserved` tokens to others, unless they have to reach back to a summary. A
    summary that the kept lines do not follow on from is left out, as is one that would leave no
    room for what has to be sent.

    Raises:
        ContextOverflowError: What is always sent is over the budget by itself.
    """
    budget = context.window.budget
    summary = next((item for item in items if item.kind == SUMMARY), None)
    if summary is None or context.summarised is None:
        fixed = plan(items, budget=budget, count=count)
        return fixed, _fitting(context, fixed, reserved), []
    kind: ReasonKind = "summary_no_room"
    try:
        fixed = plan(items, budget=budget, count=count)
    except ContextOverflowError:
        pass
    else:
        history = _following(context, fixed, context.summarised, reserved)
        if history is not None:
            return fixed, history, []
        kind = "summary_too_old"
    fixed = plan([item for item in items if item is not summary], budget=budget, count=count)
    left_out = LeftOut(
        kind=summary.kind,
        title=summary.title,
        tokens=count(summary.text),
        reasons=[Reason(kind, count=each.count) for each in summary.reasons],
        source_id=summary.source_id,
    )
    return fixed, _fitting(context, fixed, reserved), [left_out]


def _fitting(context: PromptContext, fixed: Plan, reserved: int) -> History:
    """The lines that history may take beside what is always sent."""
    window = context.window
    fits = math.floor(window.budget.for_history(fixed.fixed + reserved) / window.scale)
    if fits >= context.widest and context.summarised is None:
        return context.history
    return _behind(context, eviction_point(context.path_tokens, min(fits, context.widest)))


def _following(
    context: PromptContext, fixed: Plan, summarised: int, reserved: int
) -> History | None:
    """The same, reaching back to where a summary ends; None where there is no room for that."""
    window = context.window
    fits = math.floor(window.budget.for_history(fixed.fixed + reserved) / window.scale)
    begin = eviction_point(context.path_tokens, min(fits, context.widest))
    room = window.budget.for_reaching(fixed.fixed)
    most = math.floor(room / window.scale)
    start = joined(begin, summarised=summarised, path_tokens=context.path_tokens, most=most)
    if start is None:
        return None
    history = _behind(context, start)
    # Stored counts may be estimates: what they let through has to fit as it is counted.
    return history if start == begin or sum(history.tokens) <= room else None


def _behind(context: PromptContext, begin: int) -> History:
    """The lines that stand wholly behind `begin` tokens from the root."""
    history, stored = context.history, context.lines.tokens
    start = context.path_tokens - sum(stored)
    dropped = 0
    for tokens in stored:
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
