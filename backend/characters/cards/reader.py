"""Read a character card from a file of any kind or version.

The first bytes identify the kind of file; the name is ignored. Other kinds of files, a card without
a name, a text over its limit, and unknown files with only a name are refused.
"""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, cast

import msgspec

from backend.characters.cards import charx, png
from backend.characters.cards.charx import (
    RISU_SCHEME,
    describe_missing,
    find_main_icon,
    guess_media_type,
)
from backend.characters.cards.codec import (
    Codec,
    Notes,
    Object,
    UnusableError,
    list_names,
    omit,
    read_number,
)
from backend.characters.cards.fields import CARD_FIELDS, FLAT_FIELDS, V1_FIELDS, V3_FIELDS
from backend.characters.cards.kinds import CARD, find_kind, is_card
from backend.characters.cards.model import (
    CARD_BYTES,
    Asset,
    Card,
    CardImport,
    Spec,
    check_file_size,
)
from backend.characters.cards.text import parse_json, parse_text
from backend.characters.cards.translation import MANIFEST, is_set, translate, translate_archive
from backend.characters.errors import CardError, CardLimitError, NoCardError

NEWEST_VERSION = 3.0
_BEYOND_NAME: Final = FLAT_FIELDS.members - Codec(V1_FIELDS[:1], "flat").members

_SPEC_NAME = re.compile(r"\s*chara_card_v(\d{1,3})\s*", re.IGNORECASE)

_FILE_MEMBERS: Final = frozenset(
    {
        "spec", "spec_version", "data", "avatar", "chat", "create_date", "creatorcomment", "fav",
        "talkativeness", "json_data", "metadata", "shallow", "date_added", "date_last_chat",
        "chat_size", "data_size", "file_name",
    }
)  # fmt: skip
"""Members about the file, written by SillyTavern and card editors. They need no warning."""


def normalise(raw: object) -> CardImport:
    """Read a parsed JSON value as a character card of any version, or of another program.

    Raises `CardError` if it is another kind of file, or has nothing but a name; `CardLimitError`.
    """
    kind = find_kind(raw)
    if isinstance(raw, dict) and is_card(cast("Object", raw)):
        return _convert_card(cast("Object", raw))
    if kind is not None:
        raise CardError(kind.explain(CARD))
    if isinstance(raw, list):
        return normalise(_get_single(cast("list[object]", raw)))
    if not isinstance(raw, dict):
        raise CardError("This is not a character card: a card is a JSON object.")
    source = cast("Object", raw)
    translation = translate(source)
    if translation is None and FLAT_FIELDS.members.isdisjoint(source) and "spec" not in source:
        raise CardError("This is not a character card: it has none of a card's fields.")
    found = _convert_card(translation.card if translation else source)
    more = list(translation.warnings) if translation else []
    unknown = [each for each in source if each not in FLAT_FIELDS.members and is_set(source[each])]
    if unknown and not _describes_character(found.card):
        if translation is None and not any(is_set(source.get(each)) for each in _BEYOND_NAME):
            raise CardError(
                "This is not a known kind of character card: it has a name, but no "
                f"description, greeting or examples. Unknown fields: {list_names(unknown)}."
            )
        more.append("The card has no description, greeting or examples.")
    return replace(found, warnings=[*more, *found.warnings])


def _get_single(values: list[object]) -> Object:
    objects = [cast("Object", value) for value in values if isinstance(value, dict)]
    if not objects:
        raise CardError("This is not a character card: a card is a JSON object.")
    if len(values) > 1:
        raise CardError(
            f"This is a list of {len(values):,} objects. Import each character as a separate file."
        )
    return objects[0]


def _describes_character(card: Card) -> bool:
    """True if a card describes its character or the way it speaks."""
    texts = card.description, card.personality, card.first_mes, card.mes_example, card.system_prompt
    return any(text.strip() for text in (*texts, *card.alternate_greetings))


def _has_words(value: object) -> bool:
    """True if a value contains text with letters. Numbers, dates and flags need no warning."""
    match value:
        case str():
            return any(map(str.isalpha, value))
        case dict():
            return any(map(_has_words, cast("Object", value).values()))
        case list():
            return any(map(_has_words, cast("list[object]", value)))
        case _:
            return False


def _convert_card(source: Object) -> CardImport:
    notes = Notes()
    spec, found = _read_fields(source, notes)
    if not found.get("name", "").strip():
        raise CardError("The card has no name: `name` is missing or blank.")
    card = Card(**found)
    bookless = msgspec.structs.replace(card, character_book=None)
    CARD_BYTES.check(len(msgspec.json.encode(bookless)), "The card")
    return CardImport(card, source, spec, warnings=notes.sentences)


def _read_fields(raw: Object, notes: Notes) -> tuple[Spec, Object]:
    """Detect the version and read the fields, from `data` if present.

    SillyTavern repeats the fields of V1 outside `data`. They are used only if `data` lacks them.
    """
    data = raw.get("data")
    if isinstance(data, dict):
        nested = cast("Object", data)
        spec = _detect_spec(raw, nested, notes)
        flat = {each.name: raw[each.name] for each in V1_FIELDS if raw.get(each.name) is not None}
        fields = flat | nested
        outside = omit(raw, CARD_FIELDS.members)
        _note_unused({**outside, **nested}, fields, CARD_FIELDS, notes)
        return spec, CARD_FIELDS.read(fields, notes)
    if "spec" in raw:
        notes.add("The card names a version but has no `data`: it was read as V1")
    _note_unused(raw, raw, FLAT_FIELDS, notes)
    return "v1", FLAT_FIELDS.read(raw, notes)


def _note_unused(raw: Object, fields: Object, codec: Codec, notes: Notes) -> None:
    """Note the members with a value that are not fields of the card."""
    unknown = [
        member
        for member, value in raw.items()
        if member not in codec.members and member not in _FILE_MEMBERS and _has_words(value)
    ]
    if unknown:
        notes.add(f"Not used here, and kept for the export: {list_names(unknown)}")
    if unread := codec.unread(fields):
        notes.add(f"Left out, because its field was read from another member: {list_names(unread)}")


def _get_spec_name(raw: Object) -> str:
    name = raw.get("spec")
    return name if isinstance(name, str) else ""


def _detect_spec(raw: Object, data: Object, notes: Notes) -> Spec:
    named = _SPEC_NAME.fullmatch(_get_spec_name(raw))
    guess: Spec = "v2" if {field.name for field in V3_FIELDS}.isdisjoint(data) else "v3"
    if named is None:
        notes.add(f"The card names no known version: it was read as {guess.upper()}")
        return guess
    number = int(named[1])
    if number < math.floor(NEWEST_VERSION):
        return "v2"
    try:
        version = max(read_number(raw.get("spec_version"), notes), number)
    except UnusableError:
        notes.add("`spec_version` is not a number; the card was read as 3.0")
    else:
        if version > NEWEST_VERSION:
            notes.add(
                f"The card has version {version:g}, newer than {NEWEST_VERSION}: "
                "its new fields are kept, but not used"
            )
    return "v3"


_OTHER_IMAGES = (b"\xff\xd8\xff", b"GIF8", b"RIFF")
"""JPEG, GIF, WebP."""

_RISU_MODULE_SIGNATURE: Final = b"o\0"
RISU_MODULE: Final = "module.risum"
_RISU_MODULE_WARNING: Final = (
    f"The module of RisuAI in it (`{RISU_MODULE}`) is kept for the export, but not read."
)


def read_card(data: bytes) -> CardImport:
    """Read a character card: PNG, CHARX, JSON or YAML, of version 1, 2, 3 or newer.

    CPU-bound, up to some seconds for 20 MB. Call it in a thread.

    Raises:
        CardError: The file is broken or is not a card.
        NoCardError: The picture contains no card.
        CardLimitError: A limit of `model` is exceeded.
        TooLargeError: The file has more than `MAX_FILE_BYTES`.
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
    """Raise if a text that could not be parsed has one JSON object in each line, as chats have."""
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
    """Add the files to a card, and a warning about missing ones."""
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
    missing_card = f"The archive is not a CHARX: there is no {charx.CARD_NAME} at its root."
    if any(name.endswith((".png", ".json", ".charx", ".byaf")) for name in names):
        return f"{missing_card} If it contains cards, unpack it and import each one separately."
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
    """Return the readable cards of a PNG by keyword."""
    reader = png.TextReader()
    cards: dict[bytes, CardImport] = {}
    for chunk in png.find_texts(data).cards:
        with suppress(CardError):
            cards.setdefault(chunk.read_keyword(), _read_text(chunk, reader))
    return cards


def _read_first_card(candidates: list[png.Chunk]) -> CardImport:
    """Return the most trusted readable card. If there is none, raise the error of the first.

    An exceeded limit is not skipped. It refuses the whole file.
    """
    reader = png.TextReader()
    faults: list[tuple[str, CardError]] = []
    for chunk in candidates:
        keyword = chunk.read_keyword().decode("latin-1")
        try:
            card = _read_text(chunk, reader)
        except CardLimitError:
            raise
        except CardError as fault:
            faults.append((keyword, fault))
            continue
        skipped = [f"The `{name}` text was skipped: {fault.detail}" for name, fault in faults]
        return replace(card, warnings=[*skipped, *card.warnings])
    raise faults[0][1]


def _read_text(chunk: png.Chunk, reader: png.TextReader) -> CardImport:
    keyword = chunk.read_keyword().decode("latin-1")
    warnings: list[str] = []
    if not chunk.has_valid_crc():
        warnings.append(f"The checksum of the `{keyword}` text is wrong; it was read anyway.")
    value = reader.read(chunk)
    if value.lstrip().startswith(b"{"):
        warnings.append(f"The `{keyword}` text was plain JSON, not base64.")
    else:
        value = png.decode_value(value)
    found = normalise(parse_json(value))
    return replace(found, warnings=[*warnings, *found.warnings])
