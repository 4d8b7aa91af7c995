"""Convert between cards and database rows: import, creation, change and export. CPU-bound.

Every check happens here, before a transaction begins.
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
from backend.characters.avatars import seal_avatar
from backend.characters.cards.charx import find_main_icon
from backend.characters.cards.codec import omit
from backend.characters.cards.model import NAME, Asset, Card, check_greetings
from backend.characters.cards.png import SIGNATURE, remove_texts
from backend.characters.cards.reader import normalise, read_card
from backend.characters.cards.text import parse_json
from backend.characters.cards.writer import (
    ExportSpec,
    extract_png_assets,
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
    AVATAR_THUMBNAIL,
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
from backend.characters.repository import AvatarRow
from backend.characters.schemas import CardLorebook, ExportFormat
from backend.core.files import file_stem
from backend.database.base import Base, new_id
from backend.errors import TooLargeError, ValidationError
from backend.http.schemas import merge_patch
from backend.vault.sealing import Column, Sealer


@dataclass(frozen=True, slots=True)
class BookImport:
    """A card's book, parsed and sealed, ready to be stored.

    `shown` is the book as the card will show it. `store` stores it for its character and replaces
    the present one.
    """

    summary: CardLorebook
    shown: dict[str, Any]
    warnings: Sequence[str]
    store: Callable[[AsyncSession, Identity], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class LazyBook:
    """A card's sealed book. `open` returns the `character_book` of the card and is CPU-bound."""

    id: UUID
    open: Callable[[], dict[str, Any]]


class CardBooks(Protocol):
    """Stores the books of cards as separate lorebooks. Implemented by lorebooks."""

    def prepare(
        self,
        sealer: Sealer,
        book: dict[str, Any],
        *,
        character_id: UUID,
        name: str,
        replaced: UUID | None,
    ) -> BookImport:
        """Parse a card's `character_book`, which can have any shape. CPU-bound, no database.

        `name`, the character's, is used if the book has none. `replaced` is the lorebook to
        replace. Raises `CardLimitError`.
        """
        ...

    def preview(self, book: dict[str, Any], *, name: str) -> dict[str, Any]:
        """Return a book as the card will show it after `prepare`. CPU-bound."""
        ...

    async def find(
        self, session: AsyncSession, identity: Identity, character_id: UUID
    ) -> LazyBook | None: ...

    async def drop(self, session: AsyncSession, identity: Identity, character_id: UUID) -> None: ...


BOOK: Final = "character_book"


@dataclass(frozen=True, slots=True)
class CardRows:
    """The rows of a character to store, and warnings for the user.

    `card` has no book. `files` are rows of the imported PNG, or of the files in an imported
    archive.
    """

    card: Card
    character: Character
    avatar: Avatar | None
    files: list[Base]
    book: BookImport | None
    warnings: list[str]


def import_rows(sealer: Sealer, data: bytes, books: CardBooks) -> CardRows:
    """Read a card file for the owner of `sealer`. Raises `CardError`, `TooLargeError`.

    An unreadable picture only causes a warning, because the card is useful without it.
    """
    imported = read_card(data)
    card = remove_book(imported.card)
    character = make_character(sealer, card, source=_remove_source_book(imported.raw))
    book = prepare_book(sealer, books, imported.card, character.id)
    warnings = [*imported.warnings, *(book.warnings if book else ())]
    avatar = None
    if imported.avatar is not None:
        try:
            avatar = seal_avatar(
                sealer, "character", character.id, imported.avatar, is_imported=True
            )
        except (ImageError, TooLargeError) as error:
            warnings.append(f"The card came without its picture: {error.detail}")
    files: list[Base] = [_seal_asset(sealer, character.id, asset) for asset in imported.assets]
    if imported.is_png:
        files.append(_seal_card_file(sealer, character.id, data))
    return CardRows(card, character, avatar, files, book, warnings)


def remove_book(card: Card) -> Card:
    return msgspec.structs.replace(card, character_book=None)


def prepare_book(
    sealer: Sealer,
    books: CardBooks,
    card: Card,
    character_id: UUID,
    *,
    replaced: UUID | None = None,
) -> BookImport | None:
    """Prepare a card's book for storage. Raises `CardLimitError`."""
    if card.character_book is None:
        return None
    return books.prepare(
        sealer,
        card.character_book,
        character_id=character_id,
        name=card.nickname or card.name,
        replaced=replaced,
    )


def _remove_source_book(raw: dict[str, Any]) -> dict[str, Any]:
    """Remove the book from a card's source, because lorebooks keep their own source."""
    kept = omit(raw, {BOOK})
    if isinstance(kept.get("data"), dict):
        kept["data"] = omit(kept["data"], {BOOK})
    return kept


def make_rows(sealer: Sealer, card: Card, books: CardBooks) -> CardRows:
    """Return the rows of a new character. CPU-bound. Raises the errors of `check_card`."""
    checked = check_card(card)
    kept = remove_book(checked)
    character = make_character(sealer, kept)
    book = prepare_book(sealer, books, checked, character.id)
    return CardRows(kept, character, None, [], book, [])


def make_character(
    sealer: Sealer, card: Card, *, source: dict[str, Any] | None = None
) -> Character:
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
    """Return a card as it would be read from a file, so that every card survives an export.

    CPU-bound. Raises `CardError` (no name) and `CardLimitError` as an import does, and
    `ValidationError` if an import would change the card.
    """
    envelope = {"spec": "chara_card_v3", "spec_version": "3.0", "data": card}
    found = normalise(parse_json(msgspec.json.encode(envelope)))
    if found.warnings:
        raise ValidationError(
            f"The card would be changed when it is stored: {' '.join(found.warnings)}"
        )
    return found.card


def _seal_card_file(sealer: Sealer, character_id: UUID, data: bytes) -> CardFile:
    file_id = new_id()
    return CardFile(
        id=file_id,
        user_id=sealer.user_id,
        character_id=character_id,
        sealed_data=sealer.seal_bytes(CARD_FILE, file_id, data),
    )


def _seal_asset(sealer: Sealer, character_id: UUID, asset: Asset) -> CharacterAsset:
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
class BookView:
    """A card's book as shown. `lorebook_id` is None while the book is stored in the card itself."""

    lorebook_id: UUID | None
    book: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CardChange:
    """A patched card without its book, and the change to the book.

    `drops_book` is true if the stored book must be deleted, and `new_scripts` if the card's regex
    scripts have changed.
    """

    card: Card
    shown: BookView | None
    prepared: BookImport | None = None
    drops_book: bool = False
    new_scripts: bool = False


def view_import(prepared: BookImport | None) -> BookView | None:
    return BookView(prepared.summary.id, prepared.shown) if prepared else None


def view_stored(card: Card, stored: LazyBook | None) -> BookView | None:
    """Return the book of a stored card. Cards of older versions may contain it themselves."""
    if stored is not None:
        return BookView(stored.id, stored.open())
    return None if card.character_book is None else BookView(None, card.character_book)


def patch_card(
    sealer: Sealer,
    row: Character,
    stored: LazyBook | None,
    patch: dict[str, Any],
    books: CardBooks,
    *,
    longest_greeting: int,
) -> CardChange:
    """Merge a patch into a card. `character_book` is merged into the book that its lorebook shows.

    Raises the errors of `check_card` and `check_greetings`.
    """
    card = open_card(sealer, row.id, row.sealed_card)
    before = view_stored(card, stored)
    keeps_book = stored is not None and BOOK not in patch
    book = before.book if before is not None and not keeps_book else None
    changed = check_card(merge_patch(msgspec.structs.replace(card, character_book=book), patch))
    check_greetings(changed, known=card, longest=longest_greeting)
    old, new = (each.extensions.get("regex_scripts") for each in (card, changed))
    result = CardChange(remove_book(changed), before, new_scripts=new != old)
    if keeps_book or (stored is not None and book is not None and changed.character_book == book):
        return result
    replaced = stored.id if stored else None
    prepared = prepare_book(sealer, books, changed, row.id, replaced=replaced)
    drops_book = prepared is None and stored is not None
    return replace(result, shown=view_import(prepared), prepared=prepared, drops_book=drops_book)


@dataclass(frozen=True, slots=True)
class CopySource:
    """The sealed rows of a character to copy."""

    row: Character
    book: LazyBook | None
    avatar: Avatar | None
    file: CardFile | None
    assets: Sequence[CharacterAsset]


def copy_rows(sealer: Sealer, source: CopySource, name: str | None, books: CardBooks) -> CardRows:
    """Return the rows of a copy. Prompts use the nickname, so they still name the original.

    Raises the errors of `check_card`.
    """
    row = source.row
    card = open_card(sealer, row.id, row.sealed_card)
    shown = view_stored(card, source.book)
    name = name or card.name[: NAME.allowed - len(_COPY_SUFFIX)] + _COPY_SUFFIX
    card = check_card(
        msgspec.structs.replace(
            card,
            name=name,
            nickname=card.nickname or card.name,
            character_book=shown.book if shown else None,
        )
    )
    kept, copy_id = remove_book(card), new_id()
    copy = Character(
        id=copy_id,
        user_id=sealer.user_id,
        sealed_source=_reseal(sealer, CHARACTER_SOURCE, row.id, row.sealed_source, copy_id),
        scripts_allowed=row.scripts_allowed,
        preset_id=row.preset_id,
    )
    seal_card(sealer, copy, kept)
    files: list[Base] = [
        _seal_asset(sealer, copy_id, open_asset(sealer, asset)) for asset in source.assets
    ]
    if source.file is not None:
        data = sealer.open_bytes(CARD_FILE, source.file.id, source.file.sealed_data)
        files.append(_seal_card_file(sealer, copy_id, data))
    avatar = _copy_avatar(sealer, source.avatar, copy_id) if source.avatar else None
    book = prepare_book(sealer, books, card, copy_id)
    return CardRows(kept, copy, avatar, files, book, [])


def _copy_avatar(sealer: Sealer, avatar: Avatar, character_id: UUID) -> Avatar:
    copy_id = new_id()
    return Avatar(
        id=copy_id,
        user_id=sealer.user_id,
        character_id=character_id,
        media_type=avatar.media_type,
        thumbnail_media_type=avatar.thumbnail_media_type,
        is_imported=avatar.is_imported,
        sealed_image=_reseal(sealer, AVATAR_IMAGE, avatar.id, avatar.sealed_image, copy_id),
        sealed_thumbnail=_reseal(
            sealer, AVATAR_THUMBNAIL, avatar.id, avatar.sealed_thumbnail, copy_id
        ),
    )


def _reseal(
    sealer: Sealer, column: Column, row_id: UUID, blob: bytes | None, copy_id: UUID
) -> bytes | None:
    """Seal a value again for a copy of its row."""
    if blob is None:
        return None
    return sealer.seal_bytes(column, copy_id, sealer.open_bytes(column, row_id, blob))


_COPY_SUFFIX = " (copy)"
_FALLBACK_STEM = "character"
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9 ._-]+")


@dataclass(frozen=True, slots=True)
class FileDownload:
    """A file to download. `stem` is its name without the extension; it may be user text."""

    data: bytes
    media_type: str
    stem: str
    extension: str

    @property
    def disposition(self) -> str:
        """The `Content-Disposition` header."""
        return format_disposition(self.stem, self.extension, fallback=_FALLBACK_STEM)


def format_disposition(stem: str, extension: str, *, fallback: str) -> str:
    """Return a `Content-Disposition` with a name in ASCII and in UTF-8 (RFC 6266, 8187)."""
    name = file_stem(stem, fallback=fallback)
    folded = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = file_stem(_NOT_PLAIN.sub("", folded), fallback=fallback)
    return (
        f'attachment; filename="{plain}.{extension}"; '
        f"filename*=UTF-8''{quote(name, safe='')}.{extension}"
    )


@dataclass(slots=True)
class ExportRows:
    """The sealed rows for an export. JSON needs neither `file` nor `assets`."""

    row: Character
    book: LazyBook | None
    picture: AvatarRow | None
    file: CardFile | None = None
    assets: Sequence[CharacterAsset] = ()


def export_card(
    sealer: Sealer,
    stored: ExportRows,
    books: CardBooks,
    file_format: ExportFormat,
    spec: ExportSpec,
) -> FileDownload:
    """Return a card as a file.

    JSON and PNG leave out the files of an archive. An imported PNG is returned byte for byte,
    except for later changes. A PNG of a character without a picture gets a placeholder.
    """
    row = stored.row
    card = open_card(sealer, row.id, row.sealed_card)
    shown = view_stored(card, stored.book)
    card = msgspec.structs.replace(card, character_book=shown.book if shown else None)
    source = open_source(sealer, row.id, row.sealed_source)
    if file_format == "json":
        return FileDownload(to_json(card, source, spec), "application/json", card.name, "json")
    assets = [open_asset(sealer, asset) for asset in stored.assets]
    file = (
        sealer.open_bytes(CARD_FILE, stored.file.id, stored.file.sealed_data)
        if stored.file
        else None
    )
    icon = file or find_main_icon(card.assets, {asset.path: asset.data for asset in assets})
    is_imported = stored.picture is not None and stored.picture.is_imported and icon is not None
    picture = _open_picture(sealer, stored.picture, icon if is_imported else None)
    if file_format == "charx":
        if file is not None:
            card, assets = extract_png_assets(card, file)
        is_inside = is_imported and file is None
        data = to_charx(card, source, picture=None if is_inside else picture, assets=assets)
        return FileDownload(data, "application/zip", card.name, "charx")
    from backend.characters.pictures import draw_placeholder  # noqa: PLC0415  # imports Pillow

    picture = picture or draw_placeholder(card.name)
    if file is None:
        data = to_png(card, source, picture)
    else:
        before = _read_imported_card(file, books)
        data = to_changed_png(card, before, file, None if is_imported else picture)
    return FileDownload(data, "image/png", card.name, "png")


def _open_picture(sealer: Sealer, stored: AvatarRow | None, original: bytes | None) -> bytes | None:
    """Return the avatar as a PNG, or unchanged if `original` is the imported picture and a PNG."""
    if stored is None:
        return None
    from backend.characters.pictures import convert_to_png  # noqa: PLC0415  # imports Pillow

    if original is None:
        return convert_to_png(sealer.open_bytes(AVATAR_IMAGE, stored.id, stored.sealed))
    return remove_texts(original) if original.startswith(SIGNATURE) else convert_to_png(original)


def _read_imported_card(file: bytes, books: CardBooks) -> Card:
    """Return the card of an imported PNG as it was shown after the import."""
    card = read_card(file).card
    if card.character_book is None:
        return card
    shown = books.preview(card.character_book, name=card.nickname or card.name)
    return msgspec.structs.replace(card, character_book=shown)
