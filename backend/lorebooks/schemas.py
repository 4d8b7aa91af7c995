"""Shapes of the lorebooks' part of the API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from backend.accounts.profile.settings import LoreMode
from backend.lorebooks.entries import MAX_ENTRIES, BookFields, LinkSource, LoreEntry
from backend.lorebooks.models import ChatLink

ExportFormat = Literal["world_info", "v2", "v3"]
BookName = Annotated[
    str, msgspec.Meta(min_length=1, max_length=500, pattern=r"\S", description="Not blank.")
]


class LorebookFields(BookFields, frozen=True, kw_only=True):
    """What can be changed of a lorebook. A global one is in every chat of the account."""

    is_global: bool = False


class NewLorebook(LorebookFields, frozen=True, kw_only=True):
    """A lorebook to make. Only `name` is required."""

    name: BookName  # pyright: ignore[reportGeneralTypeIssues]  # required when one is made


class NewLoreEntry(LoreEntry, frozen=True, kw_only=True):
    """An entry to make, behind the book's others. What is absent is as World Info has it."""


class LorebookLinks(msgspec.Struct, kw_only=True):
    """What a lorebook is linked to."""

    character_ids: list[UUID] = msgspec.field(default_factory=list[UUID])
    persona_ids: list[UUID] = msgspec.field(default_factory=list[UUID])
    chat_ids: list[UUID] = msgspec.field(default_factory=list[UUID])


class LorebookItem(msgspec.Struct, kw_only=True):
    """A lorebook as it is listed.

    `character_id` is set for the book of a card: it goes and comes with the character.
    `chronicle_id` likewise for the book of a chronicle: every chat on the chronicle has it.
    """

    id: UUID
    name: str
    entry_count: int
    is_global: bool
    character_id: UUID | None
    chronicle_id: UUID | None
    links: LorebookLinks
    revision: int
    created_at: datetime
    updated_at: datetime


class LorebookView(
    BookFields, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=False
):
    """A lorebook without its entries. `revision` counts their changes, too."""

    id: UUID
    entry_count: int
    is_global: bool
    character_id: UUID | None
    chronicle_id: UUID | None
    links: LorebookLinks
    revision: int
    created_at: datetime
    updated_at: datetime


class LoreEntryView(
    LoreEntry, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=False
):
    """An entry. `place` is where it stands in its book: lower ones first, with gaps between."""

    id: UUID
    lorebook_id: UUID
    place: int
    revision: int
    created_at: datetime
    updated_at: datetime


class EntryOrder(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All entries of a book, in the order in which they are to stand."""

    entry_ids: Annotated[list[UUID], msgspec.Meta(max_length=MAX_ENTRIES)]


class ImportedLorebook(msgspec.Struct, kw_only=True):
    """What came out of a file.

    `warnings` are sentences about what had to be bent or left out; `skipped` counts what was no
    entry. `found_by` is how its entries are found where they do not say: by the book's own word, or
    as the account has it. `job_id` is the job that makes the entries findable by meaning, null
    where none is needed; by their keys they are found at once.
    """

    lorebook: LorebookView
    skipped: int
    warnings: list[str]
    found_by: LoreMode
    job_id: UUID | None


class ChatLorebookItem(msgspec.Struct, kw_only=True):
    """A lorebook that a chat has, and the first place that it has it from."""

    lorebook: LorebookItem
    source: LinkSource
    is_off: bool


class ChatLorebookView(msgspec.Struct, kw_only=True):
    """What a chat says of a lorebook, and where else it has it from.

    `state` is null where the chat says nothing. Switched off wins over every link.
    """

    lorebook_id: UUID
    state: ChatLink | None
    source: LinkSource | None
    is_off: bool


class ChatLorebookChange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`linked` links the lorebook to the chat; `off` switches it off there, however linked."""

    state: ChatLink
