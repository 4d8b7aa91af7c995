"""Shapes of the characters' and personas' part of the API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from backend.accounts.profile.settings import LoreMode
from backend.characters.cards.model import NAME, TEXT, Card

AvatarSize = Literal["full", "thumbnail"]
ExportFormat = Literal["png", "json", "charx"]


class NewCharacter(Card, kw_only=True, forbid_unknown_fields=True):
    """A character to make: the fields of its card. Only `name` is required."""


class CharacterView(Card, kw_only=True):
    """A character: the fields of its card, and what Talekeeper knows besides.

    `lorebook_id` is the lorebook that is kept for the card's `character_book`. `scripts_allowed`
    says whether the card's regex scripts may run; null until the user is asked. `preset_id` is the
    prompt preset of its chats that choose none.
    """

    id: UUID
    lorebook_id: UUID | None
    scripts_allowed: bool | None
    preset_id: UUID | None
    has_avatar: bool
    revision: int
    created_at: datetime
    updated_at: datetime


class CharacterItem(msgspec.Struct, kw_only=True):
    """A character as it is listed."""

    id: UUID
    name: str
    nickname: str
    tags: list[str]
    creator: str
    has_avatar: bool
    revision: int
    created_at: datetime
    updated_at: datetime


class ScriptConsent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether a card's regex scripts may run."""

    allowed: bool


class CardLorebook(msgspec.Struct, kw_only=True):
    """The lorebook that a card's book became."""

    id: UUID
    name: str
    entry_count: int
    mode: LoreMode | None = None


class ImportedCharacter(msgspec.Struct, kw_only=True):
    """What came out of a file.

    `lorebook` is what the card's embedded book became, and `found_by` how its entries are found
    where they do not say. `warnings` are sentences about what had to be bent or left out.
    """

    character: CharacterView
    lorebook: CardLorebook | None
    found_by: LoreMode | None
    warnings: list[str]


class PersonaFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Who the user is in a chat."""

    name: Annotated[
        str,
        msgspec.Meta(
            min_length=1, max_length=NAME.allowed, pattern=r"\S", description="Not blank."
        ),
    ]
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
