"""Read files of other chat programs whole, within limits, and name the place of each error."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final, cast

from backend.characters.cards.codec import Notes, Object
from backend.characters.cards.model import MEGABYTE, Limit
from backend.characters.cards.text import parse_json
from backend.characters.errors import CardError
from backend.chats.schemas import AuthorsNote
from backend.core.cpu_pool import check_stopped
from backend.transfer.errors import TransferFileError
from backend.transfer.formats.chat_file import ChatHead, ChatReading, FileMessage

MAX_FILE_BYTES: Final = 64 * MEGABYTE
MAX_LINES: Final = 2_000_000
MAX_NAME: Final = 200
"""The characters of a name that are kept. A name can be repeated with every message."""
MAX_NOTE_CHARACTERS: Final = 20_000
"""The longest text of an `AuthorsNote`."""
MAX_SCENARIO_CHARACTERS: Final = 200_000
"""The longest scenario of a card."""

_JSON_BYTES: Final = Limit("json_bytes", 2 * MAX_FILE_BYTES, "bytes of JSON")
"""A text in UTF-16 can be twice as long in UTF-8. The file itself is limited when it is read."""
_JSON_VALUES: Final = Limit("json_values", 2_000_000, "or more values")
"""Without it, 64 MB of `[[],[],...]` would take two gigabytes."""

UTF16_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

# The last quote is optional, so that a text that is cut is searched once.
_PARTS: Final = re.compile(
    r'"(?P<text>(?>(?:[^"\\]++|\\.)*+))(?P<colon>"\s*+:)?+"?+|[{}\[\]]', re.DOTALL
)

NO_TEXT: Final = "A message without text was left out"


def read_whole(file: BinaryIO, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a file to its end. Raises `TransferFileError` if it is longer than `max_bytes`."""
    pieces = bytearray()
    while piece := file.read(min(MEGABYTE, max_bytes + 1 - len(pieces))):
        check_stopped()
        pieces += piece
        if len(pieces) > max_bytes:
            raise TransferFileError(
                f"The file has more than {max_bytes // MEGABYTE:,} MB, the limit of its format. "
                "Export its chats one by one."
            )
    return bytes(pieces)


def decode_text(data: bytes) -> str:
    """Decode UTF-8, or UTF-16 with its mark. Raises `TransferFileError` with the wrong byte."""
    encoding = "utf-16" if data.startswith(UTF16_MARKS) else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise TransferFileError(
            f"The text is not {'UTF-16' if encoding == 'utf-16' else 'UTF-8'}: "
            f"byte {error.start:,} is invalid. Save the file as UTF-8."
        ) from error


def load_json(data: bytes) -> Any:
    """Parse the JSON of a file. Raises `TransferFileError` with the line and column."""
    if data.startswith(UTF16_MARKS):
        # A lone surrogate cannot be encoded.
        data = decode_text(data).encode(errors="replace")
    if not data.strip():
        raise TransferFileError("The file is empty.")
    try:
        return parse_json(data, bytes_limit=_JSON_BYTES, values_limit=_JSON_VALUES)
    except CardError as error:
        raise TransferFileError(error.detail) from error


def load_object(file: BinaryIO) -> Object:
    return to_object(load_json(read_whole(file)), "The file")


def list_top_members(head: bytes) -> set[str]:
    """Return the names of an object's own members, as far as the beginning of its JSON has them.

    A member counts if its colon is in `head`.
    """
    depth = 0
    found: set[str] = set()
    text = head.decode("utf-8-sig", errors="replace")
    if not text.lstrip().startswith("{"):
        return found
    for match in _PARTS.finditer(text):
        part = match[0]
        if part in "{[":
            depth += 1
        elif part in "}]":
            depth -= 1
        elif depth == 1 and match["colon"]:
            found.add(match["text"])
    return found


def to_object(value: object, place: str) -> Object:
    if not isinstance(value, dict):
        raise TransferFileError(f"{place} is not an object.")
    return cast("Object", value)


def get_list(raw: Mapping[str, Any], member: str, place: str) -> list[Any]:
    """Return a list, empty if it is missing. Raises `TransferFileError` for another value."""
    value = raw.get(member)
    return [] if value is None else to_list(value, f"{place}: `{member}`")


def to_list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise TransferFileError(f"{place} is not a list.")
    return cast("list[object]", value)


def get_text(raw: Mapping[str, Any], member: str, place: str) -> str:
    """Return a text, empty if it is missing. Raises `TransferFileError` for another value."""
    value = raw.get(member)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TransferFileError(f"{place}: `{member}` is not a text.")
    return value


def find_text(raw: Mapping[str, Any], *members: str) -> str:
    """Return the first of the members that is a text with words, or an empty text."""
    values = (raw.get(member) for member in members)
    return next((value for value in values if isinstance(value, str) and value.strip()), "")


def find_name(raw: Mapping[str, Any], *members: str) -> str:
    """Return the first of the members that is a name, as one line of at most `MAX_NAME`."""
    return " ".join(find_text(raw, *members)[:MAX_NAME].split())


def split_lines(text: str) -> list[str]:
    """Return the lines of a text. Raises `TransferFileError` if there are too many."""
    if text.count("\n") >= MAX_LINES:
        raise TransferFileError(f"The text has more than {MAX_LINES:,} lines. Split the file.")
    return text.split("\n")


def iterate_objects(values: list[Any], place: str) -> Iterator[tuple[Object, str]]:
    """Yield the objects of a list with the place of each. `place` begins it."""
    for number, value in enumerate(values, 1):
        here = f"{place} {number:,}"
        yield to_object(value, here), here


def get_stem(name: str) -> str:
    """Return the file's name without its ending."""
    return PurePosixPath(name).stem


def make_note(text: str, notes: Notes) -> AuthorsNote | None:
    """Return an author's note at its default place, or None without text."""
    if not text.strip():
        return None
    if len(text) > MAX_NOTE_CHARACTERS:
        notes.add(
            f"The author's note was left out: it has more than {MAX_NOTE_CHARACTERS:,} characters"
        )
        return None
    return AuthorsNote(text=text)


def make_scenario(text: str, notes: Notes) -> str | None:
    """Return the chat's own scenario, or None without text."""
    if len(text) > MAX_SCENARIO_CHARACTERS:
        notes.add(
            f"The scenario was left out: it has more than {MAX_SCENARIO_CHARACTERS:,} characters"
        )
        return None
    return text if text.strip() else None


def make_reading(head: ChatHead, messages: Iterator[FileMessage], notes: Notes) -> ChatReading:
    """Return a reading. After the last message, its warnings are the sentences of `notes`."""
    reading = ChatReading(head, iter(()))
    reading.messages = _iterate(messages, notes, reading.warnings)
    return reading


def _iterate(
    messages: Iterator[FileMessage], notes: Notes, warnings: list[str]
) -> Iterator[FileMessage]:
    for message in messages:
        check_stopped()
        yield message
    warnings.extend(notes.sentences)


def encode_object(raw: Mapping[str, Any]) -> bytes:
    return json.dumps(raw, ensure_ascii=False).encode(errors="replace")
