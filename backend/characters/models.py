"""Tables of characters, personas and avatars, and the JSON structs sealed in their rows."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ForeignKey, Index, false, text
from sqlalchemy.orm import Mapped, mapped_column

from backend.characters.cards.model import Asset, Card
from backend.characters.schemas import PersonaFields
from backend.database.base import Base, CreatedAt, ListedOwnerId, OwnerId, PrimaryId, UpdatedAt
from backend.vault.sealing import Column, Sealer


class Character(Base):
    """A character: the summary for lists, the card, and the card as it was imported.

    `scripts_allowed` is true if the card's regex scripts may run, and None until the user is asked.
    `preset_id` is the prompt preset of chats that choose none; it may have been deleted. With
    `keeps_memories`, the character remembers in each chat what it learned in its others.
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
    preset_id: Mapped[UUID | None]
    keeps_memories: Mapped[bool] = mapped_column(default=False, server_default=false())
    is_favourite: Mapped[bool] = mapped_column(default=False, server_default=false())
    revision: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


CHARACTER_SUMMARY = Column("characters", "sealed_summary")
CHARACTER_CARD = Column("characters", "sealed_card")
CHARACTER_SOURCE = Column("characters", "sealed_source")


class CharacterAsset(Base):
    """A file imported with a card, such as another expression or a background, kept for export."""

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
    """The PNG file from which a card was imported, kept for an export that changes nothing else."""

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
    """A name and description that the user plays under."""

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
    """The picture and thumbnail of a character or of a persona. Each has at most one row.

    `is_imported` is true if it was imported with the character's card.
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


class Summary(msgspec.Struct, kw_only=True):
    """The fields of a card that lists show and search, so that no list opens whole cards."""

    name: str
    nickname: str
    tags: list[str]
    creator: str


class AssetDescription(msgspec.Struct, kw_only=True):
    """The path of a file in its CHARX archive, and its media type by the extension."""

    path: str
    media_type: str


def seal_card(sealer: Sealer, row: Character, card: Card) -> None:
    summary = Summary(name=card.name, nickname=card.nickname, tags=card.tags, creator=card.creator)
    row.sealed_summary = sealer.seal_bytes(CHARACTER_SUMMARY, row.id, msgspec.json.encode(summary))
    row.sealed_card = sealer.seal_bytes(CHARACTER_CARD, row.id, msgspec.json.encode(card))
    row.keeps_memories = card.remembers_chats


def open_card(sealer: Sealer, row_id: UUID, blob: bytes) -> Card:
    return msgspec.json.decode(sealer.open_bytes(CHARACTER_CARD, row_id, blob), type=Card)


def open_summary(sealer: Sealer, row_id: UUID, blob: bytes) -> Summary:
    return msgspec.json.decode(sealer.open_bytes(CHARACTER_SUMMARY, row_id, blob), type=Summary)


def open_source(sealer: Sealer, row_id: UUID, blob: bytes | None) -> dict[str, Any]:
    """Return the card as it was imported, or an empty object if the character was not imported."""
    if blob is None:
        return {}
    data = sealer.open_bytes(CHARACTER_SOURCE, row_id, blob)
    return msgspec.json.decode(data, type=dict[str, Any])


def open_asset(sealer: Sealer, row: CharacterAsset) -> Asset:
    described = msgspec.json.decode(
        sealer.open_bytes(ASSET_DESCRIPTION, row.id, row.sealed_description), type=AssetDescription
    )
    data = sealer.open_bytes(ASSET_DATA, row.id, row.sealed_data)
    return Asset(described.path, described.media_type, data)


def seal_persona(sealer: Sealer, row: Persona, fields: PersonaFields) -> None:
    row.sealed_persona = sealer.seal_bytes(PERSONA, row.id, msgspec.json.encode(fields))


def open_persona(sealer: Sealer, row_id: UUID, blob: bytes) -> PersonaFields:
    return msgspec.json.decode(sealer.open_bytes(PERSONA, row_id, blob), type=PersonaFields)
