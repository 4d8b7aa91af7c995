"""Read plain logs: lines of `Name: text`, with further lines of the same message below.

A line begins a message if it has the name of a speaker before a colon, or a date in brackets before
that (`[2023-06-19 14:20:05Z] Name: text`). A name is a speaker's if it begins two lines or has a
date, if it is a usual word for one, or if it begins the first message. Shorter logs have no such
rule. RisuAI's text export, in which a line `--Name` precedes each text, is read as well.

No line says which name is the user's. It is a usual word (`You`, `User`, `Me`), or the one of two
that the file's name does not contain, or the second to speak. The reading has a warning, unless it
is a usual word.

The text before the first message is the title if it is one line, and a system message otherwise. A
line of a message that looks like the beginning of another one has a blank before it, which
`transcript` writes and this reader removes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import BinaryIO, Final

from backend.characters.cards.codec import Notes
from backend.core.cpu_pool import check_stopped
from backend.generation.model import Role
from backend.transfer.errors import TransferFileError
from backend.transfer.formats.chat_file import (
    ChatFormat,
    ChatHead,
    ChatReading,
    FileMessage,
    FileSwipe,
)
from backend.transfer.formats.json_files import (
    UTF16_MARKS,
    decode_text,
    get_stem,
    make_reading,
    read_whole,
    split_lines,
)
from backend.transfer.formats.send_dates import parse_send_date

MAX_NAME_CHARACTERS: Final = 60
MAX_NAME_WORDS: Final = 5
MAX_DATE_CHARACTERS: Final = 64

USER_WORDS: Final = frozenset({"you", "user", "me", "i", "human", "player", "{{user}}", "anon"})
CHARACTER_WORDS: Final = frozenset({"assistant", "ai", "bot", "char", "character", "{{char}}"})
SYSTEM_WORDS: Final = frozenset({"system"})
_USUAL: Final = USER_WORDS | CHARACTER_WORDS | SYSTEM_WORDS

HIDDEN_MARK: Final = "(hidden) "
"""Precedes the text of a hidden message."""

_ENDINGS: Final = frozenset({"", ".txt", ".log", ".text"})
_NO_NAME: Final = frozenset('"<>[]()|\\#`')
_MARKUP: Final = frozenset("{<")
_PAIR: Final = 2
_SHORT_LOG: Final = 4
"""In a log with fewer lines that can begin a message, each of them does."""
_RISU_MARK: Final = "--"
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class SpeakerLine:
    """A line that can begin a message."""

    name: str
    text: str
    date: datetime | None = None


@dataclass(slots=True)
class _LogMessage:
    name: str
    lines: list[str]
    date: datetime | None = None


def parse_line(line: str) -> SpeakerLine | None:
    """Return the parts of a line if it can begin a message. Blanks at its beginning exclude it."""
    date = None
    if line.startswith("["):
        written, mark, rest = line[1 : MAX_DATE_CHARACTERS + 2].partition("] ")
        date = parse_send_date(written, zone=UTC) if mark else None
        if date is None or not rest:
            return None
        line = line[len(written) + len("[] ") :]
    end = line.find(":", 0, MAX_NAME_CHARACTERS + 1)
    name = line[:end] if end > 0 else ""
    if not is_name(name) or line[end + 1 : end + 2] not in ("", " ", "\t"):
        return None
    return SpeakerLine(name, line[end + 1 :].removeprefix(" "), date)


def is_name(text: str) -> bool:
    """True if a text can be a speaker's name in a log."""
    return (
        0 < len(text) <= MAX_NAME_CHARACTERS
        and text == text.strip()
        and _NO_NAME.isdisjoint(text)
        and len(text.split()) <= MAX_NAME_WORDS
        and any(map(str.isalnum, text))
    )


def matches(head: bytes, name: str) -> bool:
    if PurePosixPath(name).suffix.lower() not in _ENDINGS:
        return False
    encoding = "utf-16" if head.startswith(UTF16_MARKS) else "utf-8-sig"
    text = head.decode(encoding, errors="replace")
    lines = text.split("\n")
    if _is_risu(lines):
        return True
    first = next((line for line in lines if line.strip()), "")
    found = [parsed for line in lines if (parsed := parse_line(line.rstrip("\r"))) is not None]
    if "\0" in text or (first[:1] in _MARKUP and not found):
        return False
    counts = Counter(each.name for each in found)
    return any(each.date or counts[each.name] > 1 or each.name.lower() in _USUAL for each in found)


def read(file: BinaryIO, *, name: str) -> Iterator[ChatReading]:
    text = decode_text(read_whole(file)).replace("\r\n", "\n").replace("\r", "\n")
    lines = split_lines(text)
    preamble, messages = (_split_risu if _is_risu(lines) else _split)(lines)
    messages = [each for each in messages if any(map(str.strip, each.lines))]
    if not messages:
        raise TransferFileError("No line of the file is `Name: text`.")
    notes = Notes()
    stem = get_stem(name)
    names = list(dict.fromkeys(each.name for each in messages))
    user = _find_user(names, stem, notes)
    title = [line.strip() for line in preamble if line.strip()]
    head = ChatHead(
        title=title[0] if len(title) == 1 else stem,
        user_name=user,
        character_names=[each for each in names if _find_role(each, user) == "assistant"],
        created_at=next((each.date for each in messages if each.date), None),
    )
    start = preamble if len(title) > 1 else []
    yield make_reading(head, _build(start, messages, user), notes)


def _is_risu(lines: Sequence[str]) -> bool:
    first = next((line for line in lines if line.strip()), "")
    return first.startswith(_RISU_MARK) and is_name(first.removeprefix(_RISU_MARK))


def _split_risu(lines: Sequence[str]) -> tuple[list[str], list[_LogMessage]]:
    messages: list[_LogMessage] = []
    was_blank = True
    for line in lines:
        check_stopped()
        name = line.removeprefix(_RISU_MARK)
        if was_blank and line.startswith(_RISU_MARK) and is_name(name):
            messages.append(_LogMessage(name, []))
        elif messages:
            messages[-1].lines.append(line)
        was_blank = not line.strip()
    return [], messages


def _split(lines: Sequence[str]) -> tuple[list[str], list[_LogMessage]]:
    """Return the lines before the first message, and the messages."""
    begun: list[SpeakerLine | None] = []
    for line in lines:
        check_stopped()
        begun.append(parse_line(line))
    found = [each for each in begun if each is not None]
    counts = Counter(each.name for each in found)
    speakers = {
        each.name
        for number, each in enumerate(found)
        if number == 0
        or each.date is not None
        or counts[each.name] > 1
        or each.name.lower() in _USUAL
        or len(found) < _SHORT_LOG
    }
    preamble: list[str] = []
    messages: list[_LogMessage] = []
    for line, start in zip(lines, begun, strict=True):
        check_stopped()
        if start is not None and start.name in speakers:
            messages.append(_LogMessage(start.name, [start.text], start.date))
        else:
            (messages[-1].lines if messages else preamble).append(_unescape(line))
    return preamble, messages


def escape(line: str) -> str:
    """Return a line of a message so that it does not begin another one."""
    return f" {line}" if parse_line(line.lstrip(" ")) is not None else line


def _unescape(line: str) -> str:
    is_escaped = line.startswith(" ") and parse_line(line.lstrip(" ")) is not None
    return line[1:] if is_escaped else line


def _find_user(names: Sequence[str], stem: str, notes: Notes) -> str:
    usual = next((each for each in names if each.lower() in USER_WORDS), None)
    if usual is not None:
        return usual
    others = [each for each in names if each.lower() not in _USUAL]
    if any(each.lower() in CHARACTER_WORDS for each in names):
        user = others[0] if others else ""
    else:
        words = {each.lower() for each in _WORD.findall(stem)}
        unnamed = [each for each in others if words.isdisjoint(map(str.lower, _WORD.findall(each)))]
        is_clear = len(others) == _PAIR and len(unnamed) == 1
        user = unnamed[0] if is_clear else "".join(others[1:2])
    if user:
        notes.add(f"The lines of “{user}” were read as yours, because the file does not say whose")
    return user


def _find_role(name: str, user: str) -> Role:
    if name == user:
        return "user"
    return "system" if name.lower() in SYSTEM_WORDS else "assistant"


def _build(
    preamble: Sequence[str], messages: Sequence[_LogMessage], user: str
) -> Iterator[FileMessage]:
    if preamble:
        text = "\n".join(preamble).strip()
        yield FileMessage(role="system", author="", swipes=[FileSwipe(text=text)])
    for each in messages:
        text = "\n".join(each.lines).strip()
        yield FileMessage(
            role=_find_role(each.name, user),
            author=each.name,
            swipes=[FileSwipe(text=text.removeprefix(HIDDEN_MARK), created_at=each.date)],
            hidden=text.startswith(HIDDEN_MARK),
        )


PLAIN_LOG = ChatFormat("plain_log", "Plain log (Name: text)", matches, read)
