"""Shapes of the chats' part of the API, and what a user sets for a chat."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from backend.accounts.profile.settings import (
    BudgetSettings,
    EnrichmentSettings,
    LongText,
    LoreOverrides,
    MemorySettings,
    ModelId,
    ReasoningSent,
    TaskModels,
)
from backend.chats.models import MessageStatus, Notice
from backend.core.audience import Audience, ViewpointText
from backend.generation.model import Role
from backend.generation.sampling import Sampling

Title = Annotated[str, msgspec.Meta(max_length=300)]


class NewChat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A chat to open. The first character's greetings become its first message and its swipes."""

    character_ids: Annotated[list[UUID], msgspec.Meta(max_length=20)] = []
    persona_id: UUID | None = None
    title: Title | None = None
    campaign_id: UUID | None = None


class ChatView(msgspec.Struct, kw_only=True):
    """A chat as it is listed."""

    id: UUID
    title: str
    character_ids: list[UUID]
    persona_id: UUID | None
    campaign_id: UUID | None
    leaf_id: UUID | None
    revision: int
    created_at: datetime
    updated_at: datetime


class ChatPatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What can be changed about a chat beside its settings."""

    title: Title = ""
    persona_id: UUID | None = None
    character_ids: Annotated[list[UUID], msgspec.Meta(max_length=20)] = []
    campaign_id: UUID | None = None


class MessageView(msgspec.Struct, kw_only=True):
    """A message. `sibling` counts from 1 among `sibling_count` swipes.

    `shown` and `shown_thinking` are what regex scripts show in the place of `text` and `thinking`;
    null where they change nothing. `typed` is the user's line before its macros were expanded; null
    if it had none. `injected_context` is what a campaign put into the prompt of
    the reply. `audience` says who may know the message, in a chat of a campaign. `notices` say what
    went wrong while the reply was written, without ending it. A reply that is thoughts alone has no
    `text`; it is hidden, since no model may be sent it.
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


class MessagePage(msgspec.Struct, kw_only=True):
    """A stretch of the active path, newest last. `previous` is the `before` of the one above."""

    items: list[MessageView]
    previous: int | None


class MessagePatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`text` adds a sibling and makes it active; the others change the message itself."""

    text: str | msgspec.UnsetType = msgspec.UNSET
    hidden: bool | msgspec.UnsetType = msgspec.UNSET
    audience: Audience | msgspec.UnsetType = msgspec.UNSET


class Activation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where the path goes: `follow` goes on below the message to where it last ended."""

    follow: bool = True


class Deleted(msgspec.Struct, kw_only=True):
    """How many messages went, and where the active path ends now."""

    deleted: int
    leaf_id: UUID | None


ForkWorld = Literal["shared", "copy"]


class Fork(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The last message of the new chat's path.

    The copy of a campaign's chat stays in the campaign (`world`: `shared`), or gets a new campaign:
    a `copy` of the world as it is at the message.
    """

    message_id: UUID
    title: Title | None = None
    world: ForkWorld = "shared"


class AuthorsNote(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A note of the user's to the model.

    It stands among the last messages, where `depth` 0 is after the newest, or around the system
    prompt. With an `interval` of n it comes with every n-th of the user's lines; 0 is never. With
    `scan`, lorebooks look for their keys in it, too. Where it has no text, the note of the
    character that speaks stands for it: `extensions.talekeeper.authors_note` of the card, of the
    same form.
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
    """The rolling summary of what scrolls out of the history.

    `words` is about how long it is; `interval` how many messages at least lie between two.
    """

    enabled: bool = False
    words: Annotated[int, msgspec.Meta(ge=50, le=2_000)] = 250
    interval: Annotated[int, msgspec.Meta(ge=2, le=500)] = 20


class ChatSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Settings of one chat.

    Sampling goes with the model named beside it: a chat with a model of its own takes none of the
    account's sampling.
    """

    model: ModelId | None = None
    task_models: TaskModels = msgspec.field(default_factory=TaskModels)
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    preset_id: UUID | None = None
    """The prompt preset; absent: that of the character who speaks, else the account's."""
    budgets: BudgetSettings = msgspec.field(default_factory=BudgetSettings)
    lore: LoreOverrides = msgspec.field(default_factory=LoreOverrides)
    memory: MemorySettings = msgspec.field(default_factory=MemorySettings)
    enrichment: EnrichmentSettings = msgspec.field(default_factory=EnrichmentSettings)
    chronicle_enabled: bool = False
    """Have the agent write down what happens: the opt-in. Makes a chronicle where none is set.

    In a chat of a campaign, also have it propose terms for the glossary.
    """
    chronicle_id: UUID | None = None
    """The chronicle whose events the chat remembers, and into which the agent writes.

    Null takes it from the chat. While `chronicle_enabled` stays true, null makes a new one.
    """
    summary: SummarySettings = msgspec.field(default_factory=SummarySettings)
    reasoning_sent: ReasoningSent | None = None
    system_prompt: LongText | None = None
    post_history_instructions: LongText | None = None
    authors_note: AuthorsNote = msgspec.field(default_factory=AuthorsNote)
    memory_placement: Literal["before_history", "after_history"] = "after_history"
    lore_placement: Literal["after_history", "as_written"] = "after_history"
    """Where activated lore stands whose place is around the character or the examples.

    `as_written` puts it there. By default it stands behind the history, so that what comes before
    stays the same and providers' caches keep hitting.
    """
    viewpoint: ViewpointText | None = None
    """Whose knowledge the prompts of turns may hold that say nothing of it; absent: `gm`."""
    names: bool | None = None
    """Put each author's name before the text. Absent: only where several characters take part."""
    keep_other_speakers: bool | None = None
    """Keep lines that a reply says for the user or another character. Absent: as the account does.

    Without it a reply ends before a line that begins with one of their names and a colon.
    """
    expand_macros: bool | None = None
    """Expand macros in the user's lines before they are stored. Absent: as the account does."""
