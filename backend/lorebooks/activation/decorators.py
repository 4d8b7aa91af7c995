"""Decorators: lines `@@name value` at the head of an entry's content (Character Card V3).

A line `@@@name value` is a fallback: it counts when the `@@` before it, and the fallbacks between,
are not known here or have a value that can't be used. All of them are taken from the content,
known or not. The specification's `instruct_` forms count tokens of a text that is no chat, and
`is_user_icon` needs pictures: they are not known here, so that their fallbacks count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from backend.generation.model import Role
from backend.lorebooks.entries import Position

_LINE = re.compile(r"(@{2,3}+)(\w++)(?:[ \t]++(.*+))?")
_MOST = 100_000
_MOST_WORDS = 200
_POSITIONS: dict[str, Position] = {
    "before_desc": "before_character",
    "after_desc": "after_character",
    # The two have no slot of their own; this is the nearest.
    "personality": "after_character",
    "scenario": "after_character",
}


class Decorators(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an entry's decorators say. Null: not said."""

    activate_only_after: int | None = None
    activate_only_every: int | None = None
    keep_activate_after_match: bool = False
    dont_activate_after_match: bool = False
    activate: bool = False
    dont_activate: bool = False
    is_greeting: int | None = None
    scan_depth: int | None = None
    additional_keys: tuple[str, ...] = ()
    exclude_keys: tuple[str, ...] = ()
    position: Position | None = None
    depth: int | None = None
    reverse_depth: int | None = None
    role: Role | None = None
    ignore_on_max_context: bool = False
    disable_ui_prompt: str = ""

    @property
    def counts_replies(self) -> bool:
        """Whether it matters how many replies the chat has."""
        return self.activate_only_after is not None or self.activate_only_every is not None


NOTHING_SAID = Decorators()


def split_decorators(content: str) -> tuple[Decorators, str]:
    """Take the decorators from the head of `content`: what they say, and what is left."""
    if not content.lstrip().startswith("@@"):
        return NOTHING_SAID, content
    said: dict[str, Any] = {}
    lines = content.lstrip().splitlines(keepends=True)
    settled = True  # a fallback without a decorator before it is none
    used = 0
    for line in lines:
        match = _LINE.fullmatch(line.strip())
        if match is None:
            break
        used += 1
        marks, name, text = match.groups("")
        if marks == "@@@" and settled:
            continue
        read = _READERS.get(name)
        value = read(text.strip()) if read else None
        settled = value is not None
        if settled:
            said.setdefault(name, value)  # of several with one name the first
    if not used:
        return NOTHING_SAID, content
    return Decorators(**said), "".join(lines[used:])


def _flag(text: str) -> bool | None:
    return None if text else True


def _number(text: str) -> int | None:
    try:
        return max(0, min(_MOST, int(float(text))))
    except (ValueError, OverflowError):
        return None


def _positive(text: str) -> int | None:
    return _number(text) or None


def _words(text: str) -> tuple[str, ...] | None:
    return (
        tuple(word for part in text.split(",", _MOST_WORDS)[:_MOST_WORDS] if (word := part.strip()))
        or None
    )


def _role(text: str) -> str | None:
    return text.lower() if text.lower() in {"system", "user", "assistant"} else None


def _position(text: str) -> str | None:
    return _POSITIONS.get(text.strip("\"'").lower())


def _text(text: str) -> str | None:
    return text.strip("\"'")[:200] or None


_READERS: dict[str, Callable[[str], object]] = {
    "activate_only_after": _number,
    "activate_only_every": _positive,
    "keep_activate_after_match": _flag,
    "dont_activate_after_match": _flag,
    "activate": _flag,
    "dont_activate": _flag,
    "is_greeting": _number,
    "scan_depth": _number,
    "additional_keys": _words,
    "exclude_keys": _words,
    "position": _position,
    "depth": _number,
    "reverse_depth": _number,
    "role": _role,
    "ignore_on_max_context": _flag,
    "disable_ui_prompt": _text,
}
