"""Tables of lorebooks, their entries, and where they are linked."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, ListedOwnerId, OwnerId, PrimaryId, UpdatedAt
from backend.vault.sealing import Column


class Lorebook(Base):
    """A lorebook: what lists show, its settings, and what came in that is not known here.

    `revision` counts every change of the book and of its entries: a compiled book is cached by it.
    `character_id` is set for the book of a card, which goes and comes with the character.
    `chronicle_id` likewise for the book into which the agent writes what comes up in a chronicle's
    chats.
    """

    __tablename__ = "lorebooks"
    __table_args__ = (Index(None, "user_id", "id"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    character_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("characters.id", ondelete="CASCADE"), unique=True
    )
    chronicle_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("chronicles.id", ondelete="CASCADE"), unique=True, index=True
    )
    is_global: Mapped[bool] = mapped_column(default=False)
    sealed_book: Mapped[bytes]
    sealed_source: Mapped[bytes | None]
    revision: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


LOREBOOK_BOOK = Column("lorebooks", "sealed_book")
LOREBOOK_SOURCE = Column("lorebooks", "sealed_source")


class LoreEntryRow(Base):
    """An entry of a lorebook. `place` is where it stands in the book, from 0.

    The rest is of entries that the agent made: `agent_run_id` is its run, `agent_revision` the
    revision at which it left the entry (a user who changes it makes it theirs). The entry counts
    while `source_message_id`, the last message that it comes from, is on the active path; once
    that chat is deleted, always.
    """

    __tablename__ = "lore_entries"
    __table_args__ = (Index(None, "lorebook_id", "place"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    lorebook_id: Mapped[UUID] = mapped_column(ForeignKey("lorebooks.id", ondelete="CASCADE"))
    place: Mapped[int]
    agent_run_id: Mapped[UUID | None] = mapped_column(index=True)
    agent_revision: Mapped[int | None]
    source_chat_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("chats.id", ondelete="SET NULL"), index=True
    )
    source_message_id: Mapped[UUID | None]
    sealed_entry: Mapped[bytes]
    sealed_source: Mapped[bytes | None]
    revision: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


ENTRY = Column("lore_entries", "sealed_entry")
ENTRY_SOURCE = Column("lore_entries", "sealed_source")


class LorebookLink(Base):
    """A lorebook linked to a character or to a persona: to exactly one of them."""

    __tablename__ = "lorebook_links"
    __table_args__ = (
        UniqueConstraint("character_id", "lorebook_id"),
        UniqueConstraint("persona_id", "lorebook_id"),
    )

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    lorebook_id: Mapped[UUID] = mapped_column(
        ForeignKey("lorebooks.id", ondelete="CASCADE"), index=True
    )
    character_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("characters.id", ondelete="CASCADE")
    )
    persona_id: Mapped[UUID | None] = mapped_column(ForeignKey("personas.id", ondelete="CASCADE"))
    created_at: Mapped[CreatedAt]


ChatLink = Literal["linked", "off"]


class ChatLorebook(Base):
    """What one chat says of a lorebook: that it is linked, or that it is switched off here."""

    __tablename__ = "chat_lorebooks"

    chat_id: Mapped[UUID] = mapped_column(
        ForeignKey("chats.id", ondelete="CASCADE"), primary_key=True
    )
    lorebook_id: Mapped[UUID] = mapped_column(
        ForeignKey("lorebooks.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    state: Mapped[ChatLink] = mapped_column(String)


class LoreState(Base):
    """Which entries are sticky or cooling down behind a message: it follows the message tree.

    `id` is the message's, `position` its depth. A message without a row changed nothing.
    """

    __tablename__ = "lore_states"
    __table_args__ = (Index(None, "chat_id", "position"),)

    id: Mapped[UUID] = mapped_column(
        ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True
    )
    user_id: Mapped[OwnerId]
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    position: Mapped[int]
    sealed_state: Mapped[bytes]


LORE_STATE = Column("lore_states", "sealed_state")
