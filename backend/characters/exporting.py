"""A character into a file that other tools read. CPU-bound, no database."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from backend.characters.card_rows import CardBooks, LazyBook
from backend.characters.cards.charx import find_main_icon
from backend.characters.cards.model import Card
from backend.characters.cards.png import SIGNATURE, remove_texts
from backend.characters.cards.reader import read_card
from backend.characters.cards.writer import (
    ExportSpec,
    extract_png_assets,
    to_changed_png,
    to_charx,
    to_json,
    to_png,
)
from backend.characters.card_rows import view_stored
from backend.characters.models import (
    AVATAR_IMAGE,
    CARD_FILE,
    CardFile,
    Character,
    CharacterAsset,
    open_asset,
    open_card,
    open_source,
)
from backend.characters.repository import AvatarRow
from backend.characters.schemas import ExportFormat
from backend.core.files import file_stem
from backend.vault.sealing import Sealer

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
    book: LazyBook | None
    picture: AvatarRow | None
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
    shown = view_stored(card, stored.book)
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
    icon = file or find_main_icon(card.assets, {asset.path: asset.data for asset in assets})
    is_imported = stored.picture is not None and stored.picture.is_imported and icon is not None
    picture = _picture(sealer, stored.picture, icon if is_imported else None)
    if file_format == "charx":
        if file is not None:
            card, assets = extract_png_assets(card, file)
        is_inside = is_imported and file is None
        data = to_charx(card, source, picture=None if is_inside else picture, assets=assets)
        return ExportedFile(data, "application/zip", card.name, "charx")
    from backend.characters.pictures import draw_placeholder  # noqa: PLC0415  # imports Pillow

    picture = picture or draw_placeholder(card.name)
    if file is None:
        data = to_png(card, source, picture)
    else:
        before = _imported(file, books)
        data = to_changed_png(card, before, file, None if is_imported else picture)
    return ExportedFile(data, "image/png", card.name, "png")


def _picture(sealer: Sealer, stored: AvatarRow | None, came: bytes | None) -> bytes | None:
    """A picture as a PNG: just as it came, where it came in that format."""
    if stored is None:
        return None
    from backend.characters.pictures import convert_to_png  # noqa: PLC0415  # imports Pillow

    if came is None:
        return convert_to_png(sealer.open_bytes(AVATAR_IMAGE, stored.id, stored.sealed))
    return remove_texts(came) if came.startswith(SIGNATURE) else convert_to_png(came)


def _imported(file: bytes, books: CardBooks) -> Card:
    """The card of a PNG as it was shown when it had been imported."""
    card = read_card(file).card
    if card.character_book is None:
        return card
    shown = books.shown(card.character_book, name=card.nickname or card.name)
    return msgspec.structs.replace(card, character_book=shown)
