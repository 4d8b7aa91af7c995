"""The record of a prompt: what it was made of and why, small enough to keep with every reply.

A full window is some 600 KB of text. The record holds the history as a range of positions and each
other text by its hash; `rebuild` makes the exact prompt again from them, and `prompt_hash` proves
that it is the same.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import msgspec
from msgspec import structs

from backend.context.blocks import ChosenBy
from backend.context.budget import Gap
from backend.context.layout import History, Item, LeftOut, Place, layout
from backend.core.reasons import Reason
from backend.errors import AppError
from backend.generation.catalogue import FiguresFrom, MessageShape, ToolSupport
from backend.generation.message_shapes import shape_messages
from backend.generation.model import PromptMessage, Role
from backend.generation.sampling import SamplingField


class RecordError(AppError):
    """A stored prompt can't be made again from its parts."""

    status, slug, title = 409, "context-not-rebuilt", "The prompt can't be shown any more"


class RecordedItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One piece of the prompt. Its text is kept once a chat, under `text_hash`.

    `block` is the title of the preset's block that it is of. `reason` is `reasons` in words, for
    people who look at the record; it is not stored.
    """

    kind: str
    title: str
    tokens: int
    place: Place
    reasons: list[Reason] = []
    reason: str = ""
    role: Role = "system"
    source_id: UUID | None = None
    depth: int = 0
    from_start: bool = False
    joins: bool = False
    starts: bool = False
    block: str = ""
    order: int = 0
    outlet: str = ""
    text_hash: str = ""
    text: str | None = None


class RecordedHistory(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The kept lines of the path: positions `first` to `last`, but those in `without`.

    `leaf_id` is the last line. `cut` is how many of its characters were sent, when it was still
    to be continued. `thoughts` are the positions of replies that were sent with their thoughts.
    `marks` say who knew lines that are not for everyone, by position.
    """

    leaf_id: UUID
    first: int
    last: int
    count: int
    tokens: int
    without: list[int] = []
    cut: int | None = None
    names: bool = False
    omitted_first: int | None = None
    omitted_last: int | None = None
    thoughts: list[int] = []
    marks: dict[int, str] = {}


class RecordedBudget(msgspec.Struct, kw_only=True):
    """The budgets in force, in the model's tokens."""

    total: int
    history: int
    retrieval: int
    reply_reserve: int
    min_tail_messages: int


class Totals(msgspec.Struct, kw_only=True):
    """How the window was used, in the model's tokens. `free` is what is left of `total`."""

    prompt: int
    fixed: int
    history: int
    retrieved: int
    reply_reserve: int
    free: int
    total: int
    messages: int


class RecordedWindow(msgspec.Struct, kw_only=True):
    """The model's context window then, in its tokens, and its source; `default` is assumed."""

    tokens: int
    source: FiguresFrom


class RecordedPreset(msgspec.Struct, kw_only=True):
    """The preset of a prompt: its name and revision then, and what had chosen it."""

    id: UUID | None
    name: str
    revision: int
    chosen_by: ChosenBy


class ContextRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a prompt was made of. Stored sealed with the reply; shown by the API.

    Of a played turn it is the last phase's prompt. `tools` were called in that turn, in order, as
    `tool_support` says the model can. `near_misses` are what a search found and did not bring up.
    `shape` is the message shape in which it was sent; `prompt_hash` is of the messages before that.
    `unsent_settings` are sampling settings that were left out because the model refuses them.
    Records of earlier versions have no `window`.
    """

    version: int = 1
    model: str
    tokenizer: str
    ratio: float
    budgets: RecordedBudget
    totals: Totals
    items: list[RecordedItem]
    retrieved: list[RecordedItem] = []
    history: RecordedHistory | None = None
    left_out: list[LeftOut] = []
    near_misses: list[LeftOut] = []
    memory_first: bool = False
    notes: list[str] = []
    prompt_files: dict[str, str] = {}
    prompt_hash: str = ""
    preset: RecordedPreset | None = None
    window: RecordedWindow | None = None
    tools: list[str] = []
    tool_support: ToolSupport | None = None
    shape: MessageShape = "lenient"
    unsent_settings: list[SamplingField] = []


def hash_prompt(messages: Sequence[PromptMessage]) -> str:
    """SHA-256 over roles and texts, each after its length."""
    parts: list[bytes] = []
    for message in messages:
        data = message.text.encode()
        parts += (f"{message.role} {len(data)}\n".encode(), data)
    return hashlib.sha256(b"".join(parts)).hexdigest()


def recorded_item(item: Item) -> RecordedItem:
    """An item with its text in it; `move_texts` takes the text out for storing."""
    return msgspec.convert(item, RecordedItem, from_attributes=True)


def move_texts(record: ContextRecord, hash_text: Callable[[str], str]) -> dict[str, str]:
    """Take the items' texts out of a record, leaving their hashes: hash to text."""
    texts: dict[str, str] = {}
    for item in (*record.items, *record.retrieved):
        if item.text is not None:
            item.text_hash = hash_text(item.text)
            texts[item.text_hash] = item.text
            item.text = None
    return texts


def restore_texts(record: ContextRecord, texts: Mapping[str, str]) -> None:
    """Put the items' texts back. Raises `RecordError` when one is missing."""
    for item in (*record.items, *record.retrieved):
        if item.text is None:
            if item.text_hash not in texts:
                raise RecordError("One of its texts was deleted.")
            item.text = texts[item.text_hash]


def rebuild(
    record: ContextRecord,
    history: History,
    *,
    render_omitted: Callable[[int], str],
    render_memory: Callable[[Sequence[Item]], str],
) -> list[PromptMessage]:
    """The exact prompt of a record whose texts are restored.

    Args:
        record: With texts.
        history: The lines at its positions, the omitted ones too, oldest first.
        render_omitted: As it was rendered then.
        render_memory: As it was rendered then.

    Raises:
        RecordError: What comes out is not what was sent.
    """
    items = msgspec.convert(record.items, list[Item], from_attributes=True)
    if record.preset is None:
        # Records of before there were presets have roles here that were not sent.
        items = [
            structs.replace(each, role="system") if each.place == "head" else each for each in items
        ]
    retrieved = msgspec.convert(record.retrieved, list[Item], from_attributes=True)
    gap = _gap(record, history.positions)
    messages, _ = layout(
        items,
        history.messages,
        gap=gap,
        gap_line=render_omitted(gap.count) if gap else "",
        memory=render_memory(retrieved) if retrieved else "",
        memory_first=record.memory_first,
    )
    if hash_prompt(messages) != record.prompt_hash:
        raise RecordError("A message in it has changed since.")
    return shape_messages(messages, record.shape)


def _gap(record: ContextRecord, positions: Sequence[int]) -> Gap | None:
    history = record.history
    if history is None or history.omitted_first is None or history.omitted_last is None:
        return None
    return Gap(
        bisect_left(positions, history.omitted_first), bisect_right(positions, history.omitted_last)
    )
