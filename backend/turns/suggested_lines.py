"""Choose the suggested lines that can be shown: no JSON, no schema text, no empty lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_JSON_MEMBER = re.compile(r'"\w{1,40}"\s{0,9}:\s{0,9}(?:["{\[\d-]|true|false|null)')
"""A name in quotes and a value: an object, or a piece of one. Speech is not written like that."""

_BRACKETS = re.compile(r"""^(?:\[|\{(?!\{))\s{0,9}(?:["'{\[\]}]|$)""")
"""The beginning of a JSON list or object. `[OOC: ...]` and `{{user}}` are none."""

_SCHEMA_WORDS = frozenset(
    {
        *("lines", "items", "item", "type", "string", "strings", "array", "object", "properties"),
        *("required", "json", "schema", "enum"),
    }
)
"""A line that has no other words repeats the schema that the model was given."""

_BLANK_LINE = re.compile(r"\n[^\S\n]{0,99}\n")
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class SuggestedLines:
    """Lines that can be shown, and how many were dropped: those with JSON, and empty ones."""

    lines: list[str]
    code: int
    empty: int

    @property
    def dropped(self) -> int:
        """All that were dropped."""
        return self.code + self.empty


def read_suggestions(said: Iterable[str], *, most: int) -> SuggestedLines:
    """Keep the lines that a user could say, at most so many. Linear in their length."""
    lines: list[str] = []
    code = empty = 0
    for each in said:
        text = each.strip()
        if not text or _BLANK_LINE.search(text):
            empty += 1
        elif _is_code(text):
            code += 1
        else:
            lines.append(text)
    return SuggestedLines(lines[:most], code, empty)


def _is_code(text: str) -> bool:
    if "```" in text or _JSON_MEMBER.search(text):
        return True
    words = {word.lower() for word in _WORD.findall(text)}
    return bool(_BRACKETS.match(text)) or (bool(words) and words <= _SCHEMA_WORDS)
