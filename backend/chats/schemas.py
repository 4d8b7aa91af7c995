"""Requests and responses of the API of chats, and the settings of a chat."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from backend.accounts.profile.settings import (
    MAX_QUICK_REPLIES,
    BudgetSettings,
    EnrichmentSettings,
    LongText,
    LoreOverrides,
    MemorySettings,
    ModelId,
    QuickReply,
    ReasoningSent,
    TaskModels,
)
from backend.chats.models import MessageStatus, Notice, Presence
from backend.core.audience import PUBLIC, Audience, ViewpointText
from backend.generation.model import Role
from backend.generation.sampling import Sampling

MAX_AUTO_REPLIES = 50
"""Replies of one request that follow each other by themselves."""

MAX_MEMBERS = 20
"""Characters in one chat."""

MAX_MESSAGE_FILES = 8
"""Files of a new message."""

MAX_TAGS = 30

Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=60)]
MAX_TITLE_CHARACTERS = 300

Title = Annotated[str, msgspec.Meta(max_length=MAX_TITLE_CHARACTERS)]


class NewChat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A chat to open. The greetings of the first character become its first message and swipes."""

    character_ids: Annotated[list[UUID], msgspec.Meta(max_length=MAX_MEMBERS)] = []
    persona_id: UUID | None = None
    title: Title | None = None
    campaign_id: UUID | None = None


class ChatView(msgspec.Struct, kw_only=True):
    """A chat in a list.

    `preview` is the beginning of the last message of the active path that is not hidden, on one
    line, and `last_message_at` its time. Pinned chats come first in lists, archived ones have a
    list of their own.
    """

    id: UUID
    title: str
    character_ids: list[UUID]
    persona_id: UUID | None
    campaign_id: UUID | None
    leaf_id: UUID | None
    tags: list[str]
    preview: str
    last_message_at: datetime | None
    pinned_at: datetime | None
    archived_at: datetime | None
    revision: int
    created_at: datetime
    updated_at: datetime


class ChatPatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The members of a chat that can be changed, with the tags of its settings."""

    title: Title = ""
    persona_id: UUID | None = None
    character_ids: Annotated[list[UUID], msgspec.Meta(max_length=MAX_MEMBERS)] = []
    campaign_id: UUID | None = None
    pinned: bool = False
    archived: bool = False
    tags: Annotated[list[Tag], msgspec.Meta(max_length=MAX_TAGS)] = []


class MessageFileView(msgspec.Struct, kw_only=True):
    """A file of a message. Its content is at `/files/{id}`.

    `size` is in bytes. `width` and `height` are in pixels; null for files that were not uploaded
    as pictures.
    """

    id: UUID
    name: str
    media_type: str
    size: int
    width: int | None
    height: int | None


class MessageView(msgspec.Struct, kw_only=True):
    """A message. `sibling` counts from 1 among `sibling_count` swipes.

    `shown` and `shown_thinking` are the displayed forms of `text` and `thinking` after regex
    scripts, or null if they are the same. `typed` is the user's line before macro expansion, or
    null if it had no macros. `injected_context` is the campaign's part of the prompt of the reply.
    `audience` is who may know the message: characters of the chat, or entities of its campaign.
    `notices` describe problems that did not end the reply. A reply with only thoughts has no
    `text`; it is hidden, because no model may receive it. With a `presence`, the message says that
    the character `character_id` joins, leaves or is muted. A line that has only images has the text
    `[image]`. A `removed` message was deleted alone: it has no text, and keeps the place of the
    messages below it.
    """

    id: UUID
    chat_id: UUID
    parent_id: UUID | None
    position: int
    role: Role
    author: str
    character_id: UUID | None
    persona_id: UUID | None
    text: str
    thinking: str | None
    status: MessageStatus
    hidden: bool
    is_active: bool
    tokens: int
    sibling: int
    sibling_count: int
    created_at: datetime
    updated_at: datetime
    typed: str | None = None
    shown: str | None = None
    shown_thinking: str | None = None
    injected_context: str | None = None
    audience: Audience = "public"
    notices: list[Notice] = []
    presence: Presence | None = None
    removed: bool = False
    files: list[MessageFileView] = []


DEFAULT_TALKATIVENESS = 0.5
"""The talkativeness of a character if its card has none."""


class MemberView(msgspec.Struct, kw_only=True):
    """A member of a chat at the end of the active path.

    `since` is the position of the message that changed its presence last, or null. `narrates` is
    true if it sees everything. `talkativeness` is its chance to speak unasked, from 0 to 1.
    """

    character_id: UUID
    name: str
    presence: Presence
    since: int | None
    talkativeness: float
    narrates: bool = False


class MemberPatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The new presence of a member. With `present`, a character becomes a member.

    `briefing` is the text of a message that only this character knows, such as the story so far.
    """

    presence: Presence
    briefing: Annotated[str, msgspec.Meta(max_length=20_000)] | None = None


class MemberBriefing(msgspec.Struct, kw_only=True):
    """A proposed `briefing`, which nothing has stored."""

    text: str


class MessagePage(msgspec.Struct, kw_only=True):
    """A section of the active path, newest last. `previous` is the `before` of the next one."""

    items: list[MessageView]
    previous: int | None


class NewLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message to add without a model.

    A character's line (`assistant`) is by `character_id`, which may be left out if the chat has at
    most one. The user's is by `persona_id`; by default, it is by the persona of turns. A `system`
    message has the narrator as its author. `audience` limits who knows the message, as in a turn;
    its character is added to a list.
    """

    role: Role = "user"
    text: str
    character_id: UUID | None = None
    persona_id: UUID | None = None
    audience: Audience = PUBLIC


class MessagePatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`text` adds a sibling and makes it active. The others change the message itself."""

    text: str | msgspec.UnsetType = msgspec.UNSET
    hidden: bool | msgspec.UnsetType = msgspec.UNSET
    audience: Audience | msgspec.UnsetType = msgspec.UNSET


class Activation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The end of the path: with `follow`, it continues below the message as it last did."""

    follow: bool = True


class Deleted(msgspec.Struct, kw_only=True):
    """The number of deleted messages, and the new end of the active path."""

    deleted: int
    leaf_id: UUID | None


ForkWorld = Literal["shared", "copy"]


class Fork(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The last message of the new chat's path.

    The copy of a campaign's chat stays in the campaign (`world`: `shared`), or gets a new campaign:
    a `copy` of the world at the message.
    """

    message_id: UUID
    title: Title | None = None
    world: ForkWorld = "shared"


class AuthorsNote(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A note from the user to the model.

    It is placed among the last messages, with `depth` 0 after the newest, or around the system
    prompt. With an `interval` of n it is sent with every n-th message of the user; 0 is never. With
    `scan`, lorebooks search it for keys. Without text, the note of the speaking character is used:
    `extensions.talekeeper.authors_note` of the card, in the same form.
    """

    text: Annotated[str, msgspec.Meta(max_length=20_000)] = ""
    depth: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 4
    role: Role = "system"
    position: Literal["at_depth", "before_prompt", "after_prompt"] = "at_depth"
    interval: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1
    scan: bool = False


class SummarySettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The rolling summary of messages that no longer fit into the history.

    `words` is its approximate length. `interval` is the minimum number of messages between two.
    """

    enabled: bool = False
    words: Annotated[int, msgspec.Meta(ge=50, le=2_000)] = 250
    interval: Annotated[int, msgspec.Meta(ge=2, le=500)] = 20


NextSpeaker = Literal["by_hand", "list", "mention", "pooled", "model"]
"""The choice of a group's next speaker.

By `list`, members speak in order. By `mention`, those who are named in the last line speak first,
and then a draw by talkativeness decides. `pooled` are those who have not spoken since the user.
With `model`, the task model chooses from the scene.
"""


class GroupSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Settings of a chat with several characters.

    `cards` decides if a prompt has the public parts of all cards before the history and the
    speaker's card after it (`joined`), or the speaker's card alone (`swapped`). `auto_replies` is
    the default of turns. `narrators` see everything. `talkativeness` overrides that of the cards,
    by character.
    """

    next_speaker: NextSpeaker = "mention"
    cards: Literal["joined", "swapped"] = "joined"
    auto_replies: Annotated[int, msgspec.Meta(ge=0, le=MAX_AUTO_REPLIES)] = 0
    allow_self_replies: bool = False
    narrators: Annotated[list[UUID], msgspec.Meta(max_length=MAX_MEMBERS)] = []
    talkativeness: Annotated[
        dict[UUID, Annotated[float, msgspec.Meta(ge=0, le=1)]], msgspec.Meta(max_length=50)
    ] = {}


class ChatSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Settings of one chat.

    Sampling belongs to the model: a chat with its own model ignores the account's sampling.
    """

    model: ModelId | None = None
    task_models: TaskModels = msgspec.field(default_factory=TaskModels)
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    preset_id: UUID | None = None
    """The prompt preset. Absent: that of the speaking character, or else the account's."""
    budgets: BudgetSettings = msgspec.field(default_factory=BudgetSettings)
    lore: LoreOverrides = msgspec.field(default_factory=LoreOverrides)
    memory: MemorySettings = msgspec.field(default_factory=MemorySettings)
    enrichment: EnrichmentSettings = msgspec.field(default_factory=EnrichmentSettings)
    chronicle_enabled: bool = False
    """The consent to let the agent record events. Creates a chronicle if none is set.

    In a chat of a campaign, the agent also proposes terms for the glossary.
    """
    chronicle_id: UUID | None = None
    """The chronicle of the chat. The chat remembers its events, and the agent adds new ones.

    Null removes it from the chat. If `chronicle_enabled` is true, null creates a new one.
    """
    summary: SummarySettings = msgspec.field(default_factory=SummarySettings)
    reasoning_sent: ReasoningSent | None = None
    scenario: LongText | None = None
    """Replaces the scenario of the characters' cards, unless it is empty."""
    system_prompt: LongText | None = None
    post_history_instructions: LongText | None = None
    authors_note: AuthorsNote = msgspec.field(default_factory=AuthorsNote)
    memory_placement: Literal["before_history", "after_history"] = "after_history"
    lore_placement: Literal["after_history", "as_written"] = "after_history"
    """The place of activated lore that belongs around the character or the examples.

    `as_written` places it there. By default it follows the history, so that the text before it is
    stable and the caches of providers remain valid.
    """
    viewpoint: ViewpointText | None = None
    """The default viewpoint of prompts. Absent: the speaker's in a group, and else `gm`."""
    group: GroupSettings = msgspec.field(default_factory=GroupSettings)
    names: bool | None = None
    """Put each author's name before the text. Absent: only in chats with several characters."""
    keep_other_speakers: bool | None = None
    """Keep lines of the user or another character in a reply. Absent: the account's value.

    Otherwise a reply ends before a line that begins with one of their names and a colon.
    """
    quick_replies: Annotated[
        tuple[QuickReply, ...], msgspec.Meta(max_length=MAX_QUICK_REPLIES)
    ] = ()
    """Texts for a click, in addition to those of the account and of the characters' cards."""
    tags: Annotated[list[Tag], msgspec.Meta(max_length=MAX_TAGS)] = []
    expand_macros: bool | None = None
    """Expand macros in the user's messages before they are stored. Absent: the account's value."""
