"""Recognises the kind of a file by its content. Names do not count.

CPU-bound. Files are read up to the limits of their importers; of chats, only the beginning.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal, cast

from backend.campaigns.files.transfer import is_campaign
from backend.characters.cards import png
from backend.characters.cards.charx import CARD_NAME, is_archive
from backend.characters.cards.codec import Object
from backend.characters.cards.kinds import find_kind, is_card
from backend.characters.cards.model import MAX_FILE_BYTES, YAML_BYTES
from backend.characters.cards.reader import normalise
from backend.characters.cards.text import parse_json, parse_yaml
from backend.characters.cards.translation import MANIFEST
from backend.characters.errors import CardError
from backend.core.zip_files import ZIP_ERRORS
from backend.transfer.contracts import FileTree
from backend.transfer.errors import TransferFileError
from backend.transfer.formats.bundles import BundleFormat
from backend.transfer.formats.chat_file import ChatFormat
from backend.transfer.formats.registry import HEAD_BYTES, find_bundle, find_format, get_format

FileContent = Literal[
    "character",
    "lorebook",
    "preset",
    "scripts",
    "campaign",
    "chronicle",
    "group",
    "bundle",
    "chat",
]
"""A bundle is a file of another program with characters and their chats."""

CAN_BE_IMPORTED: Final = (
    "Character cards, lorebooks, presets, regex scripts, campaigns, chronicles, and chats of "
    "SillyTavern, RisuAI, Agnai, Character.AI Tools, Oobabooga and KoboldAI Lite can be imported."
)

_KINDS: Final[Mapping[str, FileContent]] = {
    "a lorebook": "lorebook",
    "a lorebook of Chub": "lorebook",
    "a list of lorebook entries": "lorebook",
    "a module of RisuAI": "lorebook",
    "a story of KoboldAI": "lorebook",
    "a story of NovelAI": "lorebook",
    "a chronicle": "chronicle",
    "a chat": "chat",
    "a chat-completion preset": "preset",
    "a regex script": "scripts",
    "a group of SillyTavern": "group",
}
"""The importers of the kinds in `characters.cards.kinds`. The others cannot be imported."""

_OFTEN_CHATS: Final = frozenset({"a chat", "a story of KoboldAI"})
"""Kinds that a chat format may read better."""

_BACKYARD_CHARACTER = re.compile(r"characters/[^/]+/character\.json")
_PICTURES = (b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM")
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_UTF8_MARK = b"\xef\xbb\xbf"
_YAML_NAME = re.compile(rb"^(?:name|char_name|spec)\s*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Recognition:
    """The kind of a file. If it cannot be imported, `content` is None and `reason` says why.

    `chat_format` reads a chat, and `bundle_format` a bundle.
    """

    content: FileContent | None = None
    reason: str = ""
    chat_format: ChatFormat | None = None
    bundle_format: BundleFormat | None = None


def is_package(paths: Iterable[str]) -> bool:
    """True if the files of a zip are one thing: a CHARX or Backyard card, a campaign or vault."""
    known = set(paths)
    is_backyard = MANIFEST in known and any(map(_BACKYARD_CHARACTER.fullmatch, known))
    return CARD_NAME in known or is_backyard or is_campaign(known)


def recognise(  # noqa: PLR0911  # one return for each kind of file
    tree: FileTree, path: str, *, chat_format: str | None = None
) -> Recognition:
    """Recognise a file of a tree. CPU-bound. Raises `TransferFileError` for a broken file.

    With `chat_format`, which the user has named, every file is a chat of this format.
    """
    size = tree.get_size(path)
    with tree.open(path) as file:
        head = file.read(HEAD_BYTES)
        if not head.strip():
            return Recognition(reason="The file is empty.")
        if chat_format is not None:
            return Recognition("chat", chat_format=get_format(chat_format))
        is_small = size <= MAX_FILE_BYTES
        data = head + file.read() if is_small else head
    name = PurePosixPath(path).name
    if not PurePosixPath(path).suffix:  # a body without a name
        name = f"{name}.jsonl"
    if head.startswith(png.SIGNATURE):
        return _recognise_png(data, is_small=is_small)
    if head.startswith(b"PK") or (is_small and is_archive(data)):
        return _recognise_zip(data, is_small=is_small)
    if head.startswith(_PICTURES):
        return Recognition(reason="The picture is not a PNG. Only PNG pictures contain cards.")
    if (bundle_format := find_bundle(head, name)) is not None:
        return Recognition("bundle", bundle_format=bundle_format)
    chat = find_format(head, name)
    if chat is None and b"\0" in head and not head.startswith(_UTF16_MARKS):
        return _refuse("The file is not of a known kind.")
    return _recognise_text(head, data, chat, is_small=is_small)


def _recognise_png(data: bytes, *, is_small: bool) -> Recognition:
    if not is_small:
        return Recognition(reason=_describe_large("picture"))
    try:
        has_card = bool(png.find_texts(data).cards)
    except CardError as error:
        raise TransferFileError(error.detail) from error
    if has_card:
        return Recognition("character")
    return Recognition(reason="The picture contains no character card.")


def _recognise_zip(data: bytes, *, is_small: bool) -> Recognition:
    if not is_small:
        return Recognition(reason=_describe_large("zip file"))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [each.replace("\\", "/") for each in archive.namelist()]
    except ZIP_ERRORS:
        return Recognition(reason="The zip file is broken.")
    if is_campaign(names) and CARD_NAME not in names:
        return Recognition("campaign")
    if is_package(names):
        return Recognition("character")
    return Recognition(
        reason="The zip file is neither a card nor a campaign. Import it by itself, or unpack it."
    )


def _recognise_text(
    head: bytes, data: bytes, chat: ChatFormat | None, *, is_small: bool
) -> Recognition:
    start = head.removeprefix(_UTF8_MARK).lstrip()
    is_json = start.startswith((b"{", b"[")) or head.startswith(_UTF16_MARKS)
    if is_json and is_small and not _has_lines(start):
        return _recognise_json(data, chat)
    if not is_json and len(data) <= YAML_BYTES.allowed and _is_yaml_card(data):
        return Recognition("character")
    if chat is not None:
        return Recognition("chat", chat_format=chat)
    if is_json and not is_small:
        return Recognition(reason=_describe_large("file"))
    if is_json:
        return Recognition(
            reason=f"The lines of JSON are not a known kind of chat. {CAN_BE_IMPORTED}"
        )
    return _refuse("The text is not of a known kind.")


def _has_lines(start: bytes) -> bool:
    """True if a file begins with two lines that are JSON objects, as chats do."""
    first, _, rest = start.partition(b"\n")
    return first.rstrip().endswith(b"}") and rest.lstrip().startswith(b"{")


def _recognise_json(  # noqa: PLR0911  # one return for each kind of file
    data: bytes, chat: ChatFormat | None
) -> Recognition:
    try:
        value: object = parse_json(data)
    except CardError as error:
        # A broken chat is read up to its fault, so that the result can name the line.
        if chat is not None:
            return Recognition("chat", chat_format=chat)
        raise TransferFileError(error.detail) from error
    if _is_card(value):
        return Recognition("character")
    kind = find_kind(value)
    if chat is not None and (kind is None or kind.name in _OFTEN_CHATS):
        return Recognition("chat", chat_format=chat)
    if kind is not None:
        content = _KINDS.get(kind.name)
        if content == "chat":
            return _refuse("This is a chat of an unknown format.")
        if content is None:
            return Recognition(reason=f"This is {kind.name}. It cannot be imported by itself.")
        return Recognition(content)
    try:
        normalise(value)
    except CardError as error:
        return Recognition(
            reason=f"The file is not of a known kind. {error.detail} {CAN_BE_IMPORTED}"
        )
    return Recognition("character")


def _is_card(value: object) -> bool:
    return isinstance(value, dict) and is_card(cast("Object", value))


def _is_yaml_card(data: bytes) -> bool:
    if not _YAML_NAME.search(data):
        return False
    try:
        normalise(parse_yaml(data))
    except CardError:
        return False
    return True


def _refuse(reason: str) -> Recognition:
    return Recognition(reason=f"{reason} {CAN_BE_IMPORTED}")


def _describe_large(noun: str) -> str:
    return f"The {noun} has more than {MAX_FILE_BYTES:,} bytes. Only chats may be larger."
