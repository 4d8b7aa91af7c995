"""What a turn asks memory for, and how what is found stands in the prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from textwrap import shorten
from uuid import UUID

from backend.accounts.identity import Identity
from backend.accounts.settings import MemorySettings, SourceWeights, first_set
from backend.chronicles.events import told
from backend.chronicles.reading import StoryEvent
from backend.context.assembly import History, Item, LeftOut
from backend.database.base import now
from backend.generation.tokens import MESSAGE_OVERHEAD
from backend.lorebooks.activation.outcome import SemanticHit
from backend.memory.index.protocol import Kind, ScopePart
from backend.memory.search import Memory, SearchRequest
from backend.reasons import Reason
from backend.turns.load import EXCHANGE, HistoryStart, LoadedChat
from backend.turns.lore_placement import PlacedLore

MAX_ITEMS = 40
"""Memories in a prompt, where no setting says."""

PINNED = 0
"""The rank of what nobody looked for: real ones begin at 1."""

_SECTION_TAG = re.compile(
    r"<(?=\s*+(?:/\s*+)?(?:long_term_memory|lorebook_entries)\b)", re.IGNORECASE
)

_UNDATED = datetime.min.replace(tzinfo=UTC)

_TITLE = 60
"""Characters of an event's title, which it has for people who look at a prompt."""

_Time = tuple[datetime, int, UUID]
"""Where a memory stands among the others: its moment, its place in the chat, its id.

A line and its reply may be made in one moment.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What a search brought back for a turn: lore by its entries, the rest as items by rank.

    `positions` says of messages, by id, where in the chat they stand; of events whose
    messages are all of this chat, where the first of them stands.
    """

    lore: Mapping[UUID, SemanticHit]
    items: Sequence[tuple[int, Item]] = ()
    positions: Mapping[UUID, int] = field(default_factory=dict[UUID, int])
    left_out: Sequence[LeftOut] = ()


def ask_for(
    identity: Identity, loaded: LoadedChat, line: str | None, start: HistoryStart
) -> SearchRequest | None:
    """What to look for, and where; None where there is nothing to look in or for.

    A chat's own messages are looked through only where they lie before `start`.
    """
    chain: Sequence[MemorySettings] = (loaded.settings.memory, identity.settings.memory)
    limit = first_set(chain, "max_items", MAX_ITEMS)
    if not first_set(chain, "enabled", default=True) or limit == 0:
        return None
    weights: SourceWeights = first_set(chain, "weights", SourceWeights())
    parts: list[ScopePart] = []
    kinds: list[Kind] = []
    by_keys = {"keys", None} if loaded.lore.settings.mode == "keys" else {"keys"}
    books = [book.book_id for book in loaded.lore.books if book.modes - by_keys]
    if books and weights.lore:
        parts.append(ScopePart(containers=books, kinds=("lore",)))
        kinds.append("lore")
    if loaded.chat.chronicle_id is not None and weights.event:
        parts.append(ScopePart(containers=[loaded.chat.chronicle_id], kinds=("event",)))
        kinds.append("event")
    if start.first_position and weights.message:
        parts.append(
            ScopePart(
                containers=[loaded.chat.id],
                before_position=start.first_position,
                kinds=("message", "scene"),
            )
        )
        kinds.append("message")
    recent = [each.text for each in loaded.recent[-EXCHANGE:]]
    text = line or (recent.pop() if recent else "")
    if not parts or not text.strip():
        return None
    return SearchRequest(
        text=text,
        context="\n".join(recent),
        names=[loaded.speaker.name, *loaded.others, loaded.user_name],
        parts=parts,
        kinds=kinds,
        weights={"lore": weights.lore, "message": weights.message, "event": weights.event},
        limit=limit,
        min_relevance=first_set(chain, "min_relevance", None),
        now=now(),
        activates_lore=True,
    )


def remembered(
    memories: Sequence[Memory],
    *,
    chat_id: UUID,
    count: Callable[[str], int],
    pinned: Sequence[StoryEvent] = (),
) -> Remembered:
    """What was found, as a prompt takes it, and what is pinned.

    `chat_id` is whose turn it is; `count` counts tokens of a text.
    """
    lore: dict[UUID, SemanticHit] = {}
    items: list[tuple[int, Item]] = []
    times: list[_Time] = []
    positions: dict[UUID, int] = {}
    found = {memory.recalled.source_id: memory.reason for memory in memories}
    for event in pinned:
        reasons = [Reason("pinned"), *([found[event.id]] if event.id in found else [])]
        items.append((PINNED, sized(_pinned(event, reasons), count)))
        times.append((event.happened_at, event.place, event.id))
    standing = {event.id for event in pinned}
    for memory in memories:
        if memory.recalled.source_id in standing:
            continue
        recalled = memory.recalled
        if recalled.kind == "lore":
            lore[recalled.source_id] = SemanticHit(memory.score, memory.rank)
            continue
        items.append((memory.rank, sized(_item(memory), count)))
        times.append((recalled.said_at or _UNDATED, recalled.position, recalled.source_id))
        if recalled.chat_id == chat_id:
            positions[recalled.source_id] = recalled.position
    order = {time: number for number, time in enumerate(sorted(times))}
    ordered = [
        (rank, replace(item, order=order[time]))
        for (rank, item), time in zip(items, times, strict=True)
    ]
    return Remembered(lore=lore, items=ordered, positions=positions)


def beyond(found: Remembered, history: History) -> Remembered:
    """The same without the lines that the kept history holds, and what was drawn from them."""
    if not history.positions:
        return found
    first = history.positions[0]
    kept: list[tuple[int, Item]] = []
    left_out: list[LeftOut] = []
    for rank, item in found.items:
        position = found.positions.get(item.source_id) if item.source_id else None
        if position is None or position < first:
            kept.append((rank, item))
            continue
        left_out.append(
            LeftOut(
                kind=item.kind,
                title=item.title,
                tokens=item.tokens,
                reasons=[Reason("in_history")],
                source_id=item.source_id,
            )
        )
    return replace(found, items=kept, left_out=left_out)


def wanted(placed: PlacedLore, found: Remembered, *, count: Callable[[str], int]) -> list[Item]:
    """What somebody asked for: pinned events, then lore whose keys were said."""
    pinned = [item for rank, item in found.items if rank == PINNED]
    by_key = (item for item in placed.ranked if item.source_id not in placed.semantic_ranks)
    return [*pinned, *(sized(item, count) for item in by_key)]


def ranked(placed: PlacedLore, found: Remembered, *, count: Callable[[str], int]) -> list[Item]:
    """Everything that shares the memory's budget: what is wanted, then what was found, by rank."""
    by_meaning = [(rank, item) for rank, item in found.items if rank != PINNED]
    by_meaning += [
        (rank, sized(item, count))
        for item in placed.ranked
        if item.source_id and (rank := placed.semantic_ranks.get(item.source_id)) is not None
    ]
    by_meaning.sort(key=lambda each: each[0])
    return [*wanted(placed, found, count=count), *(item for _, item in by_meaning)]


def memory_texts(items: Sequence[Item]) -> dict[str, list[str]]:
    """The inputs of the memory's prompt file: memories by their time, lore by its order.

    Nothing in them reads as a tag of the section that they stand in: somebody may have said one.
    """
    ordered = sorted(items, key=lambda item: item.order)
    texts = [(item.kind, _SECTION_TAG.sub("\u2039", item.text)) for item in ordered]
    return {
        "memories": [text for kind, text in texts if kind != "lore"],
        "lore": [text for kind, text in texts if kind == "lore"],
    }


def sized(item: Item, count: Callable[[str], int]) -> Item:
    """An item with what it takes as a line of the memory's section."""
    return replace(item, tokens=(item.tokens or count(item.text)) + MESSAGE_OVERHEAD)


def _item(memory: Memory) -> Item:
    recalled = memory.recalled
    said = f"{recalled.title}: {recalled.text}" if recalled.title else recalled.text
    if recalled.kind == "message":
        kind, title = "memory", f"message {recalled.position + 1}"
    else:
        kind, title = recalled.kind, shorten(recalled.text, _TITLE, placeholder="...")
    return Item(
        kind=kind,
        title=title,
        text=_dated(recalled.said_at, said),
        place="memory",
        reasons=[memory.reason],
        source_id=recalled.source_id,
    )


def _pinned(event: StoryEvent, reasons: Sequence[Reason]) -> Item:
    text = told(event.fields)
    return Item(
        kind="event",
        title=shorten(text, _TITLE, placeholder="..."),
        text=_dated(event.happened_at, text),
        place="memory",
        reasons=reasons,
        source_id=event.id,
    )


def _dated(at: datetime | None, text: str) -> str:
    return f"[{at.day} {at:%B %Y}] {text}" if at else text
