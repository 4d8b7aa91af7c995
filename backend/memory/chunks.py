"""Long texts in parts, cut where it hurts least."""

from __future__ import annotations

import re
from itertools import pairwise

CHUNK_WORDS = 200
OVERLAP_WORDS = 20

_SEPARATORS = tuple(
    map(
        re.compile,
        (r"\n\s*\n", r"\n", r"[.!?…][\"'”’)*]*\s+|[。！？]", r"\s+"),  # noqa: RUF001  # ends of sentences in Chinese and Japanese
    )
)
"""Where a text is cut, the best places first: after paragraphs, lines, sentences, words."""

_WORD_CHARACTERS = 12
"""What has no spaces is counted in words of this length."""

_LONGEST_WORD = 36
"""Characters up to which a word is one."""


def chunked(text: str, *, words: int = CHUNK_WORDS, overlap: int = OVERLAP_WORDS) -> list[str]:
    """Cut a text into parts of at most `words` words, at the best places that there are.

    A part that would be too long is cut at paragraphs, then lines, sentences, words. Parts are
    filled up as far as they go, and each begins with the end of the one before: whole words, at
    most `overlap`.

    Args:
        text: Any text.
        words: The most that a part has, at least 1. Twelve characters without a space are a word:
            Chinese has no spaces.
        overlap: Words that are repeated, less than `words`.

    Returns:
        At least one part; all of the text, but for spaces at the cuts, is in them, in order.

    Raises:
        ValueError: If `overlap` is not less than `words`.
    """
    if not 0 <= overlap < words:
        raise ValueError("The overlap must be less than a part.")
    if _length(text) <= words:
        return [text.strip()]
    parts: list[str] = []
    part = _Part()
    for piece in _pieces(text, words - overlap, 0):
        if part.length + _length(piece) > words and part.text:
            parts.append(part.text)
            part = _Part(_tail(part.text, overlap))
        part.append(piece)
    return [each.strip() for each in (*parts, part.text)]


class _Part:
    """A part that grows by pieces, whose words are counted as they come."""

    def __init__(self, text: str = "") -> None:
        self._pieces: list[str] = []
        self._closed = 0  # in words, without the one that the next piece may go on with
        self._open = 0  # characters of that
        self.append(text)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def length(self) -> int:
        """How many words it has, as `_length` counts them."""
        return self._closed + _words_in(self._open)

    def append(self, piece: str) -> None:
        """Add a piece. Its first word may go on with the last one there."""
        self._pieces.append(piece)
        if not piece:
            return
        sizes = [len(word) for word in piece.split()]
        if sizes and not piece[0].isspace():
            sizes[0] += self._open
        else:
            sizes.insert(0, self._open)
        self._open = 0 if piece[-1].isspace() else sizes.pop()
        self._closed += sum(map(_words_in, sizes))


def _pieces(text: str, words: int, depth: int) -> list[str]:
    """The text in pieces of at most `words` words, which put together are the text."""
    if _length(text) <= words:
        return [text] if text else []
    if depth == len(_SEPARATORS):
        size = words * _WORD_CHARACTERS
        return [text[start : start + size] for start in range(0, len(text), size)]
    cuts = [match.end() for match in _SEPARATORS[depth].finditer(text)]
    bounds = [0, *cuts, len(text)]
    return [
        piece
        for start, end in pairwise(bounds)
        for piece in _pieces(text[start:end], words, depth + 1)
    ]


def _length(text: str) -> int:
    """How many words a text has; what is too long for a word is several."""
    return sum(_words_in(len(word)) for word in text.split())


def _words_in(characters: int) -> int:
    if characters <= _LONGEST_WORD:
        return min(characters, 1)
    return -(-characters // _WORD_CHARACTERS)


def _tail(text: str, words: int) -> str:
    """The last words of a text, with the spaces between them."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    return text[starts[-words] :] if words and len(starts) > words else ""
