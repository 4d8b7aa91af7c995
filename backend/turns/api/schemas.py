"""Shapes of the turns' part of the API."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from backend.accounts.profile.settings import BudgetSettings
from backend.chats.schemas import MessageView
from backend.context.blocks import PresetFields
from backend.context.record import (
    RecordedBudget,
    RecordedItem,
    RecordedLeftOut,
    RecordedPreset,
    RecordedWindow,
    Totals,
)
from backend.core.audience import Audience, ViewpointText
from backend.generation.catalogue import MessageShape, ToolSupport
from backend.generation.sampling import SamplingField
from backend.llm.slot_rules import Occupation
from backend.turns.models import TurnKind, TurnState

MAX_ANSWER_CHARACTERS = 2_000
"""Characters of an answer in the player's own words."""


class TurnRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a turn is to do.

    `text` is the user's line; without it the last line of the path is answered. `regenerate_of`
    adds a swipe to a reply, `continue` goes on with the last one, `impersonate` writes the user's
    next line and stores nothing. `speaker` says which character replies. `turn_id` makes it safe
    to send the request again.

    In a campaign's chat, `audience` says who may know the line and the reply; absent, a reply is
    for those who may know what it answers. `viewpoint` is whose knowledge the prompt may hold: the
    game master's by default, and, where the campaign has hidden information, for an impersonation
    that of the player's character.
    """

    text: str | None = None
    turn_id: UUID | None = None
    regenerate_of: UUID | None = None
    continue_: bool = msgspec.field(default=False, name="continue")
    impersonate: bool = False
    speaker: UUID | None = None
    audience: Audience | None = None
    viewpoint: ViewpointText | None = None


class ChoiceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The player's choice: the `id` of one of the options that the turn waits with.

    A question can be answered in the player's own words: `option` is then the member `own` of
    `turn.awaiting_choice`, and `text` the answer.
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
    """A turn. `text` is what an impersonation wrote; `reply` the stored message.

    `waiting` says for what one waits: the data of its last `turn.awaiting_choice`. `waits_for` is
    the work of the model's server that a running turn waits for, at most a second late.
    """

    id: UUID
    chat_id: UUID
    kind: TurnKind
    state: TurnState
    model: str
    user_message_id: UUID | None
    reply_id: UUID | None
    usage: TurnUsage | None
    totals: Totals
    problem: dict[str, Any] | None
    created_at: datetime
    finished_at: datetime | None
    waiting: dict[str, Any] | None = None
    waits_for: Occupation | None = None
    text: str | None = None
    reply: MessageView | None = None


class SuggestionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many lines to suggest, and from whose knowledge, as an impersonation takes it."""

    count: Annotated[int, msgspec.Meta(ge=2, le=4)] = 3
    viewpoint: ViewpointText | None = None


class Suggestions(msgspec.Struct, kw_only=True):
    """Lines that the user could say next.

    `dropped` counts those that were left out, because they were JSON, part of a schema, or had
    empty lines.
    """

    items: list[str]
    dropped: int = 0


class ContextRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to look at the context of the coming turn with.

    `text` is a draft of the user's line; one of blanks alone is none. `budgets` stand before the
    chat's and the account's; what is absent is as those say. `preset` is tried in place of the one
    that is chosen. `prompt` asks for the prompt itself,
    `diff` for how it differs from that of the last reply. `viewpoint` is whose knowledge the prompt
    may hold.
    """

    text: str | None = None
    budgets: BudgetSettings = msgspec.field(default_factory=BudgetSettings)
    preset: PresetFields | None = None
    prompt: bool = False
    diff: Literal["previous"] | None = None
    viewpoint: ViewpointText | None = None


class ShownMessage(msgspec.Struct, kw_only=True):
    """A message of a prompt, as it was or would be sent."""

    role: str
    text: str


class HistoryView(msgspec.Struct, kw_only=True):
    """The stretch of the path that is in the prompt."""

    first: int
    last: int
    count: int
    tokens: int
    hidden: list[int]
    omitted_first: int | None
    omitted_last: int | None
    reason: str


class PromptDifference(msgspec.Struct, kw_only=True):
    """How a prompt differs from the one before it on the path.

    `shared_prefix` counts messages that are the same from the beginning on: what a provider's
    prefix cache can reuse; `shared_tokens` is about what they take.
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
    """Tokens of a campaign's prompt: what stays, what is over, what was found, what is now."""

    frozen: int
    cold: int
    search: int
    hot: int


class ContextView(msgspec.Struct, kw_only=True):
    """What a prompt is made of, and why. `prompt` is the exact prompt.

    `containers` says which lorebook an entry is in, which chronicle an event and which campaign an
    item, by `source_id`; what was deleted since is in none. `near_misses` are what the search found
    and did not bring up, at most ten, as far as it counts now. `usage` is what the provider
    reported for a stored reply, `layers` are the tokens of a campaign's prompt by layer. `tools`
    were called in a played turn, in order; `tool_support` says how the model was asked for calls.
    `shape` is the message shape in which the prompt was sent. `unsent_settings` are sampling
    settings that were left out because the model refuses them, or refuses them together.
    `window` is the model's, with its source; null in records of earlier versions.
    """

    model: str
    tokenizer: str
    ratio: float
    budgets: RecordedBudget
    totals: Totals
    items: list[RecordedItem]
    retrieved: list[RecordedItem]
    history: HistoryView | None
    left_out: list[RecordedLeftOut]
    near_misses: list[RecordedLeftOut]
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
