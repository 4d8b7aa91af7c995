"""The table of presets and its queries. Nothing here commits. Rows of other users do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Index, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, defer, mapped_column

from backend.context.blocks import PresetFields
from backend.database.base import Base, CreatedAt, ListedOwnerId, PrimaryId, UpdatedAt
from backend.presets.errors import PresetNotFoundError
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


_WITHOUT_SOURCE = defer(Preset.sealed_source, raiseload=True)
_WITHOUT_PRESET = defer(Preset.sealed_preset, raiseload=True)


async def get_preset(
    session: AsyncSession,
    preset_id: UUID,
    *,
    owner_id: UUID,
    lock: bool = False,
    source: bool = False,
) -> Preset:
    """Raise `PresetNotFoundError` if it does not exist or belongs to another user.

    `source`: also load the imported file.
    """
    query = select(Preset).where(Preset.id == preset_id, Preset.user_id == owner_id)
    if not source:
        query = query.options(_WITHOUT_SOURCE)
    preset = await session.scalar(query.with_for_update() if lock else query)
    if preset is None:
        raise PresetNotFoundError
    return preset


async def list_presets(
    session: AsyncSession, *, owner_id: UUID, limit: int, after: UUID | None
) -> Sequence[Preset]:
    """Return presets of a user after `after`, newest first, only with their names."""
    query = (
        select(Preset)
        .options(_WITHOUT_SOURCE, _WITHOUT_PRESET)
        .where(Preset.user_id == owner_id)
        .order_by(Preset.id.desc())
        .limit(limit)
    )
    if after is not None:
        query = query.where(Preset.id < after)
    return list(await session.scalars(query))


async def count_presets(session: AsyncSession, *, owner_id: UUID) -> int:
    query = select(func.count()).select_from(Preset).where(Preset.user_id == owner_id)
    return await session.scalar(query) or 0
