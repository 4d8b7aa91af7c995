"""Requests and responses of the API of characters and personas."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from backend.accounts.profile.settings import LoreMode
from backend.characters.cards.model import NAME, TEXT, Card

AvatarSize = Literal["full", "thumbnail"]
ExportFormat = Literal["png", "json", "charx"]

GivenName = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=NAME.allowed, pattern=r"\S", description="Not blank."),
]
MAX_EXPORTED = 500
"""Limit of characters in one export."""


class NewCharacter(Card, kw_only=True, forbid_unknown_fields=True):
    """A new character: the fields of its card. Only `name` is required."""


class CharacterChange(Card, kw_only=True, forbid_unknown_fields=True):
    """The fields of a card that can be changed.

    With `keeps_memories`, the character remembers in each chat what it learned in its others. An
    exported card has it as `extensions.talekeeper.keeps_memories`. A favourite is marked for lists;
    its card and its `revision` do not change.
    """

    keeps_memories: bool = False
    is_favourite: bool = False


class CharacterView(Card, kw_only=True):
    """A character: the fields of its card, and the data that Talekeeper keeps with it.

    `lorebook_id` is the lorebook made from the card's `character_book`. `scripts_allowed` is true
    if the card's regex scripts may run, and null until the user is asked. `preset_id` is the prompt
    preset of its chats that choose none. With `keeps_memories`, it remembers in each chat what it
    learned in its others.
    """

    id: UUID
    lorebook_id: UUID | None
    scripts_allowed: bool | None
    preset_id: UUID | None
    keeps_memories: bool
    is_favourite: bool
    has_avatar: bool
    revision: int
    created_at: datetime
    updated_at: datetime


class CharacterItem(msgspec.Struct, kw_only=True):
    """A character in a list."""

    id: UUID
    name: str
    nickname: str
    tags: list[str]
    creator: str
    is_favourite: bool
    has_avatar: bool
    revision: int
    created_at: datetime
    updated_at: datetime


class CharacterCopy(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The name of a copy. By default it is the name of the original with "(copy)" at its end."""

    name: GivenName | None = None


class CharacterExport(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The characters to export in one zip, and the format of their cards."""

    character_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=MAX_EXPORTED)]
    format: ExportFormat = "png"


class ScriptConsent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Permission for a card's regex scripts to run."""

    allowed: bool


class CardLorebook(msgspec.Struct, kw_only=True):
    """The lorebook made from a card's `character_book`."""

    id: UUID
    name: str
    entry_count: int
    mode: LoreMode | None = None


class ImportedCharacter(msgspec.Struct, kw_only=True):
    """The character made from a file.

    `lorebook` is the lorebook made from the card's `character_book`, and `found_by` the activation
    of entries that specify none. `warnings` are sentences about data that was changed or left out.
    """

    character: CharacterView
    lorebook: CardLorebook | None
    found_by: LoreMode | None
    warnings: list[str]


class PersonaFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A name and description that the user plays under."""

    name: GivenName
    description: Annotated[str, msgspec.Meta(max_length=TEXT.allowed)] = ""


class PersonaView(msgspec.Struct, kw_only=True):
    """A persona."""

    id: UUID
    name: str
    description: str
    has_avatar: bool
    revision: int
    created_at: datetime
    updated_at: datetime
