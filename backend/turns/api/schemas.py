"""Requests and views of turns and contexts."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from backend.accounts.profile.settings import BudgetSettings
from backend.chats.schemas import MAX_AUTO_REPLIES, MAX_MESSAGE_FILES, MessageView
from backend.context.assembly import LeftOut
from backend.context.blocks import PresetFields
from backend.context.record import (
    RecordedBudget,
    RecordedItem,
    RecordedPreset,
    RecordedSpeaker,
    RecordedViewpoint,
    RecordedWindow,
    Totals,
)
from backend.core.audience import Audience, ViewpointText
from backend.generation.catalogue import MessageShape, ToolSupport
from backend.generation.sampling import SamplingField
from backend.llm.slot_rules import Occupation
from backend.turns.models import TurnKind, TurnState

LineFiles = Annotated[list[UUID], msgspec.Meta(max_length=MAX_MESSAGE_FILES)]
"""Files of a new line, in order. `POST /chats/{chat_id}/files` returns their ids."""

MAX_ANSWER_CHARACTERS = 2_000
"""Limit of an answer in the player's own words."""


class TurnRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The request of a turn.

    `text` is the user's line, and `files` are pictures that belong to it. A line may have only
    pictures. Without a line, the last one of the path is answered. `regenerate_of`
    adds a swipe to a reply, `continue` continues the last reply, `impersonate` writes the user's
    next line and stores nothing. `speaker` is the character that replies; by default, the chat's
    settings choose it. With `turn_id` the request can be repeated safely. Up to `auto_replies`
    characters reply one after another, each in a turn of its own; absent, the chat's setting holds.

    `audience` limits who knows the line and the reply: characters of the chat, or entities of its
    campaign. By default, a reply has the audience of the message that it answers. The prompt
    contains only the knowledge of `viewpoint`. The default is the speaker in a group, and else the
    narrator. If the campaign has hidden information, the default of an impersonation is the
    player's character.
    """

    text: str | None = None
    turn_id: UUID | None = None
    regenerate_of: UUID | None = None
    continue_: bool = msgspec.field(default=False, name="continue")
    impersonate: bool = False
    speaker: UUID | None = None
    audience: Audience | None = None
    viewpoint: ViewpointText | None = None
    auto_replies: Annotated[int, msgspec.Meta(ge=0, le=MAX_AUTO_REPLIES)] | None = None
    files: LineFiles = []


class ChoiceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The player's choice: the `id` of an option of the waiting turn.

    The player may answer a question in their own words. Then `option` is the member `own` of
    `turn.awaiting_choice`, and `text` is the answer.
    """

    option: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
    text: Annotated[str, msgspec.Meta(max_length=MAX_ANSWER_CHARACTERS)] = ""


class TurnUsage(msgspec.Struct, kw_only=True):
    """Tokens as the provider reported them. `completion_tokens` includes `thinking_tokens`."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    thinking_tokens: int
    model: str


class TurnView(msgspec.Struct, kw_only=True):
    """A turn. `text` is the line of an impersonation, `reply` the stored message.

    `waiting` is the data of the last `turn.awaiting_choice` while the turn waits. `waits_for` is
    the work of the model's server that a running turn waits for, at most a second late.

    Of replies that follow each other by themselves, `chain_id` is the first turn, `replies_left`
    the number of those that may follow this one, and `following` the ones that have. A list of
    turns has no `following`. `totals` is null before the prompt of a following turn is built.
    """

    id: UUID
    chat_id: UUID
    kind: TurnKind
    state: TurnState
    model: str
    user_message_id: UUID | None
    reply_id: UUID | None
    usage: TurnUsage | None
    totals: Totals | None
    problem: dict[str, Any] | None
    created_at: datetime
    finished_at: datetime | None
    waiting: dict[str, Any] | None = None
    waits_for: Occupation | None = None
    text: str | None = None
    reply: MessageView | None = None
    chain_id: UUID | None = None
    replies_left: int = 0
    following: list["TurnView"] = []


class SuggestionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The number of lines to suggest, and the viewpoint as for an impersonation."""

    count: Annotated[int, msgspec.Meta(ge=2, le=4)] = 3
    viewpoint: ViewpointText | None = None


class Suggestions(msgspec.Struct, kw_only=True):
    """Lines that the user could say next.

    `dropped` is the number of lines that were left out because they were JSON, part of a schema, or
    had empty lines.
    """

    items: list[str]
    dropped: int = 0


class ContextRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options for the context of the next turn.

    `text` is a draft of the user's line, with its `files`. A blank one is ignored. `budgets`
    override those of the chat and the account. `preset` replaces the chosen preset. `prompt` adds
    the prompt, `diff` the difference to the prompt of the last reply. The prompt contains only the
    knowledge of `viewpoint`. `speaker` is the character that replies.
    """

    text: str | None = None
    budgets: BudgetSettings = msgspec.field(default_factory=BudgetSettings)
    preset: PresetFields | None = None
    prompt: bool = False
    diff: Literal["previous"] | None = None
    viewpoint: ViewpointText | None = None
    speaker: UUID | None = None
    files: LineFiles = []


class ShownMessage(msgspec.Struct, kw_only=True):
    """A message of a prompt in the form in which it is sent."""

    role: str
    text: str


class HistoryView(msgspec.Struct, kw_only=True):
    """The part of the path that the prompt contains.

    `changed` are the positions of messages that a client sent in another form than the stored one,
    and `images` is the number of images in the history.
    """

    first: int
    last: int
    count: int
    tokens: int
    hidden: list[int]
    changed: list[int]
    images: int
    omitted_first: int | None
    omitted_last: int | None
    reason: str


class PromptDifference(msgspec.Struct, kw_only=True):
    """The difference between a prompt and the one before it on the path.

    `shared_prefix` is the number of equal messages at the beginning, which a provider's prefix
    cache can reuse. `shared_tokens` estimates their tokens.
    """

    previous_message_id: UUID
    added: list[RecordedItem]
    removed: list[RecordedItem]
    changed: list[RecordedItem]
    history_first: tuple[int | None, int | None]
    history_last: tuple[int | None, int | None]
    shared_prefix: int
    shared_tokens: int


class PromptLayers(msgspec.Struct, kw_only=True):
    """Tokens of a campaign's prompt by layer: constant, past, recalled, and current."""

    frozen: int
    cold: int
    search: int
    hot: int


class ContextView(msgspec.Struct, kw_only=True):
    """The items of a prompt and the reasons for them. `prompt` is the exact prompt.

    `containers` maps `source_id` to the lorebook of an entry, the chronicle of an event or the
    campaign of an item, unless it was deleted. `near_misses` are at most ten search results that
    the prompt does not contain but that still apply. `usage` is the provider's report for a stored
    reply. `layers` are the tokens of a campaign's prompt by layer. `tools` were called in a played
    turn, in order, and `tool_support` is the way in which the model was asked for calls. `shape` is
    the message shape of the sent prompt. `unsent_settings` are sampling settings that were left out
    because the model refuses them, alone or together. `window` is the model's window with its
    source. It is null in records of earlier versions. `speaker` is the character of a group that
    speaks, with the reason for the choice; null in other chats. The prompt contains only the
    knowledge of `viewpoint`, which is null if it sees everything.
    """

    model: str
    tokenizer: str
    ratio: float
    budgets: RecordedBudget
    totals: Totals
    items: list[RecordedItem]
    retrieved: list[RecordedItem]
    history: HistoryView | None
    left_out: list[LeftOut]
    near_misses: list[LeftOut]
    notes: list[str]
    prompt_files: dict[str, str]
    prompt_hash: str
    preset: RecordedPreset | None = None
    window: RecordedWindow | None = None
    prompt: list[ShownMessage] | None = None
    difference: PromptDifference | None = None
    containers: dict[UUID, UUID] = {}
    usage: TurnUsage | None = None
    layers: PromptLayers | None = None
    tools: list[str] = []
    tool_support: ToolSupport | None = None
    shape: MessageShape = "lenient"
    unsent_settings: list[SamplingField] = []
    speaker: RecordedSpeaker | None = None
    viewpoint: RecordedViewpoint | None = None
