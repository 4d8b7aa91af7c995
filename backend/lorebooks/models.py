"""Tables of lorebooks, entries and links."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, Deletable, OwnerId, PrimaryId, UpdatedAt
from backend.vault.sealing import Column


class Lorebook(Deletable, Base):
    """A lorebook with its sealed settings and the sealed source it was imported from.

    `revision` counts all changes of the book and its entries. Compiled books are cached by it.
    `character_id` is set for the book of a card, which is deleted with its character.
    `chronicle_id` is set for the book in which the agent writes about the chats of a chronicle.
    """

    __tablename__ = "lorebooks"

    id: Mapped[PrimaryId]
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
    """An entry of a lorebook. `place` is its position in the book, from 0.

    The other columns describe entries written by the agent. `agent_run_id` is the run.
    `agent_revision` is the last revision that the agent wrote. If a user changes the entry, it
    belongs to the user. The entry is active while `source_message_id`, the last message it comes
    from, is on the active path. If that chat is deleted, it is always active.
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
    """A link from a lorebook to exactly one character or persona."""

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
    """A chat's own setting of a lorebook: linked or disabled."""

    __tablename__ = "chat_lorebooks"

    chat_id: Mapped[UUID] = mapped_column(
        ForeignKey("chats.id", ondelete="CASCADE"), primary_key=True
    )
    lorebook_id: Mapped[UUID] = mapped_column(
        ForeignKey("lorebooks.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    state: Mapped[ChatLink] = mapped_column(String)


class LoreState(Base):
    """Sticky and cooldown states after a message. They follow the message tree.

    `id` is the message's id, `position` its depth. Without a row, the message changed no state.
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
