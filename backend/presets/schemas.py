"""Schemas of the presets API."""

from datetime import datetime
from uuid import UUID

import msgspec

from backend.context.blocks import Block, LorePlacement
from backend.generation.sampling import Sampling


class PresetItem(msgspec.Struct, kw_only=True):
    """A preset in a list."""

    id: UUID
    name: str
    revision: int
    created_at: datetime
    updated_at: datetime


class PresetView(msgspec.Struct, kw_only=True):
    """A preset. Members of blocks with default values are left out."""

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
    """A preset from a file, with warnings about members that were changed or ignored."""

    preset: PresetView
    warnings: list[str]
