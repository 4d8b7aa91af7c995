"""A card file into rows: read, its picture encoded anew, all of it sealed. CPU-bound, no database.

Everything that can be refused is refused here, before a transaction begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec

from backend.characters.avatars import ImageError, sealed_avatar
from backend.characters.card_books import CardBooks, ReadyBook
from backend.characters.cards.codec import without
from backend.characters.cards.model import Asset, Card
from backend.characters.cards.reader import read_card
from backend.characters.cards.text import parse_json
from backend.characters.cards.versions import normalise
from backend.characters.models import (
    ASSET_DATA,
    ASSET_DESCRIPTION,
    CARD_FILE,
    CHARACTER_SOURCE,
    AssetDescription,
    Avatar,
    CardFile,
    Character,
    CharacterAsset,
    seal_card,
)
from backend.database.base import Base, new_id
from backend.errors import TooLargeError, ValidationError
from backend.vault.sealing import Sealer

BOOK: Final = "character_book"


@dataclass(frozen=True, slots=True)
class ImportedRows:
    """A character as it will be stored, and what to tell the person who imports.

    `card` is without its book, which is kept apart. `files` are the rows of the PNG that it came
    in, or of what stood beside it in its archive.
    """

    card: Card
    character: Character
    avatar: Avatar | None
    files: list[Base]
    book: ReadyBook | None
    warnings: list[str]


def import_rows(sealer: Sealer, data: bytes, books: CardBooks) -> ImportedRows:
    """Read a card file for the owner of `sealer`.

    A card is worth having without its picture: one that can't be read costs a warning.

    Raises:
        CardError: Broken, no card, or over a limit.
        TooLargeError: A file of more than `MAX_FILE_BYTES`.
    """
    imported = read_card(data)
    card = without_book(imported.card)
    character = new_character(sealer, card, source=_bookless(imported.raw))
    book = prepared_book(sealer, books, imported.card, character.id)
    warnings = [*imported.warnings, *(book.warnings if book else ())]
    avatar = None
    if imported.avatar is not None:
        try:
            avatar = sealed_avatar(
                sealer, Avatar.character_id, character.id, imported.avatar, is_imported=True
            )
        except (ImageError, TooLargeError) as error:
            warnings.append(f"The card came without its picture: {error.detail}")
    files: list[Base] = [_asset(sealer, character.id, asset) for asset in imported.assets]
    if imported.is_png:
        files.append(_card_file(sealer, character.id, data))
    return ImportedRows(card, character, avatar, files, book, warnings)


def without_book(card: Card) -> Card:
    """A card as it is stored."""
    return msgspec.structs.replace(card, character_book=None)


def prepared_book(
    sealer: Sealer,
    books: CardBooks,
    card: Card,
    character_id: UUID,
    *,
    replaced: UUID | None = None,
) -> ReadyBook | None:
    """A card's book, ready to be stored; None where it has none. Raises `CardLimitError`."""
    if card.character_book is None:
        return None
    return books.prepare(
        sealer,
        card.character_book,
        character_id=character_id,
        name=card.nickname or card.name,
        replaced=replaced,
    )


def _bookless(raw: dict[str, Any]) -> dict[str, Any]:
    """A card's source without its book, which has a source of its own."""
    kept = without(raw, {BOOK})
    if isinstance(kept.get("data"), dict):
        kept["data"] = without(kept["data"], {BOOK})
    return kept


def new_rows(sealer: Sealer, card: Card, books: CardBooks) -> ImportedRows:
    """The rows of a character that is made here. CPU-bound.

    Raises `CardError`, `ValidationError` (see `check_card`).
    """
    checked = check_card(card)
    kept = without_book(checked)
    character = new_character(sealer, kept)
    book = prepared_book(sealer, books, checked, character.id)
    return ImportedRows(kept, character, None, [], book, [])


def new_character(sealer: Sealer, card: Card, *, source: dict[str, Any] | None = None) -> Character:
    """A character's row, sealed."""
    character_id = new_id()
    character = Character(
        id=character_id,
        user_id=sealer.user_id,
        sealed_source=(
            None
            if source is None
            else sealer.seal_bytes(CHARACTER_SOURCE, character_id, msgspec.json.encode(source))
        ),
    )
    seal_card(sealer, character, card)
    return character


def check_card(card: Card) -> Card:
    """The card as it would be read from a file: what can be typed in can be exported and imported.

    CPU-bound. Raises `CardError` (no name) or `CardLimitError`, as an import does, and
    `ValidationError` for what an import would bend.
    """
    envelope = {"spec": "chara_card_v3", "spec_version": "3.0", "data": card}
    found = normalise(parse_json(msgspec.json.encode(envelope)))
    if found.warnings:
        raise ValidationError(f"It would not be stored as it is: {' '.join(found.warnings)}")
    return found.card


def _card_file(sealer: Sealer, character_id: UUID, data: bytes) -> CardFile:
    file_id = new_id()
    return CardFile(
        id=file_id,
        user_id=sealer.user_id,
        character_id=character_id,
        sealed_data=sealer.seal_bytes(CARD_FILE, file_id, data),
    )


def _asset(sealer: Sealer, character_id: UUID, asset: Asset) -> CharacterAsset:
    asset_id = new_id()
    description = AssetDescription(path=asset.path, media_type=asset.media_type)
    return CharacterAsset(
        id=asset_id,
        user_id=sealer.user_id,
        character_id=character_id,
        sealed_description=sealer.seal_bytes(
            ASSET_DESCRIPTION, asset_id, msgspec.json.encode(description)
        ),
        sealed_data=sealer.seal_bytes(ASSET_DATA, asset_id, asset.data),
    )
