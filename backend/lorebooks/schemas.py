"""API schemas of lorebooks."""

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
    """The editable fields of a lorebook. A global lorebook applies to all chats of the account."""

    is_global: bool = False


class NewLorebook(LorebookFields, frozen=True, kw_only=True):
    """A lorebook to create. Only `name` is required."""

    name: BookName  # pyright: ignore[reportGeneralTypeIssues]  # required on creation


class NewLoreEntry(LoreEntry, frozen=True, kw_only=True):
    """An entry to create. Absent fields get World Info's defaults."""


class LorebookLinks(msgspec.Struct, kw_only=True):
    """The characters, personas and chats that a lorebook is linked to."""

    character_ids: list[UUID] = msgspec.field(default_factory=list[UUID])
    persona_ids: list[UUID] = msgspec.field(default_factory=list[UUID])
    chat_ids: list[UUID] = msgspec.field(default_factory=list[UUID])


class LorebookItem(msgspec.Struct, kw_only=True):
    """A lorebook in a list.

    `character_id` is set for the book of a card, which is deleted with its character.
    `chronicle_id` is set for the book of a chronicle, which applies to all chats of the chronicle.
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
    """A lorebook without its entries. `revision` also counts changes of entries."""

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
    """An entry. `place` orders the entries of a book, in ascending order and with gaps."""

    id: UUID
    lorebook_id: UUID
    place: int
    revision: int
    created_at: datetime
    updated_at: datetime


class EntryOrder(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All entries of a book in the new order."""

    entry_ids: Annotated[list[UUID], msgspec.Meta(max_length=MAX_ENTRIES)]


class ImportedLorebook(msgspec.Struct, kw_only=True):
    """The result of an import.

    `warnings` are sentences about values that were adapted or left out. `skipped` counts items that
    were not entries. `found_by` is the mode of entries that set none: the book's or the account's.
    `job_id` is the job that indexes the entries for search by meaning, or null if none is needed.
    Search by keys works at once.
    """

    lorebook: LorebookView
    skipped: int
    warnings: list[str]
    found_by: LoreMode
    job_id: UUID | None


class ChatLorebookItem(msgspec.Struct, kw_only=True):
    """A lorebook of a chat and the first source that the chat has it from."""

    lorebook: LorebookItem
    source: LinkSource
    is_off: bool


class ChatLorebookView(msgspec.Struct, kw_only=True):
    """A chat's own setting of a lorebook, and the other source it comes from.

    `state` is null if the chat has no setting. If `is_off` is set, all links are ignored.
    """

    lorebook_id: UUID
    state: ChatLink | None
    source: LinkSource | None
    is_off: bool


class ChatLorebookChange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`linked` links the lorebook to the chat. `off` disables it there despite other links."""

    state: ChatLink
