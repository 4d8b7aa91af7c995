"""The items of a prompt and their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from backend.context.budget import Gap
from backend.core.reasons import Reason
from backend.generation.model import PromptMessage, Role

SEPARATOR = "\n\n"
"""Separates the sections of the head."""

Place = Literal["head", "depth", "memory", "line", "tail", "outlet"]
"""Position of an item. An item of an `outlet` is counted with the item that includes it."""


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
    its position. Before the layout, it counts only the text, 0 if not counted.
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
    tail = [PromptMessage(item.role, item.text) for item in (*line, *last)]
    tail += build_messages(items, "tail")
    between = [*remembered, *kept] if memory_first else [*kept, *remembered]
    stays = moving + sum(len(inserted[place]) for place in inserted if place < moving)
    if memory_first and remembered:
        stays = 0
    return [*head, *between, *tail], len(head) + stays


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
    """Return items of the head or tail as messages. Neighbours of one role are merged."""
    found: list[tuple[Role, list[str]]] = []
    for item in items:
        if item.place == place:
            if not found or item.starts or found[-1][0] != item.role:
                found.append((item.role, []))
            found[-1][1].append(item.text)
    return [PromptMessage(role, SEPARATOR.join(texts)) for role, texts in found]
