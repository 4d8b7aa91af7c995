"""Cards into rows: those of files, new ones and changed ones, checked and sealed. CPU-bound.

Everything that can be refused is refused here, before a transaction begins.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol
from urllib.parse import quote
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.characters.avatars import sealed_avatar
from backend.characters.cards.charx import main_icon
from backend.characters.cards.codec import without
from backend.characters.cards.model import Asset, Card, check_greetings
from backend.characters.cards.png import SIGNATURE, without_texts
from backend.characters.cards.reader import normalise, read_card
from backend.characters.cards.text import parse_json
from backend.characters.cards.writer import (
    ExportSpec,
    png_assets,
    to_changed_png,
    to_charx,
    to_json,
    to_png,
)
from backend.characters.errors import ImageError
from backend.characters.models import (
    ASSET_DATA,
    ASSET_DESCRIPTION,
    AVATAR_IMAGE,
    CARD_FILE,
    CHARACTER_SOURCE,
    AssetDescription,
    Avatar,
    CardFile,
    Character,
    CharacterAsset,
    open_asset,
    open_card,
    open_source,
    seal_card,
)
from backend.characters.repository import StoredPicture
from backend.characters.schemas import CardLorebook, ExportFormat
from backend.core.files import file_stem
from backend.database.base import Base, new_id
from backend.errors import TooLargeError, ValidationError
from backend.http.schemas import merge_patch
from backend.vault.sealing import Sealer


@dataclass(frozen=True, slots=True)
class ReadyBook:
    """A card's book, read and sealed: all that is left is to store it.

    Attributes:
        summary: What it will be.
        shown: The book as its card will show it.
        warnings: Sentences about what had to be bent or left out.
        store: Stores it for its character, in the place of the book that it may have.
    """

    summary: CardLorebook
    shown: dict[str, Any]
    warnings: Sequence[str]
    store: Callable[[AsyncSession, Identity], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StoredBook:
    """A card's book as it is kept, still sealed.

    `open` is CPU-bound and gives the book as its card shows it (`character_book`).
    """

    id: UUID
    open: Callable[[], dict[str, Any]]


class CardBooks(Protocol):
    """Keeps the books of cards as lorebooks of their own, and gives them back."""

    def prepare(
        self,
        sealer: Sealer,
        book: dict[str, Any],
        *,
        character_id: UUID,
        name: str,
        replaced: UUID | None,
    ) -> ReadyBook:
        """Read a card's book. CPU-bound, no database.

        Args:
            sealer: The owner's.
            book: The card's `character_book`, of any shape.
            character_id: The character that it is for.
            name: What it is called where it has no name: the character's.
            replaced: The lorebook in whose place it comes, if there is one.

        Raises:
            CardLimitError: Too many entries, or one that is too long.
        """
        ...

    def shown(self, book: dict[str, Any], *, name: str) -> dict[str, Any]:
        """A card's book as it is shown once it is stored. CPU-bound; raises as `prepare` does."""
        ...

    async def find(
        self, session: AsyncSession, identity: Identity, character_id: UUID
    ) -> StoredBook | None:
        """The book of a character's card."""
        ...

    async def drop(self, session: AsyncSession, identity: Identity, character_id: UUID) -> None:
        """Delete the book of a character's card, if it has one."""
        ...


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
    ready: ReadyBook | None = None
    drops_book: bool = False
    new_scripts: bool = False


def shown_ready(ready: ReadyBook | None) -> ShownBook | None:
    """A book that is about to be stored, as it is shown then."""
    return ShownBook(ready.summary.id, ready.shown) if ready else None


def shown_stored(card: Card, stored: StoredBook | None) -> ShownBook | None:
    """The book of a stored card. Those of older versions may have it in the card itself."""
    if stored is not None:
        return ShownBook(stored.id, stored.open())
    return None if card.character_book is None else ShownBook(None, card.character_book)


def patched(
    sealer: Sealer,
    row: Character,
    stored: StoredBook | None,
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


_FALLBACK_STEM = "character"
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9 ._-]+")


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file to download. `stem` is its name without the extension, of the user's own words."""

    data: bytes
    media_type: str
    stem: str
    extension: str

    @property
    def disposition(self) -> str:
        """The `Content-Disposition` header: the name in ASCII, and as it is (RFC 6266, 8187)."""
        stem = file_stem(self.stem, fallback=_FALLBACK_STEM)
        folded = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
        plain = file_stem(_NOT_PLAIN.sub("", folded), fallback=_FALLBACK_STEM)
        return (
            f'attachment; filename="{plain}.{self.extension}"; '
            f"filename*=UTF-8''{quote(stem, safe='')}.{self.extension}"
        )


@dataclass(slots=True)
class StoredCharacter:
    """What is stored of a character, still sealed. JSON needs neither file nor assets."""

    row: Character
    book: StoredBook | None
    picture: StoredPicture | None
    file: CardFile | None = None
    assets: Sequence[CharacterAsset] = ()


def exported(
    sealer: Sealer,
    stored: StoredCharacter,
    books: CardBooks,
    file_format: ExportFormat,
    spec: ExportSpec,
) -> ExportedFile:
    """A card as a file.

    JSON and PNG leave out the files of an archive. A PNG that was imported comes back byte for
    byte, but for what has changed; a character without a picture gets a placeholder there.
    """
    row = stored.row
    card = open_card(sealer, row.id, row.sealed_card)
    shown = shown_stored(card, stored.book)
    card = msgspec.structs.replace(card, character_book=shown.book if shown else None)
    source = open_source(sealer, row.id, row.sealed_source)
    if file_format == "json":
        return ExportedFile(to_json(card, source, spec), "application/json", card.name, "json")
    assets = [open_asset(sealer, asset) for asset in stored.assets]
    file = (
        sealer.open_bytes(CARD_FILE, stored.file.id, stored.file.sealed_data)
        if stored.file
        else None
    )
    icon = file or main_icon(card.assets, {asset.path: asset.data for asset in assets})
    is_imported = stored.picture is not None and stored.picture.is_imported and icon is not None
    picture = _picture(sealer, stored.picture, icon if is_imported else None)
    if file_format == "charx":
        if file is not None:
            card, assets = png_assets(card, file)
        is_inside = is_imported and file is None
        data = to_charx(card, source, picture=None if is_inside else picture, assets=assets)
        return ExportedFile(data, "application/zip", card.name, "charx")
    from backend.characters.pictures import placeholder_png  # noqa: PLC0415  # imports Pillow

    picture = picture or placeholder_png(card.name)
    if file is None:
        data = to_png(card, source, picture)
    else:
        before = _imported(file, books)
        data = to_changed_png(card, before, file, None if is_imported else picture)
    return ExportedFile(data, "image/png", card.name, "png")


def _picture(sealer: Sealer, stored: StoredPicture | None, came: bytes | None) -> bytes | None:
    """A picture as a PNG: just as it came, where it came in that format."""
    if stored is None:
        return None
    from backend.characters.pictures import as_png  # noqa: PLC0415  # imports Pillow

    if came is None:
        return as_png(sealer.open_bytes(AVATAR_IMAGE, stored.id, stored.sealed))
    return without_texts(came) if came.startswith(SIGNATURE) else as_png(came)


def _imported(file: bytes, books: CardBooks) -> Card:
    """The card of a PNG as it was shown when it had been imported."""
    card = read_card(file).card
    if card.character_book is None:
        return card
    shown = books.shown(card.character_book, name=card.nickname or card.name)
    return msgspec.structs.replace(card, character_book=shown)
