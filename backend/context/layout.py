"""What a prompt is made of, and the order in which it stands there."""

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
"""Between the sections of the head."""

Place = Literal["head", "depth", "memory", "line", "tail", "outlet"]
"""Where an item stands; in an `outlet` it stands inside another item, which counts it."""


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


class Item(Struct, frozen=True, kw_only=True):
    """One piece of a prompt, and why it is there.

    `source_id` is the row it came from. `depth` counts messages from the end, the user's line
    included: 0 stands after it; with `from_start` it counts from the first kept message. What
    `joins` stands in one message with the item before it, on a line of its own. In head and tail,
    neighbours of one role are one message, unless one `starts` another. `block` is the title of the
    preset's block that it is of. `order`
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
    starts: bool = False
    block: str = ""
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
    thoughts: Mapping[int, int] = field(default_factory=dict[int, int])
    """Tokens of the thoughts that stand before a line, by its position; `tokens` has them, too."""
    marks: Mapping[int, str] = field(default_factory=dict[int, str])
    """The words before lines with a limited audience, by position; `tokens` has them, too."""


def layout(
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
        items: The fixed items.
        messages: The kept history.
        gap: Which of `messages` are left out.
        gap_line: What stands for them.
        memory: The memory section; empty for none.
        memory_first: It stands before the history.

    Returns:
        The messages, and how many of the first ones are there to stay: head and history up to what
        moves from turn to turn.
    """
    head = messages_of(items, "head")
    remembered = [PromptMessage("system", memory)] if memory else []
    line = [item for item in items if item.place == "line"]
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
    tail = [PromptMessage(item.role, item.text) for item in (*line, *last)]
    tail += messages_of(items, "tail")
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


def messages_of(items: Iterable[Item], place: Place) -> list[PromptMessage]:
    """Items of the head or the tail as messages: neighbours of one role are one."""
    found: list[tuple[Role, list[str]]] = []
    for item in items:
        if item.place == place:
            if not found or item.starts or found[-1][0] != item.role:
                found.append((item.role, []))
            found[-1][1].append(item.text)
    return [PromptMessage(role, SEPARATOR.join(texts)) for role, texts in found]
