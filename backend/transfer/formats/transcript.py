"""Write a chat as Markdown or as plain text, with the chosen version of each message.

Both are for people. Thoughts, other versions and settings are left out; files are named. The text
form is read back by `plain_log`. Dates are in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from backend.generation.model import Role
from backend.transfer.formats.chat_file import ChatHead, FileMessage
from backend.transfer.formats.plain_log import HIDDEN_MARK, MAX_NAME_CHARACTERS, escape, is_name

_NAMES: Final = {"user": "You", "assistant": "Character", "system": "System"}
_UNTITLED: Final = "Chat"
_UNNAMED: Final = "Someone"

_INLINE: Final = re.compile(r"([\\`*_\[\]<>#|~&!])")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_BLOCK: Final = re.compile(r"( {0,3})(#{1,6}(?:[ \t]|$)|<[A-Za-z/!?]|\[[^\]\n]{0,999}\]:)")
"""Headings, HTML, and definitions of links, which would reach beyond their message."""
_UNDERLINE: Final = re.compile(r"( {0,3})(=+|-+)[ \t]*")
"""Makes a heading of the line above."""
_LINE_BREAK: Final = re.compile(r"\r\n?")
_NOT_IN_NAME: Final = re.compile(r'[:"<>\[\]()|\\#`]+')


def write_markdown(
    head: ChatHead, messages: Iterable[FileMessage], *, include_hidden: bool = True
) -> Iterator[str]:
    """Yield a Markdown document in pieces, one for each message.

    A message has a heading with its author and date. Hidden ones are marked, or left out.
    """
    yield f"# {_escape_inline(head.title) or _UNTITLED}\n"
    for line in _describe(head):
        yield f"\n{line}  "
    yield "\n"
    for message in messages:
        if message.hidden and not include_hidden:
            continue
        swipe = message.swipes[message.selected]
        marks = [
            f"## {_escape_inline(_name_author(head, message))}",
            *(
                [f"{swipe.created_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"]
                if swipe.created_at
                else []
            ),
            *(["*hidden*"] if message.hidden else []),
        ]
        files = [f"*File: {_escape_inline(each.name) or 'without a name'}*" for each in swipe.files]
        parts = [" · ".join(marks), _escape_blocks(swipe.text), *files]
        yield "\n" + "\n\n".join(filter(None, parts)) + "\n"


def write_text(
    head: ChatHead, messages: Iterable[FileMessage], *, include_hidden: bool = True
) -> Iterator[str]:
    """Yield a plain text in pieces, one for each message: `[date] Name: text`.

    Hidden messages have `(hidden)` after their name, or are left out.
    """
    yield f"{escape(' '.join(head.title.split()) or _UNTITLED)}\n"
    for message in messages:
        if message.hidden and not include_hidden:
            continue
        swipe = message.swipes[message.selected]
        date = f"[{_format_date(swipe.created_at)}] " if swipe.created_at else ""
        mark = HIDDEN_MARK if message.hidden else ""
        first, *rest = _LINE_BREAK.sub("\n", swipe.text).split("\n")
        files = [
            f"(file: {' '.join(each.name.split()) or 'without a name'})" for each in swipe.files
        ]
        lines = [
            f"{date}{_clean_name(_name_author(head, message))}: {mark}{first}",
            *map(escape, [*rest, *files]),
        ]
        yield "\n" + "\n".join(lines) + "\n"


def _describe(head: ChatHead) -> Iterator[str]:
    if head.character_names:
        yield f"Characters: {_escape_inline(', '.join(head.character_names))}"
    if head.user_name:
        yield f"User: {_escape_inline(head.user_name)}"
    if head.created_at:
        yield f"Begun: {head.created_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _name_author(head: ChatHead, message: FileMessage) -> str:
    return message.author.strip() or _get_default_name(head, message.role)


def _get_default_name(head: ChatHead, role: Role) -> str:
    if role == "user" and head.user_name:
        return head.user_name
    if role == "assistant" and len(head.character_names) == 1:
        return head.character_names[0]
    return _NAMES[role]


def _format_date(date: datetime) -> str:
    return f"{date.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def _clean_name(name: str) -> str:
    """Return a name that `plain_log` reads."""
    clean = " ".join(_NOT_IN_NAME.sub(" ", name).split())[:MAX_NAME_CHARACTERS].strip()
    joined = clean if is_name(clean) else "-".join(clean.split())
    return joined if is_name(joined) else _UNNAMED


def _escape_inline(text: str) -> str:
    """Return a text as one line, with its Markdown escaped."""
    return _INLINE.sub(r"\\\1", " ".join(text.split()))


def _escape_blocks(text: str) -> str:
    """Escape the lines that would end their message or change the lines around it.

    Other Markdown is kept, because messages are Markdown. A code block that is left open is closed.
    """
    fence = ""
    previous = ""
    lines: list[str] = []
    for line in _LINE_BREAK.sub("\n", text).split("\n"):
        found = _FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not line.strip(f" {fence[0]}"):
                fence = ""
            lines.append(line)
        elif found:
            fence = found[1]
            lines.append(line)
        else:
            lines.append(_escape_line(line, previous))
        previous = line
    return "\n".join([*lines, fence] if fence else lines).strip("\n")


def _escape_line(line: str, previous: str) -> str:
    found = _BLOCK.match(line)
    if found is None and previous.strip():
        found = _UNDERLINE.fullmatch(line)
    return f"{found[1]}\\{line[found.end(1) :]}" if found else line
