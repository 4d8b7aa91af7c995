"""Tables of characters, personas and their pictures."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, ListedOwnerId, OwnerId, PrimaryId, UpdatedAt
from backend.vault.sealing import Column


class Character(Base):
    """A character: what lists show, the card, and the card as it came in.

    `scripts_allowed` says whether the card's regex scripts may run; None until the user is asked.
    """

    __tablename__ = "characters"
    __table_args__ = (
        Index(None, "user_id", "id"),
        Index(
            "ix_characters_scripts",
            "user_id",
            sqlite_where=text("scripts_allowed IS NOT NULL"),
            postgresql_where=text("scripts_allowed IS NOT NULL"),
        ),
    )

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    sealed_summary: Mapped[bytes]
    sealed_card: Mapped[bytes]
    sealed_source: Mapped[bytes | None]
    scripts_allowed: Mapped[bool | None]
    revision: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


CHARACTER_SUMMARY = Column("characters", "sealed_summary")
CHARACTER_CARD = Column("characters", "sealed_card")
CHARACTER_SOURCE = Column("characters", "sealed_source")


class CharacterAsset(Base):
    """A file that came with a card (another expression, a background), kept for export."""

    __tablename__ = "character_assets"

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    character_id: Mapped[UUID] = mapped_column(
        ForeignKey("characters.id", ondelete="CASCADE"), index=True
    )
    sealed_description: Mapped[bytes]
    sealed_data: Mapped[bytes]
    created_at: Mapped[CreatedAt]


ASSET_DESCRIPTION = Column("character_assets", "sealed_description")
ASSET_DATA = Column("character_assets", "sealed_data")


class CardFile(Base):
    """The PNG file that a card came in, for an export that changes nothing else in it."""

    __tablename__ = "card_files"

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    character_id: Mapped[UUID] = mapped_column(
        ForeignKey("characters.id", ondelete="CASCADE"), unique=True
    )
    sealed_data: Mapped[bytes]
    created_at: Mapped[CreatedAt]


CARD_FILE = Column("card_files", "sealed_data")


class Persona(Base):
    """Who the user is in a chat."""

    __tablename__ = "personas"
    __table_args__ = (Index(None, "user_id", "id"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    sealed_persona: Mapped[bytes]
    revision: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


PERSONA = Column("personas", "sealed_persona")


class Avatar(Base):
    """The picture of a character or of a persona, and its thumbnail: one row each at most.

    `is_imported` says that it came with the character's card.
    """

    __tablename__ = "avatars"

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    character_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("characters.id", ondelete="CASCADE"), unique=True
    )
    persona_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("personas.id", ondelete="CASCADE"), unique=True
    )
    media_type: Mapped[str]
    thumbnail_media_type: Mapped[str]
    is_imported: Mapped[bool] = mapped_column(default=False)
    sealed_image: Mapped[bytes]
    sealed_thumbnail: Mapped[bytes]
    created_at: Mapped[CreatedAt]


AVATAR_IMAGE = Column("avatars", "sealed_image")
AVATAR_THUMBNAIL = Column("avatars", "sealed_thumbnail")
