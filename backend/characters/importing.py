"""Cards into rows: those of files, new ones and changed ones, checked and sealed. CPU-bound.

Everything that can be refused is refused here, before a transaction begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import msgspec

from backend.characters.avatars import seal_avatar
from backend.characters.card_rows import CardBooks, BookImport, LazyBook
from backend.characters.cards.codec import omit
from backend.characters.cards.model import Asset, Card
from backend.characters.cards.reader import read_card
from backend.characters.cards.text import parse_json
from backend.characters.cards.reader import normalise
from backend.characters.errors import ImageError
from backend.characters.cards.model import check_greetings
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
    open_card,
    seal_card,
)
from backend.database.base import Base, new_id
from backend.errors import TooLargeError, ValidationError
from backend.http.schemas import merge_patch
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
    book: BookImport | None
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
            avatar = seal_avatar(
                sealer, Avatar.character_id, character.id, imported.avatar, is_imported=True
            )
        except (ImageError, TooLargeError) as error:
            warnings.append(f"The card came omit its picture: {error.detail}")
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
) -> BookImport | None:
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
    kept = omit(raw, {BOOK})
    if isinstance(kept.get("data"), dict):
        kept["data"] = omit(kept["data"], {BOOK})
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
        raise ValidationError(
            f"The card would be changed when it is stored: {' '.join(found.warnings)}"
        )
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


@dataclass(frozen=True, slots=True)
class ShownBook:
    """A card's book as it is shown: its lorebook (None while it is in the card), its members."""

    lorebook_id: UUID | None
    book: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChangedCard:
    """A card with a patch merged into it, as it is stored, and what becomes of its book.

    `ready` is a book to be stored; `drops_book` says that the one that is there goes.
    `new_scripts` says that its regex scripts are other ones.
    """

    card: Card
    shown: ShownBook | None
    ready: BookImport | None = None
    drops_book: bool = False
    new_scripts: bool = False


def shown_ready(ready: BookImport | None) -> ShownBook | None:
    """A book that is about to be stored, as it is shown then."""
    return ShownBook(ready.summary.id, ready.shown) if ready else None


def shown_stored(card: Card, stored: LazyBook | None) -> ShownBook | None:
    """The book of a stored card. Those of older versions may have it in the card itself."""
    if stored is not None:
        return ShownBook(stored.id, stored.open())
    return None if card.character_book is None else ShownBook(None, card.character_book)


def patched(
    sealer: Sealer,
    row: Character,
    stored: LazyBook | None,
    patch: dict[str, Any],
    books: CardBooks,
    *,
    longest_greeting: int,
) -> ChangedCard:
    """Merge into a card; a patch of `character_book` merges into what is shown of its lorebook.

    Raises `CardError`, `ValidationError` (see `check_card`, `check_greetings`).
    """
    card = open_card(sealer, row.id, row.sealed_card)
    before = shown_stored(card, stored)
    keeps_book = stored is not None and BOOK not in patch
    book = before.book if before is not None and not keeps_book else None
    changed = check_card(merge_patch(msgspec.structs.replace(card, character_book=book), patch))
    check_greetings(changed, known=card, longest=longest_greeting)
    then, new = (each.extensions.get("regex_scripts") for each in (card, changed))
    result = ChangedCard(without_book(changed), before, new_scripts=new != then)
    if keeps_book or (stored is not None and book is not None and changed.character_book == book):
        return result
    replaced = stored.id if stored else None
    ready = prepared_book(sealer, books, changed, row.id, replaced=replaced)
    drops_book = ready is None and stored is not None
    return replace(result, shown=shown_ready(ready), ready=ready, drops_book=drops_book)
