"""The data of one prompt, phase by phase: `LoadedPrompt`, `RetrievedPrompt`, `BuiltPrompt`.

Each phase adds to the one before it and is not changed afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from backend.campaigns.api.schemas import CampaignFields
from backend.campaigns.ledger.changes import State
from backend.campaigns.ledger.paths import UnreadStart
from backend.campaigns.play.table import Table
from backend.campaigns.rules.protocol import find_rules, is_unsettled
from backend.campaigns.state.situations import CampaignLayers
from backend.characters.cards.model import Card
from backend.chats.files import WaitingFile
from backend.chats.members import Group, NamedMembers, list_heard
from backend.chats.models import Chat, Message
from backend.chats.repository import HistoryColumns
from backend.chats.schemas import AuthorsNote, ChatSettings
from backend.chats.token_counting import CountUnit
from backend.chronicles.repository import StoryEvent
from backend.context.assembly import History
from backend.context.blocks import ChosenBy, PresetFields
from backend.context.budget import Budget
from backend.context.macros import Variables
from backend.core.audience import GM, PUBLIC, AudienceMarks, Viewpoint, Witness
from backend.core.reasons import ReasonKind
from backend.enrichment.summaries.pieces import PathSummary
from backend.enrichment.summaries.store import HOT_ROUNDS
from backend.generation.model import ChatModel, ModelSpec, PromptImage, Role
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import Sampling, SamplingField
from backend.generation.tokens import find_starting_ratio
from backend.lorebooks.activation.compiled import CompiledBook
from backend.lorebooks.activation.timed import TimedState
from backend.lorebooks.entries import LinkSource, LoreSettings
from backend.memory.indexing.sources import MemoryItem
from backend.memory.search.request import Memory
from backend.memory.search.search import NearMiss
from backend.regex.scripts import Scripts
from backend.turns.models import TurnKind
from backend.turns.prompt.cast import Cast
from backend.turns.prompt.client import ClientParts
from backend.turns.prompt.images import ChosenImages
from backend.turns.prompt.remembered import RememberedChats
from backend.turns.prompt.viewed_path import KnownPath, UnknownMessage

LineKind = Literal["user_line", "continue", "impersonate", "opening", "next"]

SealedThoughts = Mapping[int, tuple[UUID, bytes]]
"""The message id and the sealed thoughts of replies, by position."""

MAX_SCAN_DEPTH = 1_000
"""Maximum depth of a lorebook scan in messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTarget:
    """The place of a turn in the message tree.

    Attributes:
        leaf: The last message of the history. None before the first message.
        line: The user's line, if it is stored already.
        parent: The parent of the reply, if no new line is stored. It can be a change of presence
            or a briefing after the line.
        continued: The reply that is continued.
        spoken_by: The character of the reply that is continued or regenerated.
        spoken: The last line before the reply, if none of the user is answered.
        audience: The audience of the message that is answered, continued or regenerated, in the
            form of the column.
    """

    kind: TurnKind
    line_kind: LineKind
    leaf: Message | None
    line: Message | None = None
    parent: Message | None = None
    continued: Message | None = None
    spoken_by: UUID | None = None
    spoken: Message | None = None
    audience: str = PUBLIC

    def find_kept_speaker(self, members: Collection[UUID]) -> UUID | None:
        """Return the character of a rewritten or continued reply if it still is a member."""
        return self.spoken_by if self.spoken_by in members else None

    @property
    def position(self) -> int:
        """The position of the first message that the turn writes."""
        if self.continued is not None:
            return self.continued.position
        above = self.parent or self.leaf
        return above.position + 1 if above else 0

    @property
    def rewritten(self) -> int | None:
        """The position of the reply that is regenerated."""
        if self.kind != "regenerate":
            return None
        return self.parent.position + 1 if self.parent else 0


@dataclass(frozen=True, slots=True)
class LoadedPreset:
    """The prompt preset of a turn, and the setting that chose it.

    `id` is None and `revision` 0 if the preset is not saved.
    """

    id: UUID | None
    revision: int
    chosen_by: ChosenBy
    fields: PresetFields

    def describe_refused(self, spec: ModelSpec) -> list[str]:
        """Return a note about the samplers that the model does not accept. They are not sent."""
        names = [name for name in self.fields.sampling.set_fields() if name not in spec.accepts]
        return [f"The model does not accept the preset's {', '.join(names)}."] if names else []


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLore:
    """The compiled lorebooks of a chat, and the state that earlier turns left.

    `inactive` are entries of a chronicle's lorebook that come from another branch. `timed` is the
    state that the viewpoint may know, and `stored_timed` that of everyone.
    """

    books: Sequence[CompiledBook] = ()
    inactive: Collection[UUID] = frozenset()
    settings: LoreSettings = field(default_factory=LoreSettings)
    timed: TimedState = field(default_factory=TimedState)
    stored_timed: TimedState = field(default_factory=TimedState)
    reply_count: int = 0
    greeting: int | None = None
    sources: Mapping[UUID, LinkSource] = field(default_factory=dict[UUID, LinkSource])

    @property
    def depth(self) -> int:
        if not self.books:
            return 0
        wanted = [self.settings.scan_depth, *(book.deepest for book in self.books)]
        wanted += [book.fields.scan_depth or 0 for book in self.books]
        if self.settings.min_activations:
            # The scan still makes the step that reaches the limit, so it needs one message more.
            wanted.append((self.settings.min_activations_depth or MAX_SCAN_DEPTH) + 1)
        return min(max(wanted), MAX_SCAN_DEPTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentLine:
    role: Role
    author: str
    text: str
    position: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The author's note of the chat or of the speaker. `is_due` if this turn sends it."""

    fields: AuthorsNote
    reason: ReasonKind
    is_due: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The campaign of a chat. Empty in a chat without a campaign.

    Attributes:
        fields: The fields of the campaign.
        campaign: Its current state.
        table: The table of a played turn.
        rounds: The stored tokens before each of the last rounds that the viewpoint knows, the last
            round first.
        untold_rounds: The number of last rounds that the summary does not cover.
        unread: The first message that neither the summary nor a compaction covers.
        unread_rounds: The number of rounds since the last compaction.
    """

    fields: CampaignFields | None = None
    campaign: CampaignLayers | None = None
    table: Table | None = None
    rounds: Sequence[int] = ()
    untold_rounds: int = 0
    unread: UnreadStart | None = None
    unread_rounds: int = 0

    @property
    def has_summaries(self) -> bool:
        """True if a summary replaces all but the last rounds."""
        return self.fields is not None and self.fields.settings.summaries

    @property
    def begins_unsettled(self) -> bool:
        """True if the turn begins in an action or a fight."""
        if self.campaign is None:
            return False
        world = self.campaign.now.in_play.get(self.campaign.campaign_id)
        fields = self.campaign.fields
        state: State = msgspec.to_builtins(world) if world else {}
        return is_unsettled(state, find_rules(fields.rules), is_played=fields.settings.tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedChat:
    """Everything that a prompt needs of a chat except for its history.

    Attributes:
        system_prompt: From the settings of the chat, else of the account. The same applies to
            `post_history`.
        line: The user's new line, as it is stored.
        said: The line that is answered, as the model gets it. None if no line is answered.
        typed: The new line before its macros were expanded. None if it has no macros.
        files: The uploaded files of the new line.
        expands_macros: True if macros in the user's line are expanded before it is stored.
        has_scripts: True if the account has regex scripts. `scripts` are the ones that run.
        has_files: True if one of the last messages of the active path has a file.
        last_rows: The last visible messages of the path, if the viewpoint knows all of them.
        group: The members of the chat.
        members: Their names, and who is there.
        unknown: The messages of the path that the viewpoint does not know.
        known_path: The path as the viewpoint knows it. `summary` and `story` count tokens of
            known messages.
        remembered: Other chats of the speaker, if it keeps its memories.
        viewpoint: The prompt contains only the knowledge of this viewpoint.
        audience: The audience of the messages that the turn stores, in the form of the column.
        variables: The variables of macros: `stored_variables`, changed by the line's macros.
        keeps_other_speakers: True if a reply may contain lines of other speakers.
        preset: The nearest preset that is chosen. None for the default order.
        client: The prompt of a client, to which the turn adds. None if Talekeeper builds it alone.
        sent_begin: Stored tokens from the root before the first message that the client sends.
        is_automatic: True for a reply that follows another one by itself.
    """

    chat: Chat
    settings: ChatSettings
    system_prompt: str
    post_history: str
    cast: Cast
    target: TurnTarget
    variables: Variables
    stored_variables: Variables
    lore: LoadedLore
    note: Note
    recent: Sequence[RecentLine] = ()
    pinned: Sequence[StoryEvent] = ()
    remembered: RememberedChats | None = None
    summary: PathSummary | None = None
    story: Story = field(default_factory=Story)
    line: str | None = None
    said: str | None = None
    typed: str | None = None
    files: Sequence[WaitingFile] = ()
    expands_macros: bool = True
    has_scripts: bool = False
    has_files: bool = True
    last_rows: Sequence[Message] = ()
    scripts: Scripts | None = None
    group: Group
    members: NamedMembers = field(default_factory=NamedMembers)
    unknown: Sequence[UnknownMessage] = ()
    known_path: KnownPath = field(default_factory=KnownPath)
    viewpoint: Viewpoint = GM
    audience: str = PUBLIC
    keeps_other_speakers: bool = False
    preset: LoadedPreset | None = None
    client: ClientParts | None = None
    sent_begin: int = 0
    is_automatic: bool = False

    @property
    def may_pass(self) -> bool:
        """True if the character may answer that it has nothing to say.

        In a played turn, the tools end a reply.
        """
        return self.is_automatic and self.story.table is None

    @property
    def adds_memory(self) -> bool:
        """False if a client wants its own prompt without additions."""
        return self.client is None or self.client.prompt.uses_memory

    @property
    def sums_rounds(self) -> bool:
        """True if the summary of a campaign replaces all but the last rounds."""
        return self.story.has_summaries

    @property
    def summed_up(self) -> int:
        """The stored tokens that summary and state replace. The last rounds always stay."""
        story, told = self.story, 0
        if story.has_summaries and self.summary is not None and len(story.rounds) >= HOT_ROUNDS:
            told = min(self.summary.path_tokens, story.rounds[HOT_ROUNDS - 1])
        kept = story.fields.settings.memory_interval if story.fields else 0
        if story.unread is None or not kept <= len(story.rounds):
            return told
        return max(told, min(story.unread.path_tokens, story.rounds[kept - 1]))

    @property
    def is_summary_due(self) -> bool:
        """True if the campaign's summary has to be extended after this turn."""
        fields = self.story.fields
        if fields is None or not self.sums_rounds:
            return False
        settings = fields.settings
        # If the viewpoint may not know the summary, the loaded rounds do not show its end. In a
        # group they do.
        is_shown = self.viewpoint == GM or isinstance(self.viewpoint, Witness)
        if not is_shown and not settings.hidden_information:
            return False
        return self.story.untold_rounds >= HOT_ROUNDS + settings.memory_interval - 1

    @property
    def is_compaction_due(self) -> bool:
        """True if the campaign has to be compacted after this turn.

        After a failure, the next attempt comes only after a whole interval of rounds.
        """
        fields = self.story.fields
        if fields is None or not self.chat.chronicle_enabled:
            return False
        rounds = self.story.unread_rounds + (self.target.line_kind == "user_line")
        return rounds > 0 and rounds % fields.settings.compaction_interval == 0

    @property
    def macro_texts(self) -> list[str]:
        card = self.cast.speaker.card
        return [
            *(card.description, card.personality, card.scenario, card.mes_example),
            *(card.system_prompt, card.post_history_instructions, self.cast.persona),
            *(self.note.fields.text, self.system_prompt, self.post_history),
            card.depth_prompt.prompt if card.depth_prompt else "",
            *([block.content for block in self.preset.fields.blocks] if self.preset else ()),
        ]

    @property
    def whole_tokens(self) -> int:
        return self.target.leaf.path_tokens if self.target.leaf else 0

    @property
    def path_tokens(self) -> int:
        """Stored tokens of the messages of the path that the viewpoint knows."""
        return self.known_path.to_known(self.whole_tokens)

    @property
    def marks(self) -> AudienceMarks:
        """The marks before texts of the prompt that not everyone knows."""
        if self.story.campaign is not None:
            return self.story.campaign.now.marks
        present = () if isinstance(self.viewpoint, str) else self.members.present
        return AudienceMarks(self.members.names.get, present)

    @property
    def viewer(self) -> str:
        """The name of the viewpoint, for the user. Empty if it is unknown."""
        viewpoint, campaign = self.viewpoint, self.story.campaign
        if isinstance(viewpoint, str):
            return "everyone"
        if isinstance(viewpoint, Witness):
            return self.members.names.get(viewpoint.character_id, "")
        return (campaign.names.find_name(viewpoint, GM) if campaign else None) or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Limits of a prompt in addition to its budgets, because the model refused the one before it.

    Attributes:
        ratio: The model's tokens for one counted token, at least.
        extra: The model's tokens that the request takes in addition to the prompt.
    """

    ratio: float = 0.0
    extra: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWindow:
    """The model, tokenizer and token budgets of one prompt.

    Attributes:
        models: The models that the user may ask.
        unit: The unit in which the prompt is counted.
        stored_unit: The unit of the chat's stored counts.
        ratio: The model's tokens for one counted token.
        limits: The budgets in the model's tokens.
        budget: The budgets in counted tokens.
        extra: The model's tokens that the request takes in addition to the prompt, if known.
        unsent: The client's sampling settings that the model does not accept.
    """

    models: ModelRegistry
    spec: ModelSpec
    sampling: Sampling
    unit: CountUnit
    stored_unit: CountUnit
    ratio: float
    limits: Budget
    budget: Budget
    extra: int = 0
    unsent: Sequence[SamplingField] = ()

    @property
    def model(self) -> ChatModel:
        return self.models.get(self.spec.id)

    @property
    def is_estimated(self) -> bool:
        """True if the stored counts are in another unit."""
        return self.unit != self.stored_unit

    @property
    def needs_authors(self) -> bool:
        """True if the author's name is counted or sent with each message."""
        return self.unit.names or self.is_estimated

    @property
    def scale(self) -> float:
        """The counted tokens for one stored token."""
        return find_starting_ratio(self.unit.tokenizer, counted_with=self.stored_unit.tokenizer)

    @property
    def widest(self) -> int:
        """Stored tokens that the history may take at most, if there are no fixed sections."""
        return self.to_stored(self.budget.for_history(0))

    def to_stored(self, count: int) -> int:
        return math.floor(count / self.scale)

    def to_model_tokens(self, count: int) -> int:
        return round(count * self.ratio)


@dataclass(frozen=True, slots=True)
class ReadHistory:
    """Messages of the active path up to the leaf, as they were read, whoever knows them.

    Attributes:
        columns: The messages, oldest first.
        known: The places of those that the history may take.
        first: The place of the first message that would do for this history.
        known_begin: The stored tokens from the root after which this history begins.
        begin: Those after which messages were read, or None if they must not be cached.
    """

    columns: HistoryColumns = field(default_factory=HistoryColumns)
    known: Sequence[int] = ()
    first: int = 0
    known_begin: int = 0
    begin: int | None = None

    @classmethod
    def select(
        cls, loaded: LoadedChat, columns: HistoryColumns, *, begin: int, read_begin: int
    ) -> ReadHistory:
        """Return the messages of `columns` that the viewpoint knows and that begin after `begin`.

        They were read after `read_begin` stored tokens from the root.
        """
        tokens = columns.tokens
        first, start = 0, loaded.whole_tokens - sum(tokens)
        while first < len(tokens) and (start < begin or start + tokens[first] <= begin):
            start += tokens[first]
            first += 1
        known = list_heard(
            loaded.viewpoint,
            loaded.chat.id,
            columns.positions,
            columns.audiences,
            first=first,
        )
        return cls(columns, known, first, begin, read_begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPrompt:
    """The first phase of a prompt: everything that one read of the database returns.

    Attributes:
        lines: The history as it is stored, without texts, oldest first, up to the leaf.
        read: The messages that were read, with texts.
        thoughts: The sealed thoughts of replies in it: message id and thoughts, by position.
        images: The sealed images of the history and of the line.
    """

    loaded: LoadedChat
    window: PromptWindow
    lines: HistoryColumns
    read: ReadHistory = field(default_factory=ReadHistory)
    thoughts: SealedThoughts = field(default_factory=dict[int, tuple[UUID, bytes]])
    images: ChosenImages = field(default_factory=ChosenImages)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievedPrompt(LoadedPrompt):
    """The second phase of a prompt: the unsealed history and the results of the memory search.

    The third phase is `BuiltPrompt`.

    Attributes:
        history: The history as the model gets it, after regex scripts, with its tokens.
        line_images: The images of the line that is answered.
        memories: The search results that apply, best first.
        consequences: Campaign items that changed because of a message, by message id.
        days: The day of the story of each memory, by source id. See `StoryClock.find_days`.
        near_misses: Search results that the prompt does not use.
        by_meaning: True if the search used embeddings.
        notes: Notes about the search for the context record.
    """

    history: History
    line_images: tuple[PromptImage, ...] = ()
    memories: Sequence[Memory] = ()
    consequences: Mapping[UUID, Sequence[MemoryItem]] = field(
        default_factory=dict[UUID, Sequence[MemoryItem]]
    )
    days: Mapping[UUID, str] = field(default_factory=dict[UUID, str])
    near_misses: Sequence[NearMiss] = ()
    by_meaning: bool = False
    notes: Sequence[str] = ()


def get_version(chat: Chat) -> tuple[UUID | None, int, str]:
    """Return the values that a prompt depends on: path, settings and counting unit of the chat."""
    return chat.leaf_id, chat.revision, chat.count_unit


class _CardExtension(msgspec.Struct):
    authors_note: AuthorsNote


class _CardExtensions(msgspec.Struct):
    talekeeper: _CardExtension


def choose_authors_note(own: AuthorsNote, card: Card) -> tuple[AuthorsNote, ReasonKind]:
    """Return the author's note that applies, and its source.

    A card stores a note in `extensions.talekeeper.authors_note`. The chat's own note comes first.
    """
    if not own.text.strip():
        try:
            return msgspec.convert(card.extensions, _CardExtensions).talekeeper.authors_note, "card"
        except msgspec.ValidationError:  # the card has no valid note
            pass
    return own, "chat_settings"
