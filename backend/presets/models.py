"""The table of prompt presets, and its sealed JSON columns."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from backend.context.blocks import PresetFields
from backend.database.base import Base, CreatedAt, ListedOwnerId, PrimaryId, UpdatedAt
from backend.vault.sealing import Column, Sealer

_FIELDS = msgspec.json.Decoder(PresetFields)


class Preset(Base):
    """A prompt preset: its name for lists, its fields, and the file that it was imported from."""

    __tablename__ = "presets"
    __table_args__ = (Index(None, "user_id", "id"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    sealed_name: Mapped[bytes]
    sealed_preset: Mapped[bytes]
    sealed_source: Mapped[bytes | None]
    revision: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


PRESET_NAME = Column("presets", "sealed_name")
PRESET = Column("presets", "sealed_preset")
PRESET_SOURCE = Column("presets", "sealed_source")


def seal_preset(sealer: Sealer, row: Preset, fields: PresetFields) -> None:
    row.sealed_name = sealer.seal(PRESET_NAME, row.id, fields.name)
    row.sealed_preset = sealer.seal_bytes(PRESET, row.id, msgspec.json.encode(fields))


def open_preset(sealer: Sealer, row_id: UUID, blob: bytes) -> PresetFields:
    return _FIELDS.decode(sealer.open_bytes(PRESET, row_id, blob))


def seal_source(sealer: Sealer, row: Preset, source: dict[str, Any]) -> None:
    row.sealed_source = sealer.seal_bytes(PRESET_SOURCE, row.id, msgspec.json.encode(source))


def open_source(sealer: Sealer, row: Preset) -> dict[str, Any]:
    """Return the imported file of a preset; an empty object if it was created here."""
    if row.sealed_source is None:
        return {}
    data = sealer.open_bytes(PRESET_SOURCE, row.id, row.sealed_source)
    return msgspec.json.decode(data, type=dict[str, Any])
