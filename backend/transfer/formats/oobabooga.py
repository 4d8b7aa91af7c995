"""Read the chats of text-generation-webui (Oobabooga).

A chat is `{internal: [[user, reply]], visible: [[user, reply]], metadata}`. `internal` has the
texts as they were written, and `visible` the same as escaped HTML. Files of 2023 call them `data`
and `data_visible`. A row without the user's text is a greeting, or a reply that continues. In it,
the user's text is `<|BEGIN-VISIBLE-CHAT|>`; in the oldest files, rows before it are the character's
example dialogue.

`metadata` is by `user_N` and `assistant_N`, where N is the row: `timestamp` (`Jun 19, 2023 14:20`,
local), `versions` (`content`, `timestamp`) with `current_version_index`, `attachments` (pictures as
a data URI in `image_data`, or the text of a document in `content`), and `model_name`. The text in
`internal` is that of the current version. Thoughts are in the text.

Neither character nor user is named. The name of the file can be `NAME_persistent.json`,
`persistent_NAME.json`, or `NAME_oobabooga_Chat.json` from CAI Tools.

Left out: example dialogue, model names, results of tools, and searches of the web.

Source: https://github.com/oobabooga/text-generation-webui (modules/chat.py).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import UTC
from typing import Any, BinaryIO, Final, Literal

from backend.characters.cards.codec import Notes, Object, get_object
from backend.transfer.errors import TransferFileError
from backend.transfer.formats.chat_file import (
    ChatFormat,
    ChatHead,
    ChatReading,
    FileMessage,
    FileReference,
    FileSwipe,
)
from backend.transfer.formats.json_files import (
    find_name,
    find_text,
    get_list,
    get_stem,
    iterate_objects,
    load_object,
    make_reading,
    to_list,
)
from backend.transfer.formats.send_dates import parse_send_date
from backend.transfer.formats.thought_tags import split_thoughts

MARK: Final = "<|BEGIN-VISIBLE-CHAT|>"
_ROW_TEXTS: Final = 2
_BEGINNING: Final = re.compile(
    rb'\s*+\{\s*+"(?:internal|visible|data|data_visible)"\s*+:\s*+\[\s*+(?:\[\s*+"|\])'
)


def matches(head: bytes, _: str) -> bool:
    return _BEGINNING.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


def read(file: BinaryIO, *, name: str) -> Iterator[ChatReading]:
    raw = load_object(file)
    member = "internal" if "internal" in raw else "data"
    rows = [
        _to_row(value, f"Row {number:,}")
        for number, value in enumerate(get_list(raw, member, "The file"), 1)
    ]
    notes = Notes()
    first = max((place for place, row in enumerate(rows) if row[0] == MARK), default=0)
    for _ in range(first):
        notes.add("A row of example dialogue was left out")
    character = _find_character(get_stem(name))
    if not any(text.strip() for row in rows[first:] for text in row if text != MARK):
        raise TransferFileError("The chat has no messages.")
    head = ChatHead(title=get_stem(name), character_names=[character] if character else [])
    messages = _read_rows(rows, first, get_object(raw, "metadata"), character, notes)
    yield make_reading(head, messages, notes)


def _find_character(stem: str) -> str:
    """Return the character's name in a file's name, or an empty text."""
    for ending in ("_persistent", "_oobabooga_Chat"):
        if stem.endswith(ending):
            return stem.removesuffix(ending)
    return stem.removeprefix("persistent_") if stem.startswith("persistent_") else ""


def _to_row(value: Any, place: str) -> tuple[str, str]:
    texts = to_list(value, place)
    if len(texts) != _ROW_TEXTS:
        raise TransferFileError(f"{place} is not a pair of the user's text and the reply.")
    said, reply = (_to_text(each, place) for each in texts)
    return said, reply


def _to_text(value: object, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TransferFileError(f"{place} has a value that is not a text.")
    return value


def _read_rows(
    rows: list[tuple[str, str]], first: int, metadata: Object, character: str, notes: Notes
) -> Iterator[FileMessage]:
    for place, (said, reply) in enumerate(rows[first:], first):
        files = _list_files(get_object(metadata, f"user_{place}"), place, notes)
        if (said.strip() and said != MARK) or files:
            text = "" if said == MARK else said
            message = _read_message("user", text, get_object(metadata, f"user_{place}"), place)
            message.swipes[message.selected].files = files
            yield message
        if reply.strip():
            about = get_object(metadata, f"assistant_{place}")
            message = _read_message("assistant", reply, about, place)
            message.author = character
            yield message


def _read_message(
    role: Literal["user", "assistant"], text: str, about: Object, place: int
) -> FileMessage:
    """Return a message with its versions. `text` is that of the current one."""
    current: Any = about.get("current_version_index")
    versions = iterate_objects(get_list(about, "versions", f"Row {place + 1:,}"), "Version")
    swipes: list[FileSwipe] = []
    selected: int | None = None
    for number, (version, _) in enumerate(versions):
        content = text if number == current else find_text(version, "content")
        if number == current:
            selected = len(swipes)
        if content.strip() or number == current:
            swipes.append(_make_swipe(role, content, version.get("timestamp")))
    if selected is None:
        selected = len(swipes)
        swipes.append(_make_swipe(role, text, about.get("timestamp")))
    return FileMessage(role=role, author="", swipes=swipes, selected=selected)


def _make_swipe(role: str, text: str, date: object) -> FileSwipe:
    thinking, rest = (None, text) if role == "user" else split_thoughts(text)
    return FileSwipe(text=rest, thinking=thinking, created_at=parse_send_date(date, zone=UTC))


def _list_files(about: Object, place: int, notes: Notes) -> list[FileReference]:
    found: list[FileReference] = []
    listed = get_list(about, "attachments", f"Row {place + 1:,}")
    for each, _ in iterate_objects(listed, f"Row {place + 1:,}, attachment"):
        name, kind = find_name(each, "name"), find_text(each, "type")
        if picture := find_text(each, "image_data"):
            found.append(FileReference(path=picture, name=name))
        elif kind != "text/html" and (content := find_text(each, "content")):
            encoded = base64.b64encode(content.encode(errors="replace")).decode()
            found.append(
                FileReference(
                    path=f"data:text/plain;base64,{encoded}", name=name, media_type="text/plain"
                )
            )
        else:
            notes.add("An attachment without content was left out")
    return found


OOBABOOGA = ChatFormat("oobabooga", "text-generation-webui (Oobabooga)", matches, read)
