"""The context record: the items of a prompt and the reasons for them, stored with each reply.

A full window has about 600 KB of text. The record contains the history as a range of positions, and
every other text as a hash. `rebuild` makes the exact prompt from them, and `prompt_hash` verifies
it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from uuid import UUID

import msgspec
from msgspec import structs

from backend.context.assembly import History, LeftOut, Place, PromptItem, layout
from backend.context.blocks import ChosenBy
from backend.context.budget import Gap
from backend.core.reasons import Reason
from backend.errors import AppError
from backend.generation.catalogue import FiguresFrom, MessageShape, ToolSupport
from backend.generation.message_shapes import shape_messages
from backend.generation.model import PromptMessage, Role
from backend.generation.sampling import SamplingField


class RecordError(AppError):
    """A stored prompt cannot be rebuilt from its parts."""

    status, slug, title = 409, "context-not-rebuilt", "The prompt can no longer be shown"


class RecordedItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One item of the prompt. Its text is stored once per chat under `text_hash`.

    `block` is the title of its preset block, and `images` the number of images in its message.
    `reason` describes `reasons` in words for users. It is not stored.
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
    images: int = 0
    text_hash: str = ""
    text: str | None = None


class RecordedMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message of a client that differs from the stored one. Its text is stored as an item's."""

    role: Role
    images: int = 0
    text_hash: str = ""
    text: str | None = None


class RecordedHistory(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The history of the prompt: the messages from `first` to `last`, except for `without`.

    `leaf_id` is the last message. `images` are the numbers of images of stored messages, by
    position. `cut` is the number of its characters that were sent if it was
    continued. `thoughts` are the positions of replies that were sent with their thoughts. `marks`
    are the marks of messages with a limited audience, by position. `changed` are the messages that
    a client sent in another form than the stored one, by position.
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
    images: dict[int, int] = {}
    changed: dict[int, RecordedMessage] = {}


class RecordedBudget(msgspec.Struct, kw_only=True):
    """The budgets in the model's tokens."""

    total: int
    history: int
    retrieval: int
    reply_reserve: int
    min_tail_messages: int


class Totals(msgspec.Struct, kw_only=True):
    """The use of the window in the model's tokens. `free` is the rest of `total`."""

    prompt: int
    fixed: int
    history: int
    retrieved: int
    reply_reserve: int
    free: int
    total: int
    messages: int


class RecordedWindow(msgspec.Struct, kw_only=True):
    """The model's context window in tokens, and its source.

    The source `default` is an assumption.
    """

    tokens: int
    source: FiguresFrom


class RecordedPreset(msgspec.Struct, kw_only=True):
    """The preset of a prompt: its name and revision at that time, and the setting that chose it."""

    id: UUID | None
    name: str
    revision: int
    chosen_by: ChosenBy


class RecordedViewpoint(msgspec.Struct, kw_only=True):
    """The viewpoint of a prompt: `public`, or the id of a character or an entity, and its name."""

    id: str
    name: str


class RecordedSpeaker(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The character of a group that speaks, and why. `reason` is as in `RecordedItem`."""

    id: UUID
    name: str
    reasons: list[Reason] = []
    reason: str = ""


class ContextRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The items of a prompt. Stored sealed with the reply and shown by the API.

    For a played turn it describes the prompt of the last phase. `tools` are the called tools in
    order, `tool_support` is the way in which the model was asked for calls. `near_misses` are
    unused search results. `shape` is the message shape of the sent prompt, and `prompt_hash` is the
    hash of the messages without it. `unsent_settings` are sampling settings that the model refuses.
    `speaker` is set in groups. `viewpoint` is null for the game master's. Records of earlier
    versions have no `window`.
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
    speaker: RecordedSpeaker | None = None
    viewpoint: RecordedViewpoint | None = None

    def find_texts(self) -> Iterator[RecordedItem | RecordedMessage]:
        """Yield the parts with a text that is stored by its hash."""
        yield from self.items
        yield from self.retrieved
        if self.history is not None:
            yield from self.history.changed.values()


def hash_prompt(messages: Sequence[PromptMessage]) -> str:
    """Return the SHA-256 of roles and texts, each preceded by its length."""
    parts: list[bytes] = []
    for message in messages:
        data = message.text.encode()
        parts += (f"{message.role} {len(data)}\n".encode(), data)
    return hashlib.sha256(b"".join(parts)).hexdigest()


def record_item(item: PromptItem) -> RecordedItem:
    """Return an item with its text. `move_texts` removes the text before storing."""
    return msgspec.convert(item, RecordedItem, from_attributes=True)


def move_texts(record: ContextRecord, hash_text: Callable[[str], str]) -> dict[str, str]:
    """Move the texts of items out of a record. Returns them by hash."""
    texts: dict[str, str] = {}
    for item in record.find_texts():
        if item.text is not None:
            item.text_hash = hash_text(item.text)
            texts[item.text_hash] = item.text
            item.text = None
    return texts


def restore_texts(record: ContextRecord, texts: Mapping[str, str]) -> None:
    """Restore the texts of items. Raises `RecordError` if one is missing."""
    for item in record.find_texts():
        if item.text is None:
            if item.text_hash not in texts:
                raise RecordError("One of its texts was deleted.")
            item.text = texts[item.text_hash]


def rebuild(
    record: ContextRecord,
    history: History,
    *,
    render_omitted: Callable[[int], str],
    render_memory: Callable[[Sequence[PromptItem]], str],
) -> list[PromptMessage]:
    """Rebuild the exact prompt of a record with restored texts.

    Args:
        record: The record with its texts.
        history: The messages at its positions, including omitted ones, oldest first.
        render_omitted: Renders the line for omitted messages.
        render_memory: Renders the memory section.

    Raises:
        RecordError: The result differs from the sent prompt.
    """
    items = msgspec.convert(record.items, list[PromptItem], from_attributes=True)
    if record.preset is None:
        # Records from before there were presets contain roles that were not sent.
        items = [
            structs.replace(each, role="system") if each.place == "head" else each for each in items
        ]
    retrieved = msgspec.convert(record.retrieved, list[PromptItem], from_attributes=True)
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
