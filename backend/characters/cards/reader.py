"""Any file into an `ImportedCard`: what it is shows in its first bytes, not in its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backend.characters.cards import charx, png
from backend.characters.cards.assets import main_icon, media_type, missing
from backend.characters.cards.errors import CardError, CardLimitError, NoCardError
from backend.characters.cards.limits import check_file_size
from backend.characters.cards.model import Asset, ImportedCard
from backend.characters.cards.normalise import Normalised, normalise
from backend.characters.cards.text import parse_json, parse_text

_OTHER_IMAGES = (b"\xff\xd8\xff", b"GIF8", b"RIFF")
"""JPEG, GIF, WebP."""


def read_card(data: bytes) -> ImportedCard:
    """Read a character card: PNG, CHARX, JSON or YAML, of version 1, 2, 3 or newer.

    CPU-bound: up to some seconds for 20 MB. Call it in a thread.

    Raises:
        CardError: Broken, or no card.
        NoCardError: A picture without a card.
        CardLimitError: Over a limit of `limits.py`.
        TooLargeError: A file of more than `MAX_FILE_BYTES`.
    """
    check_file_size(len(data))
    if not data.strip():
        raise CardError("The file is empty.")
    if data.startswith(png.SIGNATURE):
        return _read_png(data)
    if charx.is_archive(data):
        return _read_charx(data)
    if data.startswith(_OTHER_IMAGES):
        raise NoCardError("This is a picture, but no PNG: only PNG pictures carry cards.")
    raw = parse_text(data)
    found = normalise(raw)
    return _imported(raw, found, avatar=main_icon(found.card.assets, {}))


def _imported(
    raw: dict[str, Any],
    found: Normalised,
    *,
    avatar: bytes | None,
    files: dict[str, bytes] | None = None,
    warnings: list[str] | None = None,
) -> ImportedCard:
    files = files or {}
    return ImportedCard(
        card=found.card,
        raw=raw,
        spec=found.spec,
        avatar=avatar,
        assets=[Asset(path, media_type(path), data) for path, data in files.items()],
        warnings=[*(warnings or []), *found.warnings, *missing(found.card.assets, files)],
    )


def _read_charx(data: bytes) -> ImportedCard:
    files = charx.unpack(data)
    text = files.pop(charx.CARD_NAME, None)
    if text is None:
        raise CardError(f"The archive is no CHARX: there is no {charx.CARD_NAME} at its root.")
    raw = parse_json(text)
    found = normalise(raw)
    return _imported(raw, found, avatar=main_icon(found.card.assets, files), files=files)


@dataclass(frozen=True, slots=True)
class _PngCard:
    raw: dict[str, Any]
    found: Normalised
    warnings: list[str]


def _read_png(data: bytes) -> ImportedCard:
    texts = png.find_texts(data)
    if not texts.cards:
        raise NoCardError("The PNG is sound, but there is no character card in it.")
    card = _first_sound(texts.cards)
    warnings = card.warnings
    if texts.asset_count:
        warnings.append(f"{texts.asset_count:,} files inside the PNG were not imported.")
    return _imported(card.raw, card.found, avatar=data, warnings=warnings)


def _first_sound(candidates: list[png.Chunk]) -> _PngCard:
    """The most trusted text that can be read; the fault of the first, where none can.

    A limit is no fault to pass over: the file as a whole is refused.
    """
    reader = png.TextReader()
    faults: list[tuple[str, CardError]] = []
    for chunk in candidates:
        keyword = chunk.keyword().decode("latin-1")
        try:
            card = _read_text(chunk, reader)
        except CardLimitError:
            raise
        except CardError as fault:
            faults.append((keyword, fault))
            continue
        passed_over = [
            f"The `{name}` text was passed over for the next one: {fault.detail}"
            for name, fault in faults
        ]
        return _PngCard(card.raw, card.found, [*passed_over, *card.warnings])
    raise faults[0][1]


def _read_text(chunk: png.Chunk, reader: png.TextReader) -> _PngCard:
    keyword = chunk.keyword().decode("latin-1")
    warnings: list[str] = []
    if not chunk.crc_matches():
        warnings.append(f"The checksum of the `{keyword}` text is wrong; it was read anyway.")
    value = reader.read(chunk)
    if value.lstrip().startswith(b"{"):
        warnings.append(f"The `{keyword}` text was plain JSON, not base64.")
    else:
        value = png.decode_value(value)
    raw = parse_json(value)
    return _PngCard(raw, normalise(raw), warnings)
