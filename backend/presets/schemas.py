"""Shapes of the presets' part of the API."""

from datetime import datetime
from uuid import UUID

import msgspec

from backend.context.blocks import Block, LorePlacement
from backend.generation.sampling import Sampling


class PresetItem(msgspec.Struct, kw_only=True):
    """A preset as it is listed."""

    id: UUID
    name: str
    revision: int
    created_at: datetime
    updated_at: datetime


class PresetView(msgspec.Struct, kw_only=True):
    """A preset. Members of blocks that are as by default are left out."""

    id: UUID
    name: str
    blocks: list[Block]
    sampling: Sampling
    squash_system_messages: bool
    lore_placement: LorePlacement
    revision: int
    created_at: datetime
    updated_at: datetime


class ChosenPreset(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The preset of a character; null for none."""

    preset_id: UUID | None


class ImportedPreset(msgspec.Struct, kw_only=True):
    """A preset that was made of a file, and what of the file is not as it was there."""

    preset: PresetView
    warnings: list[str]
