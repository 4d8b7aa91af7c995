"""What one prompt is made of: what is loaded and retrieved, and how it is counted."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import Literal
from uuid import UUID

import msgspec

from backend.campaigns.api.schemas import CampaignFields
from backend.campaigns.ledger.changes import State
from backend.campaigns.ledger.read_marks import Unread
from backend.campaigns.play.state import is_unsettled
from backend.campaigns.play.table import Table
from backend.campaigns.rules import rules_of
from backend.campaigns.state.situations import CampaignLayers
from backend.characters.cards.model import Card
from backend.chats.models import Chat, Message
from backend.chats.repository import SealedHistory
from backend.chats.schemas import AuthorsNote, ChatSettings
from backend.chats.token_counting import CountUnit
from backend.chronicles.repository import StoryEvent
from backend.context.blocks import ChosenBy, PresetFields
from backend.context.budget import Budget
from backend.context.layout import History
from backend.context.macros import Variables
from backend.core.audience import GM, NAMELESS_MARKS, PUBLIC, AudienceMarks, Viewpoint
from backend.core.reasons import ReasonKind
from backend.enrichment.summaries.goals import HOT_ROUNDS
from backend.enrichment.summaries.store import StoredSummary
from backend.generation.model import ChatModel, ModelSpec
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import Sampling
from backend.generation.tokens import starting_ratio
from backend.lorebooks.activation.compiled import CompiledBook
from backend.lorebooks.activation.timed import TimedState
from backend.lorebooks.entries import LinkSource, LoreSettings
from backend.memory.indexing.sources import Recalled
from backend.memory.search.request import Memory
from backend.memory.search.search import NearMiss
from backend.regex.scripts import Scripts
from backend.turns.models import TurnKind

LineKind = Literal["user_line", "continue", "impersonate", "opening", "next"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTarget:
    """Where a turn works in the tree.

    `leaf` ends the history; None before the first message. `line` is the message that stands as
    the user's line, when it is stored already. `parent` is what the reply will hang below when no
    new line is stored. `continued` is the reply that goes on. `spoken_by` is whose reply goes on or
    is written anew. `audience` is that of what is answered, gone on with or written anew, as its
    column holds it.
    """

    kind: TurnKind
    line_kind: LineKind
    leaf: Message | None
    line: Message | None = None
    parent: Message | None = None
    continued: Message | None = None
    spoken_by: UUID | None = None
    audience: str = PUBLIC

    @property
    def rewritten(self) -> int | None:
        """The position of the reply that is written anew."""
        if self.kind != "regenerate":
            return None
        return self.parent.position + 1 if self.parent else 0


NARRATOR = "Narrator"
"""Who speaks in a chat without a character."""


@dataclass(frozen=True, slots=True)
class LoadedPreset:
    """The preset that a prompt is made by, and what has chosen it.

    `id` and `revision` are None and 0 where it is not saved.
    """

    id: UUID | None
    revision: int
    chosen_by: ChosenBy
    fields: PresetFields

    def refused_by(self, spec: ModelSpec) -> list[str]:
        """What to say of samplers that a model does not take: they are left out."""
        names = [name for name in self.fields.sampling.set_fields() if name not in spec.accepts]
        return [f"The model does not take the preset's {', '.join(names)}."] if names else []


MAX_SCAN_DEPTH = 1_000
"""Messages that a scan looks back at most, whatever entries ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLore:
    """A chat's books, ready to be scanned, and what earlier turns mean for them.

    `inactive` are entries of a chronicle's book that come from a branch which was left.
    """

    books: Sequence[CompiledBook] = ()
    inactive: Collection[UUID] = frozenset()
    settings: LoreSettings = field(default_factory=LoreSettings)
    timed: TimedState = field(default_factory=TimedState)
    reply_count: int = 0
    greeting: int | None = None
    sources: Mapping[UUID, LinkSource] = field(default_factory=dict[UUID, LinkSource])

    @property
    def depth(self) -> int:
        """Messages that a scan of these books looks back."""
        if not self.books:
            return 0
        wanted = [self.settings.scan_depth, *(book.deepest for book in self.books)]
        wanted += [book.fields.scan_depth or 0 for book in self.books]
        if self.settings.min_activations:
            # One beyond the limit: the step that goes there is still made.
            wanted.append((self.settings.min_activations_depth or MAX_SCAN_DEPTH) + 1)
        return min(max(wanted), MAX_SCAN_DEPTH)


@dataclass(frozen=True, slots=True)
class KnownPath:
    """Converts stored tokens from the root: those of all lines, and those of known lines alone.

    A history of known lines is cut by their own sums: lines that the viewpoint may not know take
    no room in it.

    Attributes:
        begins: For each line that is not known, the tokens of all lines before it, in order.
        totals: For each of these lines, and after the last one, the tokens of those before it.
    """

    begins: tuple[int, ...] = ()
    totals: tuple[int, ...] = (0,)

    @classmethod
    def without(cls, lines: Iterable[tuple[int, int]]) -> KnownPath:
        """Return the path without some lines: (tokens of all lines before it, its own tokens)."""
        rows = list(lines)
        return cls(
            tuple(begin for begin, _ in rows),
            tuple(accumulate((tokens for _, tokens in rows), initial=0)),
        )

    def to_known(self, path_tokens: int) -> int:
        """Return the tokens of known lines among the first `path_tokens` of the path."""
        return path_tokens - self.totals[bisect_left(self.begins, path_tokens)]

    def to_path(self, known_tokens: int) -> int:
        """Return the tokens of all lines down to where known lines have `known_tokens`."""
        place = bisect_left(
            range(len(self.begins)),
            known_tokens,
            key=lambda number: self.begins[number] - self.totals[number],
        )
        return known_tokens + self.totals[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """The character that speaks: its id (None in a chat without one), its card, its name."""

    id: UUID | None
    card: Card
    name: str
    preset_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentLine:
    """One of the last lines: macros quote them, lorebooks are looked up in them."""

    role: str
    author: str
    text: str
    position: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedChat:
    """Everything about a chat that a prompt is made of, but its history.

    Attributes:
        system_prompt: What the chat's settings say, or the account's; so for `post_history`.
        others: Names of the characters that do not speak; `member_count` counts all of them.
        note: The author's note: the chat's, or the speaker's. `note_is_due`: it comes with this
            turn.
        line: What the user says now, as it is stored.
        said: What is answered, as the model gets it: that line, or one that is stored already; None
            where nobody says anything new.
        has_scripts: Whether the account has regex scripts of its own; `scripts` are those that run.
        campaign_fields: What the chat's campaign says of itself; None in a chat of none.
        campaign: What it says now.
        table: What the turn is played at; None where it is not played.
        known_path: The path as the viewpoint knows it. `summary`, `rounds` and `unread` have the
            tokens of known lines.
        rounds: Of a campaign's chat, stored tokens from the root to where each of the last rounds
            that the viewpoint may know begins, the last one first.
        untold_rounds: Those of all last rounds that the summary does not tell.
        unread: Of a campaign's chat, the first message that neither its summary tells nor a
            compaction has read; `unread_rounds` are those since the last one that was read.
        viewpoint: Whose knowledge the prompt may hold.
        audience: Who may know what the turn stores, as a column holds it.
        by_questions: Old lines are searched by the questions that they answer, and get some.
        typed: The line before its macros were expanded; None if there were none.
        expands_macros: Macros in the user's line are expanded before it is stored.
        variables: The variables for the prompt's macros: the stored ones, after the line's macros.
        stored_variables: The variables as the database has them.
        keeps_other_speakers: A reply goes on where a line of another speaker begins.
        preset: The nearest one that is chosen; None for the default order.
    """

    chat: Chat
    settings: ChatSettings
    system_prompt: str
    post_history: str
    speaker: Speaker
    others: Sequence[str]
    member_count: int
    user_name: str
    persona: str
    persona_id: UUID | None
    target: TurnTarget
    variables: Variables
    stored_variables: Variables
    lore: LoadedLore
    note: AuthorsNote
    note_reason: ReasonKind
    note_is_due: bool
    recent: Sequence[RecentLine] = ()
    pinned: Sequence[StoryEvent] = ()
    summary: StoredSummary | None = None
    line: str | None = None
    said: str | None = None
    typed: str | None = None
    expands_macros: bool = True
    has_scripts: bool = False
    scripts: Scripts | None = None
    campaign_fields: CampaignFields | None = None
    campaign: CampaignLayers | None = None
    table: Table | None = None
    known_path: KnownPath = field(default_factory=KnownPath)
    rounds: Sequence[int] = ()
    untold_rounds: int = 0
    unread: Unread | None = None
    unread_rounds: int = 0
    viewpoint: Viewpoint = GM
    audience: str = PUBLIC
    by_questions: bool = False
    keeps_other_speakers: bool = False
    preset: LoadedPreset | None = None

    @property
    def sums_rounds(self) -> bool:
        """Whether a campaign's summary stands for all but the last rounds."""
        return self.campaign_fields is not None and self.campaign_fields.settings.summaries

    @property
    def summed_up(self) -> int:
        """Stored tokens from the root that a campaign's history leaves to its summary, and state.

        The last rounds it keeps.
        """
        told = 0
        if self.sums_rounds and self.summary is not None and len(self.rounds) >= HOT_ROUNDS:
            told = min(self.summary.path_tokens, self.rounds[HOT_ROUNDS - 1])
        kept = self.campaign_fields.settings.memory_interval if self.campaign_fields else 0
        if self.unread is None or not kept <= len(self.rounds):
            return told
        return max(told, min(self.unread.path_tokens, self.rounds[kept - 1]))

    @property
    def is_summary_due(self) -> bool:
        """Whether with this turn's round so many are told that the campaign's summary goes on."""
        if self.campaign_fields is None or not self.sums_rounds:
            return False
        settings = self.campaign_fields.settings
        # A viewpoint that may not know the summary says nothing of how far it goes.
        if self.viewpoint != GM and not settings.hidden_information:
            return False
        return self.untold_rounds >= HOT_ROUNDS + settings.memory_interval - 1

    @property
    def is_compaction_due(self) -> bool:
        """Whether with this turn's round so many are told that the campaign is brought up to date.

        After a failure not again with the next one, but when as many more are told.
        """
        if self.campaign_fields is None or not self.chat.chronicle_enabled:
            return False
        rounds = self.unread_rounds + (self.target.line_kind == "user_line")
        return rounds > 0 and rounds % self.campaign_fields.settings.compaction_interval == 0

    @property
    def begins_unsettled(self) -> bool:
        """Whether the turn begins in an action or a fight."""
        if self.campaign is None:
            return False
        world = self.campaign.now.in_play.get(self.campaign.campaign_id)
        fields = self.campaign.fields
        state: State = msgspec.to_builtins(world) if world else {}
        return is_unsettled(state, rules_of(fields.rules), is_played=fields.settings.tools)

    @property
    def fields(self) -> list[str]:
        """The texts whose macros a prompt expands."""
        card = self.speaker.card
        return [
            *(card.description, card.personality, card.scenario, card.mes_example),
            *(card.system_prompt, card.post_history_instructions, self.persona, self.note.text),
            *(self.system_prompt, self.post_history),
            card.depth_prompt.prompt if card.depth_prompt else "",
            *([block.content for block in self.preset.fields.blocks] if self.preset else ()),
        ]

    @property
    def whole_tokens(self) -> int:
        """Stored tokens of the whole path."""
        return self.target.leaf.path_tokens if self.target.leaf else 0

    @property
    def path_tokens(self) -> int:
        """Stored tokens of the path's lines that the viewpoint may know."""
        return self.known_path.to_known(self.whole_tokens)

    @property
    def marks(self) -> AudienceMarks:
        """Says who knows a text of the prompt that is not for everyone."""
        return self.campaign.now.marks if self.campaign else NAMELESS_MARKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Limits of a prompt in addition to its budgets, because the model refused the one before it.

    Attributes:
        ratio: The model's tokens for one counted, at least.
        extra: The model's tokens that the request takes in addition to the prompt.
    """

    ratio: float = 0.0
    extra: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWindow:
    """Whom a prompt is for, how it is counted, and what it may take.

    Attributes:
        models: What its user may ask.
        unit: What the prompt is counted in.
        stored_unit: What the chat's stored counts are in.
        ratio: Makes counted tokens the model's.
        limits: The budgets in the model's tokens.
        budget: The same in counted ones.
        extra: The model's tokens that the request takes in addition to the prompt, as far as is
            known.
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

    @property
    def model(self) -> ChatModel:
        """Who replies."""
        return self.models.get(self.spec.id)

    @property
    def is_estimated(self) -> bool:
        """Whether the stored counts are in another unit."""
        return self.unit != self.stored_unit

    @property
    def needs_authors(self) -> bool:
        """Whether who speaks counts, or is sent with the text."""
        return self.unit.names or self.is_estimated

    @property
    def scale(self) -> float:
        """Makes stored tokens counted ones."""
        return starting_ratio(self.unit.tokenizer, counted_with=self.stored_unit.tokenizer)

    @property
    def widest(self) -> int:
        """Stored tokens that history may take at most: what is always sent may leave less."""
        return self.to_stored(self.budget.for_history(0))

    def to_stored(self, count: int) -> int:
        """A count in tokens as they are stored."""
        return math.floor(count / self.scale)

    def to_model_tokens(self, count: int) -> int:
        """A count in the model's tokens."""
        return round(count * self.ratio)


@dataclass(slots=True, kw_only=True)
class PromptContext:
    """Everything that one prompt is made of. Loading makes it, retrieving fills in the rest.

    Attributes:
        loaded: The chat, its cast, its books, its place in the tree.
        lines: The history as it is stored, oldest first, down to the leaf.
        texts: What they say, as it is stored: filled with `history`.
        thoughts: Of replies in it, still sealed: the message's id and its thoughts, by position.
        history: The same as the model gets it: unsealed, after regex scripts, with its tokens.
        memories: What was found and counts, best first.
        consequences: What followed from lines that were found, as it is now, by line.
        days: The story's day of memories of a campaign, by their ids: see `StoryClock.find_days`.
        near_misses: What was found, too, and not brought up.
        by_meaning: Whether it was looked for by meaning, too.
        notes: What there is to say about the search.
    """

    loaded: LoadedChat
    window: PromptWindow
    lines: SealedHistory
    texts: Sequence[str] = ()
    thoughts: Mapping[int, tuple[UUID, bytes]] = field(
        default_factory=dict[int, tuple[UUID, bytes]]
    )
    history: History = field(default_factory=History)
    memories: Sequence[Memory] = ()
    consequences: Mapping[UUID, Sequence[Recalled]] = field(
        default_factory=dict[UUID, Sequence[Recalled]]
    )
    days: Mapping[UUID, str] = field(default_factory=dict[UUID, str])
    near_misses: Sequence[NearMiss] = ()
    by_meaning: bool = False
    notes: Sequence[str] = ()


def get_version(chat: Chat) -> tuple[UUID | None, int, str]:
    """What of a chat a prompt is built on: its path, what is set, how its messages are counted."""
    return chat.leaf_id, chat.revision, chat.count_unit


class _CardExtension(msgspec.Struct):
    authors_note: AuthorsNote


class _CardExtensions(msgspec.Struct):
    talekeeper: _CardExtension


def choose_authors_note(own: AuthorsNote, card: Card) -> tuple[AuthorsNote, ReasonKind]:
    """The note that holds, and where it is from.

    A card keeps its character's in `extensions.talekeeper.authors_note`.
    """
    if not own.text.strip():
        try:
            return msgspec.convert(card.extensions, _CardExtensions).talekeeper.authors_note, "card"
        except msgspec.ValidationError:  # there is none, or what is there is no note
            pass
    return own, "chat_settings"
