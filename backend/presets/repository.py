"""Queries of presets. Nothing here commits. Rows of other users do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from backend.presets.errors import PresetNotFoundError
from backend.presets.models import Preset

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
