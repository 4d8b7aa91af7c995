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
    for piece in _pieces(text, words - overlap, 0):
        if parts and _length(parts[-1]) + _length(piece) <= words:
            parts[-1] += piece
        elif parts:
            parts.append(_tail(parts[-1], overlap) + piece)
        else:
            parts.append(piece)
    return [part.strip() for part in parts]


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
    return sum(
        1 if len(word) <= _LONGEST_WORD else -(-len(word) // _WORD_CHARACTERS)
        for word in text.split()
    )


def _tail(text: str, words: int) -> str:
    """The last words of a text, with the spaces between them."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    return text[starts[-words] :] if words and len(starts) > words else ""
