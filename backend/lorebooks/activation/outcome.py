"""What goes into a scan and what comes out of it."""

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
    """A message of the window; `label` names it in reasons."""

    name: str
    text: str
    label: FoundIn


class SemanticHit(NamedTuple):
    """An entry that a search found: its score, its place from 1, and why.

    `kind` says whether its meaning brought it in or its words.
    """

    score: float
    rank: int
    signals: tuple[Match, ...] = ()
    kind: Literal["semantic", "words"] = "semantic"


TOO_MANY_MACROS = "Entries or keys are left out: what their macros do goes beyond the limits."


@dataclass(frozen=True, kw_only=True)
class Scan:
    """All that decides which entries are in a prompt.

    Attributes:
        books: The chat's, its chronicle's, the persona's, the characters', global ones, as far as
            entries of the same order go; see `sources`.
        messages: Newest first; as many as the deepest scan may want, or all there are.
        budget: Tokens that lore may take (see `compute_lore_budget`).
        room: Tokens that are left for lore at all. What ignores the budget stays within this.
        count: Tokens of a text.
        vocabulary: What `count` counts in. Named, counts of texts without macros are kept with the
            compiled entries.
        message_count: Messages on the chat's active path, the new line among them.
        reply_count: Those of them that are the characters', greeting included.
        seed: Of chat and message. The same seed makes the same draws.
        expand: Expands the macros of a key or a content. May raise `MacroLimitError`: then the key
            matches nothing, and the entry is left out.
        fields: Texts of the cast that entries may opt to look into.
        note: The author's note, where keys are looked for in it.
        speaker, tags: Of the character that is about to speak.
        triggers: What kind of turn it is.
        semantic: What the search found, by its meaning or by its words.
        by_meaning: True if it went by meaning, too. If not, entries that are found by their meaning
            alone are found by their keys as well.
        inactive: Entries that do not count: what they come from is not on the active path.
        greeting: Which greeting the chat was opened with, from 0. Null: not known.
        evaluator: For regexes that RE2 does not take. Without, they are left out with a note.
        process_seconds: What such regexes may take together.
        sources: Where the chat has each book from, by its id. Those not named are the chat's own.
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
    """An entry that is in, and why. `rank` is its place in the search by meaning, if that found it.

    `from_start` is set in place of `depth` where a decorator counts messages from the chat's first.
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
    """An entry that was considered and is out, and why. `tokens` is 0 where none were counted."""

    entry_id: UUID
    title: str
    tokens: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOutcome:
    """What a scan came to.

    Attributes:
        activated: By order, ascending, so ascending in each slot too.
        left_out: The considered ones that are out; the first thousand.
        left_out_more: How many more there are.
        not_found: How many entries were not considered: nothing of theirs occurs.
        timed: The state to keep with the message that this prompt is for.
        notes: What the books' author should know, such as a regex that was given up.
        tokens: What the activated entries take together.
    """

    activated: list[ActiveEntry]
    left_out: list[SkippedEntry]
    left_out_more: int
    not_found: int
    timed: TimedState
    notes: list[str]
    tokens: int


def compute_lore_reserve(settings: LoreSettings, context_tokens: int) -> int:
    """Tokens that history leaves to lore at most, where lore needs them."""
    return math.floor(settings.reserve_percent * context_tokens / 100)


def compute_lore_budget(settings: LoreSettings, context_tokens: int) -> int:
    """Tokens that lore may take of a context of that size. A cap of 0 is none."""
    share = round(settings.budget_percent * context_tokens / 100)
    return min(share, settings.budget_cap) if settings.budget_cap else share
