"""What is sealed in the rows of characters and personas: JSON, one blob a column."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from backend.characters.cards.model import Asset, Card
from backend.characters.models import (
    ASSET_DATA,
    ASSET_DESCRIPTION,
    CHARACTER_CARD,
    CHARACTER_SOURCE,
    CHARACTER_SUMMARY,
    PERSONA,
    Character,
    CharacterAsset,
    Persona,
)
from backend.characters.schemas import PersonaFields
from backend.vault.sealing import Sealer


class Summary(msgspec.Struct, kw_only=True):
    """What lists show and search of a card: apart from it, so that no list opens whole cards."""

    name: str
    nickname: str
    tags: list[str]
    creator: str


class AssetDescription(msgspec.Struct, kw_only=True):
    """Where a file of a CHARX archive stood in it, and what its extension says it is."""

    path: str
    media_type: str


def seal_card(sealer: Sealer, row: Character, card: Card) -> None:
    """Put a card, and its summary, into a row."""
    summary = Summary(name=card.name, nickname=card.nickname, tags=card.tags, creator=card.creator)
    row.sealed_summary = sealer.seal_bytes(CHARACTER_SUMMARY, row.id, msgspec.json.encode(summary))
    row.sealed_card = sealer.seal_bytes(CHARACTER_CARD, row.id, msgspec.json.encode(card))


def open_card(sealer: Sealer, row_id: UUID, blob: bytes) -> Card:
    """A row's card."""
    return msgspec.json.decode(sealer.open_bytes(CHARACTER_CARD, row_id, blob), type=Card)


def open_summary(sealer: Sealer, row_id: UUID, blob: bytes) -> Summary:
    """What lists show of a row."""
    return msgspec.json.decode(sealer.open_bytes(CHARACTER_SUMMARY, row_id, blob), type=Summary)


def open_source(sealer: Sealer, row_id: UUID, blob: bytes | None) -> dict[str, Any]:
    """The card as it came in; an empty object for a character that was never imported."""
    if blob is None:
        return {}
    data = sealer.open_bytes(CHARACTER_SOURCE, row_id, blob)
    return msgspec.json.decode(data, type=dict[str, Any])


def open_asset(sealer: Sealer, row: CharacterAsset) -> Asset:
    """A file that came with a card."""
    described = msgspec.json.decode(
        sealer.open_bytes(ASSET_DESCRIPTION, row.id, row.sealed_description), type=AssetDescription
    )
    data = sealer.open_bytes(ASSET_DATA, row.id, row.sealed_data)
    return Asset(described.path, described.media_type, data)


def seal_persona(sealer: Sealer, row: Persona, fields: PersonaFields) -> None:
    """Put a persona's texts into its row."""
    row.sealed_persona = sealer.seal_bytes(PERSONA, row.id, msgspec.json.encode(fields))


def open_persona(sealer: Sealer, row_id: UUID, blob: bytes) -> PersonaFields:
    """A persona's texts."""
    return msgspec.json.decode(sealer.open_bytes(PERSONA, row_id, blob), type=PersonaFields)
