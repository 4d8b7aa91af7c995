"""Separate the thoughts that other programs keep in the text of a reply."""

from __future__ import annotations

import re
from typing import Final

from backend.generation.thoughts import KNOWN_TAGS, ThoughtTags

_TAGS: Final = (*KNOWN_TAGS, ThoughtTags("<Thoughts>", "</Thoughts>"))
_BLANKS: Final = re.compile(r"\s*")


def split_thoughts(text: str) -> tuple[str | None, str]:
    """Return the thoughts at the beginning of a reply, or None, and the text after them.

    A block that is not closed is text.
    """
    thoughts: list[str] = []
    place = 0
    while True:
        start = _skip_blanks(text, place)
        pair = next((each for each in _TAGS if text.startswith(each.opening, start)), None)
        begin = start + len(pair.opening) if pair else 0
        end = text.find(pair.closing, begin) if pair else -1
        if pair is None or end < 0:
            break
        thoughts.append(text[begin:end].strip())
        place = end + len(pair.closing)
    if not thoughts:
        return None, text
    return "\n\n".join(filter(None, thoughts)) or None, text[_skip_blanks(text, place) :]


def _skip_blanks(text: str, place: int) -> int:
    found = _BLANKS.match(text, place)
    return found.end() if found else place
