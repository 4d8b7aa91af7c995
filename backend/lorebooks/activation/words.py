"""Folding of texts and keys, and where a word begins and ends.

Keys and texts are brought into one form (NFC, and case-folded where case does not matter), and are
compared in it. Folding may change lengths ("ß" becomes "ss"), so neighbours are looked at in the
folded text, where the match was found.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from functools import lru_cache

from backend.text_forms import normalized

# Scripts that are written without spaces between words, or, as Korean, with endings joined to them:
# first and last code point, flat. In them every place is a place where a word may end.
_UNSPACED = (
    (0x0E00, 0x109F),  # Thai, Lao, Tibetan, Myanmar
    (0x1100, 0x11FF),  # Hangul letters
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0xA4CF),  # kana, bopomofo, Han, Yi
    (0xA960, 0xA97F),
    (0xAC00, 0xD7FF),  # Hangul syllables
    (0xF900, 0xFAFF),  # Han, compatibility
    (0xFF66, 0xFFDC),  # half-width kana and Hangul
    (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFF),
)
_FIRST = tuple(first for first, _ in _UNSPACED)


class Folded:
    """A text in the two forms in which keys are looked for in it.

    Attributes:
        exact: The text in NFC.
        folded: The same, case-folded.
        raw: As it came, for regexes.
        is_changed: Whether that is not in NFC.
    """

    __slots__ = ("exact", "folded", "is_changed", "raw")

    def __init__(self, text: str) -> None:
        self.raw = text
        self.exact = normalized("NFC", text)
        self.folded = self.exact.casefold()
        self.is_changed = self.exact != text


def is_one_word(key: str) -> bool:
    """Whether `key` is a single word; several words are matched as text, wherever they stand."""
    return len(key.split(None, 1)) == 1


def is_whole(text: str, start: int, end: int) -> bool:
    """Whether `text[start:end]`, not empty, stands there as a word of its own."""
    return (start == 0 or _may_part(text[start - 1], text[start])) and (
        end == len(text) or _may_part(text[end], text[end - 1])
    )


def occurs(key: str, text: str, *, whole: bool) -> bool:
    """Whether `key` occurs in `text`, both in the same form; `whole` asks for a word of its own."""
    start = text.find(key)
    while start >= 0:
        if not whole or is_whole(text, start, start + len(key)):
            return True
        start = text.find(key, start + 1)
    return False


@lru_cache(maxsize=4096)
def _may_part(neighbour: str, edge: str) -> bool:
    """Whether a word may part between the last character of a match and what stands next to it."""
    if not _is_of_a_word(neighbour):
        return True
    return _is_unspaced(neighbour) or _is_unspaced(edge)


def _is_of_a_word(char: str) -> bool:
    if char.isalnum() or char == "_":
        return True
    # Variation selectors are marks too, but they dress emoji and belong to no word.
    return unicodedata.category(char).startswith("M") and not "\ufe00" <= char <= "\ufe0f"


def _is_unspaced(char: str) -> bool:
    place = bisect_right(_FIRST, ord(char)) - 1
    return place >= 0 and ord(char) <= _UNSPACED[place][1]
