"""The fields and settings of lorebooks and entries, and their limits."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from backend.accounts.profile.settings import DEFAULT_LORE_MODE, LoreMode, LoreStrategy
from backend.generation.model import Role
from backend.lorebooks.errors import LorebookFullError, LoreLimitError

MAX_KEYS = 200
MAX_CONTENT = 200_000

Key = Annotated[str, msgspec.Meta(max_length=2_000)]
Keys = Annotated[list[Key], msgspec.Meta(max_length=MAX_KEYS)]
Name = Annotated[str, msgspec.Meta(max_length=500)]
Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
Logic = Literal["and_any", "not_all", "not_any", "and_all"]
"""Logic of secondary keys: any, not all, none, all. World Info's 0 to 3, in order."""

Position = Literal[
    "before_character",
    "after_character",
    "note_top",
    "note_bottom",
    "at_depth",
    "examples_top",
    "examples_bottom",
    "outlet",
]
"""Position of an entry in the prompt. World Info's 0 to 7, in order."""

Trigger = Literal["normal", "continue", "impersonate", "swipe", "regenerate", "quiet", "other"]
"""A kind of turn. No turn is `other`: it represents unknown kinds of imported entries."""

LinkSource = Literal["chat", "chronicle", "persona", "character", "global"]
"""Source of a chat's lorebook. The source of a card's own book is its character."""

MatchedField = Literal[
    "persona_description",
    "character_description",
    "character_personality",
    "character_depth_prompt",
    "scenario",
    "creator_notes",
]
"""Fields of the cast that can be searched for keys in addition to the messages."""


class CharacterFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Restricts an entry to characters by name or tag, or excludes them."""

    is_exclude: bool = False
    names: Annotated[list[Name], msgspec.Meta(max_length=MAX_KEYS)] = []
    tags: Annotated[list[Name], msgspec.Meta(max_length=MAX_KEYS)] = []


class LoreEntry(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """An entry of a lorebook, with World Info's defaults.

    None in `mode`, `scan_depth`, `case_sensitive`, `match_whole_words` and `use_group_scoring`
    means the default of the book or else of the chat. `vectorized` is World Info's flag for search
    by meaning regardless of the book's mode. `probability` is a percentage. `sticky`, `cooldown`
    and `delay` count messages. `delay_until_recursion` is the recursion level at which the entry
    becomes available, 0 for no delay.
    """

    title: Name = ""
    content: Annotated[str, msgspec.Meta(max_length=MAX_CONTENT)] = ""
    keys: Keys = []
    secondary_keys: Keys = []
    selective: bool = True
    logic: Logic = "and_any"
    enabled: bool = True
    constant: bool = False
    mode: LoreMode | None = None
    vectorized: bool = False
    order: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 100
    position: Position = "before_character"
    depth: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 4
    role: Role = "system"
    outlet: Name = ""
    ignore_budget: bool = False
    exclude_recursion: bool = False
    prevent_recursion: bool = False
    delay_until_recursion: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 0
    probability: Annotated[float, msgspec.Meta(ge=0, le=100)] = 100
    use_probability: bool = True
    group: Name = ""
    group_override: bool = False
    group_weight: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 100
    use_group_scoring: bool | None = None
    scan_depth: Annotated[int, msgspec.Meta(ge=0, le=1_000)] | None = None
    case_sensitive: bool | None = None
    match_whole_words: bool | None = None
    sticky: Count | None = None
    cooldown: Count | None = None
    delay: Count | None = None
    character_filter: CharacterFilter = msgspec.field(default_factory=CharacterFilter)
    triggers: Annotated[list[Trigger], msgspec.Meta(max_length=10)] = []
    match_fields: Annotated[list[MatchedField], msgspec.Meta(max_length=10)] = []
    automation_id: Name = ""


class BookFields(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A lorebook's description and the defaults of its entries. None means the chat's default.

    `token_budget` is the maximum number of tokens of the book's entries in a prompt.
    """

    name: Name = ""
    description: Annotated[str, msgspec.Meta(max_length=20_000)] = ""
    scan_depth: Annotated[int, msgspec.Meta(ge=0, le=1_000)] | None = None
    token_budget: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] | None = None
    recursive_scanning: bool | None = None
    case_sensitive: bool | None = None
    match_whole_words: bool | None = None
    use_group_scoring: bool | None = None
    mode: LoreMode | None = None


def find_mode(entry: LoreEntry, fields: BookFields) -> LoreMode | None:
    """Return the mode of an entry or else of its book. None if neither sets it."""
    mode = entry.mode or fields.mode
    return "keys_and_meaning" if entry.vectorized and mode == "keys" else mode


class LoreSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Scan settings of a chat or account. They apply to books that do not set their own."""

    scan_depth: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 2
    budget_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 25
    budget_cap: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 0
    reserve_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 25
    include_names: bool = True
    recursive: bool = True
    max_recursion_steps: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    case_sensitive: bool = False
    match_whole_words: bool = True
    use_group_scoring: bool = False
    min_activations: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 0
    min_activations_depth: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 0
    strategy: LoreStrategy = "character_first"
    mode: LoreMode = DEFAULT_LORE_MODE


MAX_ENTRIES = 20_000
"""Entries in one book."""

MAX_BOOKS = 10_000
"""Books of one user, including those of cards."""


def check_entries(found: int) -> None:
    """Raise `LoreLimitError` if a file has more entries than a book may contain."""
    if found > MAX_ENTRIES:
        raise LoreLimitError(
            f"The lorebook has {found:,} entries; {MAX_ENTRIES:,} are allowed. Split it.",
            limit="lorebook_entries",
            allowed=MAX_ENTRIES,
            found=found,
        )


def check_room(found: int) -> None:
    """Raise `LorebookFullError` if a book with `found` entries is full."""
    if found >= MAX_ENTRIES:
        raise LorebookFullError(
            f"A lorebook can have {MAX_ENTRIES:,} entries. Delete some, or start another book.",
            extra={"limit": "lorebook_entries", "allowed": MAX_ENTRIES},
        )


def check_books(found: int) -> None:
    """Raise `LorebookFullError` if a user with `found` books may not add another."""
    if found >= MAX_BOOKS:
        raise LorebookFullError(
            f"An account can have {MAX_BOOKS:,} lorebooks. Delete some first.",
            extra={"limit": "lorebooks", "allowed": MAX_BOOKS},
        )
