"""Assemble a prompt from fixed sections, history and retrieved items within a budget.

Pure functions. Parts that change every turn come last, so that providers' prefix caches keep
hitting. The sections in order:

    head        one system message: system prompt, persona, character, examples, summary; with a
                preset also of other roles, and several; the system messages of a client
    history     oldest kept message first; items with a depth are inserted between its messages
    added       sections after the history of a client, so that its prompt keeps its beginning
    memory      retrieved items and activated lore without another position (before the history if
                the chat's settings say so)
    line        only the user's message, or the request that replaces it
    tail        everything after that message
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from backend.context.budget import Budget, ContextOverflowError, Gap, fill, find_middle_gap
from backend.core.reasons import Reason
from backend.generation.catalogue import MessageShape
from backend.generation.images import IMAGE_TOKENS, count_image_tokens
from backend.generation.message_shapes import count_shape, limit_shape_tokens
from backend.generation.model import PromptMessage, Role
from backend.generation.tokens import MESSAGE_OVERHEAD

SEPARATOR = "\n\n"
"""Separates the sections of the head."""

Place = Literal["head", "depth", "added", "memory", "line", "tail", "outlet"]
"""Position of an item. An item of an `outlet` is counted with the item that includes it."""

CLIENT_NOTE = "client_note"
"""The kind of a client's message among those of the history.

Its text or its place may change from turn to turn if it is a system message."""


class LeftOut(Struct, kw_only=True, omit_defaults=True):
    """Something that is not in the prompt, and the reasons: for programs, and as text.

    `reason` and `text` are not stored. They are added when a user looks at the record.
    """

    kind: str
    title: str
    tokens: int
    reasons: list[Reason] = []
    reason: str = ""
    source_id: UUID | None = None
    text: str | None = None


class PromptItem(Struct, frozen=True, kw_only=True):
    """One piece of a prompt and the reasons for it.

    `source_id` is the row it came from. `depth` counts messages from the end, including the user's
    line, so 0 comes after it. If `from_start` is set, it counts from the first kept message. If
    `joins` is set, the item shares a message with the previous item, on a separate line. In head
    and tail, neighbours of one role share a message, unless `starts` is set. `block` is the title
    of its preset block. `order` sorts items at one position: lore by insertion order, memories by
    time. `rank` is the search rank from 1, or 0 for a requested item. `tokens` counts the item at
    its position. Before the layout, it counts only the text, 0 if not counted. `message` is sent as
    it is: the message of a client, or a line with images.
    """

    kind: str
    title: str
    text: str
    place: Place
    reasons: Sequence[Reason]
    role: Role = "system"
    source_id: UUID | None = None
    depth: int = 0
    from_start: bool = False
    joins: bool = False
    starts: bool = False
    block: str = ""
    order: int = 0
    rank: int = 0
    outlet: str = ""
    tokens: int = 0
    message: PromptMessage | None = None

    @property
    def images(self) -> int:
        """The number of images in the message."""
        return len(self.message.images) if self.message else 0

    def make_message(self) -> PromptMessage:
        return self.message or PromptMessage(self.role, self.text)

    def left_out(self, *reasons: Reason) -> LeftOut:
        return LeftOut(
            kind=self.kind,
            title=self.title,
            tokens=self.tokens,
            reasons=list(reasons),
            source_id=self.source_id,
        )


@dataclass(frozen=True, slots=True)
class History:
    """Kept messages of the path, oldest first, in three lists of equal length.

    Separate lists instead of objects, because a full window contains thousands of messages and no
    code needs them one by one.
    """

    messages: list[PromptMessage] = field(default_factory=list[PromptMessage])
    tokens: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])
    thoughts: Mapping[int, int] = field(default_factory=dict[int, int])
    """Tokens of the reasoning before a message, by position. Included in `tokens`."""
    marks: Mapping[int, str] = field(default_factory=dict[int, str])
    """Markers before messages with a limited audience, by position. Included in `tokens`."""
    images: Mapping[int, int] = field(default_factory=dict[int, int])
    """The number of images of a stored message, by position. Their tokens are in `tokens`."""
    changed: Mapping[int, PromptMessage] = field(default_factory=dict[int, PromptMessage])
    """Messages of a client that differ from the stored ones, by position."""
    has_names: bool = True
    """False if a client sends messages without names that Talekeeper would send with them."""

    @property
    def image_tokens(self) -> int:
        """The tokens of the images of stored messages."""
        return IMAGE_TOKENS * sum(self.images.values())


def layout(
    items: Sequence[PromptItem],
    messages: Sequence[PromptMessage],
    *,
    gap: Gap | None,
    gap_line: str,
    memory: str,
    memory_first: bool,
) -> tuple[list[PromptMessage], int]:
    """Return the prompt's messages in order. Counting and truncation happen elsewhere.

    Args:
        items: The fixed items.
        messages: The kept history.
        gap: The range of `messages` that is left out.
        gap_line: The text that replaces them.
        memory: The memory section, or an empty string.
        memory_first: True to put the memory before the history.

    Returns:
        The messages, and the number of stable messages at the start: head and history up to the
            first
        part that changes every turn.
    """
    head = build_messages(items, "head")
    remembered = [PromptMessage("system", memory)] if memory else []
    line = [item for item in items if item.place == "line"]
    # If the chat is shorter than several depths, items with a larger depth come first.
    deep = sorted(
        _join_items(item for item in items if item.place == "depth"),
        key=lambda item: item.depth if item.from_start else -item.depth,
    )
    last = [item for item in deep if item.depth < len(line) and not item.from_start]

    inserted: defaultdict[int, list[PromptMessage]] = defaultdict(list)
    moving = gap.start if gap else len(messages)
    for item in deep:
        if item.from_start or item.depth >= len(line):
            place = (
                min(len(messages), item.depth)
                if item.from_start
                else max(0, len(messages) - (item.depth - len(line)))
            )
            if gap and gap.start <= place < gap.stop:
                place = gap.stop
            inserted[place].append(item.make_message())
            if not item.from_start or (place and _may_change(item)):
                moving = min(moving, place)
    if gap:
        inserted[gap.stop].insert(0, PromptMessage("system", gap_line))

    kept: list[PromptMessage] = []
    for begin, end in pairwise(sorted({0, len(messages), *inserted})):
        kept += inserted.get(begin, [])
        kept += gap.leave_out(messages, begin, end) if gap else messages[begin:end]
    kept += inserted.get(len(messages), [])
    kept += build_messages(items, "added")
    tail = [item.make_message() for item in (*line, *last)]
    tail += build_messages(items, "tail")
    between = [*remembered, *kept] if memory_first else [*kept, *remembered]
    stays = moving + sum(len(inserted[place]) for place in inserted if place < moving)
    if memory_first and remembered:
        stays = 0
    return [*head, *between, *tail], len(head) + stays


def _may_change(item: PromptItem) -> bool:
    return item.kind == CLIENT_NOTE and item.role == "system"


def _join_items(items: Iterable[PromptItem]) -> list[PromptItem]:
    """Merge the text of items with `joins` into the previous item."""
    found: list[PromptItem] = []
    for item in items:
        if item.joins and found:
            found[-1] = replace(found[-1], text=f"{found[-1].text}\n{item.text}")
        else:
            found.append(item)
    return found


def build_messages(items: Iterable[PromptItem], place: Place) -> list[PromptMessage]:
    """Return the items of a place as messages. Neighbours of one role are merged."""
    found: list[list[PromptItem]] = []
    for item in items:
        if item.place == place:
            if not found or item.starts or found[-1][-1].role != item.role:
                found.append([])
            found[-1].append(item)
    return [
        merged[0].make_message()
        if len(merged) == 1
        else PromptMessage(merged[0].role, SEPARATOR.join(item.text for item in merged))
        for merged in found
    ]


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
        fixed += count(message.text) + MESSAGE_OVERHEAD + count_image_tokens(message)
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
    if item.message is not None:
        overhead += count_image_tokens(item.message)
    return replace(item, tokens=(item.tokens or count(item.text)) + overhead)


def _overflow(
    needed: int, budget: Budget, items: Sequence[PromptItem], *, history: int = 0
) -> ContextOverflowError:
    sections = [{"kind": item.kind, "title": item.title, "tokens": item.tokens} for item in items]
    if history:
        sections.append({"kind": "history", "title": "History", "tokens": history})
    return ContextOverflowError(needed=needed, available=budget.prompt, sections=sections)
