"""Any file into an `CardImport`: what it is shows in its first bytes, not in its name."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from backend.characters.cards import charx, png
from backend.characters.cards.translation import MANIFEST, translate_archive
from backend.characters.cards.charx import RISU_SCHEME, find_main_icon, guess_media_type, describe_missing
from backend.characters.cards.kinds import CARD, find_kind
from backend.characters.cards.model import Asset, CardImport, check_file_size
from backend.characters.cards.text import parse_json, parse_text
from backend.characters.errors import CardError, CardLimitError, NoCardError

_OTHER_IMAGES = (b"\xff\xd8\xff", b"GIF8", b"RIFF")
"""JPEG, GIF, WebP."""

_RISU_MODULE_SIGNATURE: Final = b"o\0"
RISU_MODULE: Final = "module.risum"
_RISU_MODULE_WARNING: Final = f"The module of RisuAI in it (`{RISU_MODULE}`) is kept for the export, but not read."


def read_card(data: bytes) -> CardImport:
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
        raise NoCardError("This picture is not a PNG. Only PNG pictures can contain cards.")
    if data.startswith(_RISU_MODULE_SIGNATURE):
        raise CardError(
            "This is a packed RisuAI module (.risum), not a character card. It cannot be imported."
        )
    try:
        value = parse_text(data)
    except CardLimitError:
        raise
    except CardError:
        _refuse_lines(data)
        raise
    return _add_files(normalise(value), {})


def _refuse_lines(data: bytes) -> None:
    """Raise if a text that could not be parsed has one JSON object a line, as chats have."""
    first, _, rest = data.removeprefix(BOM_UTF8).lstrip().partition(b"\n")
    if not first.startswith(b"{") or not rest.lstrip().startswith(b"{"):
        return
    try:
        kind = find_kind(parse_json(first))
    except CardError:
        return
    if kind is not None:
        raise CardError(kind.explain(CARD))
    raise CardError("This file contains several JSON objects. Import each one as a separate file.")


def _add_warning(found: CardImport, warning: str) -> CardImport:
    return replace(found, warnings=[*found.warnings, warning])


def _add_files(
    found: CardImport, files: Mapping[str, bytes], *, inside: Collection[str] = ()
) -> CardImport:
    """The card with what its file holds beside it, and a warning about what it does not hold."""
    assets = found.card.assets
    return replace(
        found,
        avatar=found.avatar or find_main_icon(assets, files),
        assets=[Asset(path, guess_media_type(path), data) for path, data in files.items()],
        warnings=[*found.warnings, *describe_missing(assets, files, inside)],
    )


def _read_charx(data: bytes) -> CardImport:
    files = charx.unpack(data)
    text = files.pop(charx.CARD_NAME, None)
    if text is not None:
        found = _add_files(normalise(parse_json(text)), files)
        return _add_warning(found, _RISU_MODULE_WARNING) if RISU_MODULE in files else found
    if MANIFEST in files:
        translation, pictures = translate_archive(files)
        found = normalise(translation.card)
        found = replace(found, warnings=[*translation.warnings, *found.warnings])
        return _add_files(found, pictures)
    raise CardError(_describe_archive(files))


def _describe_archive(files: Mapping[str, bytes]) -> str:
    """Return the sentences that refuse an archive without a card."""
    names = {path.rpartition("/")[2].lower() for path in files}
    if not names.isdisjoint({"campaign_data.json", "campaign.md"}):
        return "This is a campaign, not a character card. Import it as a campaign."
    missing_card = f"The archive is no CHARX: there is no {charx.CARD_NAME} at its root."
    if any(name.endswith((".png", ".json", ".charx", ".byaf")) for name in names):
        return f"{missing_card} If it holds cards, unpack it and import each card on its own."
    return missing_card


def _read_png(data: bytes) -> CardImport:
    texts = png.find_texts(data)
    if not texts.cards:
        raise NoCardError("The PNG is valid, but contains no character card.")
    found = replace(_read_first_card(texts.cards), is_png=True, avatar=data)
    if texts.assets:
        found.warnings.append(
            f"{len(texts.assets):,} more files inside the PNG are kept for its export, "
            "but not shown."
        )
    return _add_files(found, {}, inside={RISU_SCHEME + name for name in texts.assets})


def read_texts(data: bytes) -> dict[bytes, CardImport]:
    """The card as each text of a PNG has it, by keyword: those that can be read."""
    reader = png.TextReader()
    cards: dict[bytes, CardImport] = {}
    for chunk in png.find_texts(data).cards:
        with suppress(CardError):
            cards.setdefault(chunk.keyword(), _read_text(chunk, reader))
    return cards


def _read_first_card(candidates: list[png.Chunk]) -> CardImport:
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
        return replace(card, warnings=[*passed_over, *card.warnings])
    raise faults[0][1]


def _read_text(chunk: png.Chunk, reader: png.TextReader) -> CardImport:
    keyword = chunk.keyword().decode("latin-1")
    warnings: list[str] = []
    if not chunk.crc_matches():
        warnings.append(f"The checksum of the `{keyword}` text is wrong; it was read anyway.")
    value = reader.read(chunk)
    if value.lstrip().startswith(b"{"):
        warnings.append(f"The `{keyword}` text was plain JSON, not base64.")
    else:
        value = png.decode_value(value)
    found = normalise(parse_json(value))
    return replace(found, warnings=[*warnings, *found.warnings])
