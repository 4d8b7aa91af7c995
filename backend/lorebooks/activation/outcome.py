"""Input and result of a scan."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from uuid import UUID

from backend.core.reasons import FoundIn, Match, Reason
from backend.generation.model import Role
from backend.lorebooks.activation.compiled import CompiledBook
from backend.lorebooks.activation.timed import NO_EFFECTS, TimedState
from backend.lorebooks.entries import LinkSource, LoreSettings, MatchedField, Position, Trigger
from backend.regex.patterns import Evaluator


class ScannedLine(NamedTuple):
    """A message of the window. Reasons refer to it by `label`."""

    name: str
    text: str
    label: FoundIn


class SemanticHit(NamedTuple):
    """An entry found by the search: its score, its rank from 1 and the matching signals.

    `kind` tells if its meaning or its words matched.
    """

    score: float
    rank: int
    signals: tuple[Match, ...] = ()
    kind: Literal["semantic", "words"] = "semantic"


TOO_MANY_MACROS = "Entries or keys are left out: what their macros do goes beyond the limits."


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The input that decides which entries are in a prompt.

    Attributes:
        books: Books in order of precedence between entries of the same order: chat, chronicle,
            persona, characters, global. See `sources`.
        messages: Newest first. As many as the deepest scan may need, or all.
        budget: Tokens for lore (see `compute_lore_budget`).
        room: Tokens left in the prompt. Entries that ignore the budget stay within this limit.
        count: Returns the number of tokens of a text.
        vocabulary: The vocabulary of `count`. If set, counts of texts without macros are cached
            with the compiled entries.
        message_count: Messages on the active path, including the new one.
        reply_count: Messages of characters on the active path, including the greeting.
        seed: Derived from chat and message. The same seed gives the same random draws.
        expand: Expands the macros of a key or a content. May raise `MacroLimitError`. Then the key
            matches nothing, and the entry is left out.
        fields: Texts of the cast that entries may search.
        note: The author's note, if keys are searched in it.
        speaker, tags: Name and tags of the character whose turn it is.
        triggers: The kind of the turn.
        semantic: Entries found by meaning or by words.
        by_meaning: True if search by meaning ran. If not, entries with the mode "meaning" are found
            by their keys as well.
        inactive: Entries that come from messages outside the active path. They are ignored.
        greeting: Index of the greeting that opened the chat, or None if unknown.
        evaluator: Runs regexes that RE2 does not support. Without it, they are skipped with a note.
        process_seconds: Time limit of all such regexes together.
        sources: The origin of each book by its id. Other books belong to the chat.
    """

    books: Sequence[CompiledBook]
    messages: Sequence[ScannedLine]
    settings: LoreSettings
    budget: int
    count: Callable[[str], int]
    message_count: int
    seed: int
    vocabulary: str = ""
    reply_count: int = 0
    expand: Callable[[str], str] = str
    room: int | None = None
    fields: Mapping[MatchedField, str] = field(default_factory=dict[MatchedField, str])
    note: str = ""
    speaker: str = ""
    tags: Collection[str] = ()
    triggers: Sequence[Trigger] = ("normal",)
    timed: TimedState = NO_EFFECTS
    semantic: Mapping[UUID, SemanticHit] = field(default_factory=dict[UUID, SemanticHit])
    by_meaning: bool = False
    inactive: Collection[UUID] = frozenset()
    greeting: int | None = None
    evaluator: Evaluator | None = None
    process_seconds: float = 0.25
    sources: Mapping[UUID, LinkSource] = field(default_factory=dict[UUID, LinkSource])


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveEntry:
    """An active entry with its reasons. `rank` is its rank in the search by meaning, or None.

    `from_start` replaces `depth` if a decorator counts messages from the first of the chat.
    """

    entry_id: UUID
    book_id: UUID
    title: str
    content: str
    tokens: int
    position: Position
    depth: int
    from_start: int | None
    role: Role
    outlet: str
    order: int
    reasons: list[Reason]
    is_constant: bool
    rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedEntry:
    """An entry that was considered and left out. `tokens` is 0 if they were not counted."""

    entry_id: UUID
    title: str
    tokens: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOutcome:
    """The result of a scan.

    Attributes:
        activated: Active entries in ascending order, overall and in each slot.
        left_out: Entries that were considered and left out: the first thousand.
        left_out_more: Number of further entries left out.
        not_found: Number of entries that did not occur and were not considered.
        timed: The state to store with the message of this prompt.
        notes: Notes for the author of the books, for example about a regex that timed out.
        tokens: Total tokens of the active entries.
    """

    activated: list[ActiveEntry]
    left_out: list[SkippedEntry]
    left_out_more: int
    not_found: int
    timed: TimedState
    notes: list[str]
    tokens: int


def compute_lore_reserve(settings: LoreSettings, context_tokens: int) -> int:
    """Return the tokens that history cedes to lore at most if lore needs them."""
    return math.floor(settings.reserve_percent * context_tokens / 100)


def compute_lore_budget(settings: LoreSettings, context_tokens: int) -> int:
    """Return the tokens for lore in a context of that size. A cap of 0 means no cap."""
    share = round(settings.budget_percent * context_tokens / 100)
    return min(share, settings.budget_cap) if settings.budget_cap else share
