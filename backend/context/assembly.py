"""Assemble a prompt from fixed sections, history and retrieved items within a budget.

Pure functions. Parts that change every turn come last, so that providers' prefix caches keep
hitting. The sections in order:

    head        one system message: system prompt, persona, character, examples, summary; with a
                preset also of other roles, and several
    history     oldest kept message first; items with a depth are inserted between its messages
    memory      retrieved items and activated lore without another position (before the history if
                the chat's settings say so)
    line        only the user's message, or the request that replaces it
    tail        everything after that message
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from backend.context.budget import Budget, ContextOverflowError, Gap, fill, find_middle_gap
from backend.core.reasons import Reason
from backend.generation.catalogue import MessageShape
from backend.generation.message_shapes import count_shape, limit_shape_tokens
from backend.generation.model import PromptMessage
from backend.generation.tokens import MESSAGE_OVERHEAD

MAX_CHARACTERS_PER_TOKEN = 8
"""Characters per token that no whole prompt reaches: English has 4 to 5."""

QUICK_CHARACTERS = 500_000
"""Characters that are counted quickly, regardless of the budget."""

_RENDERED_MESSAGES = 2
"""System messages rendered here: the memory, and the line for omitted messages."""

Counter = Callable[[str], int]
"""Returns the number of tokens of a single text, as close to the model's count as possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The counted fixed part of a prompt, which determines the tokens for history.

    `fixed` includes `shape_limit`, the maximum overhead of the message shape.
    """

    items: Sequence[PromptItem]
    fixed: int
    budget: Budget
    shape: MessageShape = "lenient"
    shape_limit: int = 0

    @property
    def history_budget(self) -> int:
        """Tokens for recent history."""
        return self.budget.for_history(self.fixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledPrompt:
    """A prompt ready to be sent, and its parts.

    `gap` refers to the history passed in. `retrieved` contains the items that fit, by rank. The
    first `stable` messages also begin the next turn's prompt, until history is evicted. `messages`
    have no particular shape. `shape_tokens` is the overhead of `shape`.
    """

    messages: list[PromptMessage]
    stable: int
    items: Sequence[PromptItem]
    retrieved: Sequence[PromptItem]
    history: History
    gap: Gap | None
    left_out: Sequence[LeftOut]
    fixed_tokens: int
    history_tokens: int
    retrieved_tokens: int
    shape: MessageShape = "lenient"
    shape_tokens: int = 0

    def with_shape(self, shape: MessageShape, count: Counter) -> AssembledPrompt:
        """Return the same prompt with the overhead of another message shape."""
        tokens = count_shape(self.messages, shape, count)
        fixed = self.fixed_tokens - self.shape_tokens + tokens
        return dataclasses.replace(self, shape=shape, shape_tokens=tokens, fixed_tokens=fixed)

    @property
    def tokens(self) -> int:
        return self.fixed_tokens + self.history_tokens + self.retrieved_tokens


def plan(
    items: Sequence[PromptItem], *, budget: Budget, count: Counter, shape: MessageShape = "lenient"
) -> Plan:
    """Count the parts that are always sent, in the message shape used.

    Raises:
        ContextOverflowError: If they exceed the budget. The error lists the parts.
    """
    characters = sum(len(item.text) for item in items)
    if characters > max(MAX_CHARACTERS_PER_TOKEN * budget.prompt, QUICK_CHARACTERS):
        # Not counted, because that would take seconds and the result is certain.
        sized = [replace(item, tokens=len(item.text) // 4) for item in items]
        raise _overflow(characters // 4, budget, sized)
    counted = [_count_item(item, count) for item in items]
    fixed = sum(item.tokens for item in counted if item.place not in {"head", "outlet"})
    head = build_messages(counted, "head")
    for message in head:
        fixed += count(message.text) + MESSAGE_OVERHEAD
    system = sum(item.role == "system" and item.place not in {"head", "outlet"} for item in counted)
    shape_limit = limit_shape_tokens(system + len(head) + _RENDERED_MESSAGES, shape, count)
    fixed += shape_limit
    if fixed > budget.prompt:
        raise _overflow(fixed, budget, counted)
    return Plan(items=counted, fixed=fixed, budget=budget, shape=shape, shape_limit=shape_limit)


def assemble(
    plan: Plan,
    history: History,
    *,
    count: Counter,
    render_omitted: Callable[[int], str],
    retrieved: Sequence[PromptItem] = (),
    render_memory: Callable[[Sequence[PromptItem]], str] = lambda _: "",
    memory_first: bool = False,
) -> AssembledPrompt:
    """Assemble the prompt. Truncate it as a last resort.

    History that fits `plan.history_budget` needs no truncation. It happens if counts exceed their
    estimates. Retrieved items are dropped first, lowest rank first, then the middle of the history,
    then its tail except for the last exchange.

    Args:
        plan: The fixed part.
        history: Kept messages with token counts of the model.
        count: Counts the texts that are rendered here.
        render_omitted: Returns the line for a number of omitted messages.
        retrieved: Retrieved items, best first, with their tokens in the memory section.
        render_memory: Returns the memory section for some of them.
        memory_first: Put the memory before the history.

    Raises:
        ContextOverflowError: If the prompt still does not fit.
    """
    budget = plan.budget
    history_tokens = sum(history.tokens)
    room = budget.for_retrieval(plan.fixed, history_tokens)
    taken, passed = fill(retrieved, room)
    unused = max(0, room - sum(item.tokens for item in taken))
    left_out = [item.left_out(Reason("budget_left", count=unused)) for item in passed]

    # The tokens of each item include approximately its share of the wrapper.
    while True:
        memory = render_memory(taken) if taken else ""
        memory_tokens = count(memory) + MESSAGE_OVERHEAD if memory else 0
        if memory_tokens <= room or not taken:
            break
        left_out.append(taken.pop().left_out(Reason("truncated")))

    gap: Gap | None = None
    gap_line = ""
    excess = plan.fixed + history_tokens + memory_tokens - budget.prompt
    if excess > 0:
        widest = count(render_omitted(len(history.tokens))) + MESSAGE_OVERHEAD
        gap = find_middle_gap(
            history.tokens,
            [message.role == "user" for message in history.messages],
            excess=excess,
            gap_tokens=widest,
            min_tail=budget.min_tail_messages,
        )
        if gap is None:
            raise _overflow(plan.fixed + history_tokens, budget, plan.items, history=history_tokens)
        gap_line = render_omitted(gap.count)
        omitted = sum(history.tokens[gap.start : gap.stop])
        history_tokens += widest - omitted
        left_out.append(
            LeftOut(
                kind="history",
                title="1 message" if gap.count == 1 else f"{gap.count} messages",
                tokens=omitted,
                reasons=[Reason("truncated")],
            )
        )

    messages, stable = layout(
        plan.items,
        history.messages,
        gap=gap,
        gap_line=gap_line,
        memory=memory,
        memory_first=memory_first,
    )
    assembled = AssembledPrompt(
        messages=messages,
        stable=stable,
        items=plan.items,
        retrieved=taken,
        history=history,
        gap=gap,
        left_out=left_out,
        fixed_tokens=plan.fixed - plan.shape_limit,
        history_tokens=history_tokens,
        retrieved_tokens=memory_tokens,
    )
    return assembled.with_shape(plan.shape, count)


def _count_item(item: PromptItem, count: Counter) -> PromptItem:
    # Items of the head share a message. Elsewhere each item is one message.
    overhead = 0 if item.place in {"head", "outlet"} else MESSAGE_OVERHEAD
    return replace(item, tokens=(item.tokens or count(item.text)) + overhead)


def _overflow(
    needed: int, budget: Budget, items: Sequence[PromptItem], *, history: int = 0
) -> ContextOverflowError:
    sections = [{"kind": item.kind, "title": item.title, "tokens": item.tokens} for item in items]
    if history:
        sections.append({"kind": "history", "title": "History", "tokens": history})
    return ContextOverflowError(needed=needed, available=budget.prompt, sections=sections)
