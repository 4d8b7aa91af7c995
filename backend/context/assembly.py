"""Putting a prompt together: fixed sections, history, what was retrieved, within the budget.

Pure. The order is that of the sections; what moves from turn to turn stands last, so that
providers' prefix caches keep hitting:

    head        one system message: system prompt, persona, character, examples, summary
    history     oldest kept message first; items with a depth stand between its messages
    memory      what was retrieved, and activated lore that has no other place (before the history
                where the chat's settings say so)
    line        the user's line, alone (or what is asked of the model in its place)
    tail        what follows it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal
from uuid import UUID

from backend.context.budget import Budget, ContextOverflowError, Gap, fill, middle_out
from backend.generation.model import PromptMessage, Role
from backend.generation.tokens import MESSAGE_OVERHEAD
from backend.reasons import Reason

ABSURD = 8
"""Characters a token that no text has over a whole prompt: English has 4 to 5."""

QUICK = 500_000
"""So many characters are counted in no time, whatever the budget."""

SEPARATOR = "\n\n"
"""Between the sections of the head."""

Place = Literal["head", "depth", "memory", "line", "tail", "outlet"]
"""Where an item stands; in an `outlet` it stands inside another item, which counts it."""


Counter = Callable[[str], int]
"""Counts the tokens of a text by itself as the model does, as nearly as is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that is not in the prompt, and why."""

    kind: str
    title: str
    tokens: int
    reasons: Sequence[Reason]
    source_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One piece of a prompt, and why it is there.

    `source_id` is the row it came from. `depth` counts messages from the end, the user's line
    included: 0 stands after it; with `from_start` it counts from the first kept message. What
    `joins` stands in one message with the item before it, on a line of its own. `order`
    sorts what stands together: lore by its insertion order, memories by their time. `rank` is where
    a search has it, from 1; 0 is what somebody asked for. `tokens` is what it takes where it
    stands; before that, of its text alone, 0 where it was not counted.
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
    order: int = 0
    rank: int = 0
    outlet: str = ""
    tokens: int = 0

    def left_out(self, *reasons: Reason) -> LeftOut:
        """What is said of it if it is not in the prompt."""
        return LeftOut(
            kind=self.kind,
            title=self.title,
            tokens=self.tokens,
            reasons=list(reasons),
            source_id=self.source_id,
        )


@dataclass(frozen=True, slots=True)
class History:
    """Kept lines of the path, oldest first: three lists of one length.

    Three lists and not one of objects, for a full window holds thousands of lines and nothing looks
    at them one by one.
    """

    messages: list[PromptMessage] = field(default_factory=list[PromptMessage])
    tokens: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The fixed part of a prompt, counted: what history may take follows from it."""

    head: str
    items: Sequence[Item]
    fixed: int
    budget: Budget

    @property
    def history_budget(self) -> int:
        """Tokens that recent history may take."""
        return self.budget.for_history(self.fixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A prompt as it will be sent, and what it is made of.

    `gap` counts in the history that was handed in. `retrieved` holds what was taken, by rank. The
    first `stable` messages begin the next turn's prompt as well, until history is evicted.
    """

    messages: list[PromptMessage]
    stable: int
    items: Sequence[Item]
    retrieved: Sequence[Item]
    history: History
    gap: Gap | None
    left_out: Sequence[LeftOut]
    fixed_tokens: int
    history_tokens: int
    retrieved_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.fixed_tokens + self.history_tokens + self.retrieved_tokens


def plan(items: Sequence[Item], *, budget: Budget, count: Counter) -> Plan:
    """Count what is always sent.

    Raises:
        ContextOverflowError: It is over the budget by itself; the error itemises it.
    """
    characters = sum(len(item.text) for item in items)
    if characters > max(ABSURD * budget.prompt, QUICK):
        # Not even counted: that would take seconds, and no text has so few tokens.
        sized = [replace(item, tokens=len(item.text) // 4) for item in items]
        raise _overflow(characters // 4, budget, sized)
    counted = [_counted(item, count) for item in items]
    head = SEPARATOR.join(item.text for item in counted if item.place == "head")
    fixed = sum(item.tokens for item in counted if item.place not in {"head", "outlet"})
    if head:
        fixed += count(head) + MESSAGE_OVERHEAD
    if fixed > budget.prompt:
        raise _overflow(fixed, budget, counted)
    return Plan(head=head, items=counted, fixed=fixed, budget=budget)


def assemble(
    plan: Plan,
    history: History,
    *,
    count: Counter,
    render_omitted: Callable[[int], str],
    retrieved: Sequence[Item] = (),
    render_memory: Callable[[Sequence[Item]], str] = lambda _: "",
    memory_first: bool = False,
) -> Assembled:
    """Put the prompt together; truncate it as a last resort.

    History that was fitted to `plan.history_budget` needs no truncation. It happens where counts
    turn out larger than they were estimated: retrieved items go first, lowest rank first; then the
    middle of the history; then its tail but for the last exchange.

    Args:
        plan: The fixed part.
        history: Kept lines, their tokens as the model counts them.
        count: Counts what is rendered here.
        render_omitted: The line that stands for so many messages.
        retrieved: By rank, best first, each with its tokens inside the memory section.
        render_memory: The memory section for some of them.
        memory_first: Put the memory before the history.

    Raises:
        ContextOverflowError: Even so it does not fit.
    """
    budget = plan.budget
    history_tokens = sum(history.tokens)
    room = budget.for_retrieval(plan.fixed, history_tokens)
    taken, passed = fill(retrieved, room)
    unused = max(0, room - sum(item.tokens for item in taken))
    left_out = [item.left_out(Reason("budget_left", count=unused)) for item in passed]

    # Each item has its share of the wrapper in its tokens, or nearly so.
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
        gap = middle_out(
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
        plan.head,
        plan.items,
        history.messages,
        gap=gap,
        gap_line=gap_line,
        memory=memory,
        memory_first=memory_first,
    )
    return Assembled(
        messages=messages,
        stable=stable,
        items=plan.items,
        retrieved=taken,
        history=history,
        gap=gap,
        left_out=left_out,
        fixed_tokens=plan.fixed,
        history_tokens=history_tokens,
        retrieved_tokens=memory_tokens,
    )


def _counted(item: Item, count: Counter) -> Item:
    # In the head an item shares its message with others; elsewhere it is one.
    overhead = 0 if item.place in {"head", "outlet"} else MESSAGE_OVERHEAD
    return replace(item, tokens=(item.tokens or count(item.text)) + overhead)


def layout(
    head_text: str,
    items: Sequence[Item],
    messages: Sequence[PromptMessage],
    *,
    gap: Gap | None,
    gap_line: str,
    memory: str,
    memory_first: bool,
) -> tuple[list[PromptMessage], int]:
    """The prompt's messages in order, from its parts: nothing is counted or left out here.

    Args:
        head_text: The head, joined; empty for none.
        items: The fixed items; those of the head are passed over.
        messages: The kept history.
        gap: Which of `messages` are left out.
        gap_line: What stands for them.
        memory: The memory section; empty for none.
        memory_first: It stands before the history.

    Returns:
        The messages, and how many of the first ones are there to stay: head and history up to what
        moves from turn to turn.
    """
    head = [PromptMessage("system", head_text)] if head_text else []
    remembered = [PromptMessage("system", memory)] if memory else []
    line = [item for item in items if item.place == "line"]
    after = [item for item in items if item.place == "tail"]
    # Where the chat is shorter than several depths, what is further from where they count stands
    # further from it.
    deep = sorted(
        _joined(item for item in items if item.place == "depth"),
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
            inserted[place].append(PromptMessage(item.role, item.text))
            if not item.from_start:
                moving = min(moving, place)
    if gap:
        inserted[gap.stop].insert(0, PromptMessage("system", gap_line))

    kept: list[PromptMessage] = []
    for begin, end in pairwise(sorted({0, len(messages), *inserted})):
        kept += inserted.get(begin, [])
        kept += gap.leave_out(messages, begin, end) if gap else messages[begin:end]
    kept += inserted.get(len(messages), [])
    tail = [PromptMessage(item.role, item.text) for item in (*line, *last, *after)]
    between = [*remembered, *kept] if memory_first else [*kept, *remembered]
    stays = moving + sum(len(inserted[place]) for place in inserted if place < moving)
    if memory_first and remembered:
        stays = 0
    return [*head, *between, *tail], len(head) + stays


def _joined(items: Iterable[Item]) -> list[Item]:
    """With the text of those that join others in these."""
    found: list[Item] = []
    for item in items:
        if item.joins and found:
            found[-1] = replace(found[-1], text=f"{found[-1].text}\n{item.text}")
        else:
            found.append(item)
    return found


def _overflow(
    needed: int, budget: Budget, items: Sequence[Item], *, history: int = 0
) -> ContextOverflowError:
    sections = [{"kind": item.kind, "title": item.title, "tokens": item.tokens} for item in items]
    if history:
        sections.append({"kind": "history", "title": "History", "tokens": history})
    return ContextOverflowError(needed=needed, available=budget.prompt, sections=sections)
