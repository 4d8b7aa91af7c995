"""What a call's texts have to be like before they are proposed."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from backend.enrichment.cleaning import one_line, paragraphs
from backend.memory.terms import COMMON_WORDS

_SHORTEST_KEY = 2


class RefusedCallError(Exception):
    """A call that comes to nothing. The text is what the model is told: it may act on it."""

    def __init__(self, reason: str, *, duplicate_of: UUID | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.duplicate_of = duplicate_of


def pinned(mark: str) -> RefusedCallError:
    """What is said of an event that stands in every prompt because its user wants it there."""
    return RefusedCallError(
        f"{mark_of(mark)} was pinned by the user: it is neither changed nor superseded."
    )


def said_of(text: str, name: str) -> str:
    """A line that says something. Raises `RefusedCallError`."""
    line = one_line(text)
    if not any(map(str.isalnum, line)):
        raise RefusedCallError(f"{name} says nothing.")
    return line


def content_of(text: str) -> str:
    """What an entry says. Raises `RefusedCallError`."""
    content = paragraphs(text)
    if not any(map(str.isalnum, content)):
        raise RefusedCallError("The content says nothing.")
    return content


def words_of(words: Sequence[str]) -> list[str]:
    """Names or keywords, each once, cleaned."""
    return list(dict.fromkeys(filter(None, map(one_line, words))))


def keys_of(keys: Sequence[str]) -> list[str]:
    """Keys of an entry: plain words that do not occur everywhere. Raises `RefusedCallError`."""
    cleaned = words_of(keys)
    for key in cleaned:
        if key.startswith("/"):
            raise RefusedCallError(f"The key {key} is a pattern. Keys are plain words.")
        if not any(map(str.isalnum, key)):
            raise RefusedCallError(f"The key {key} is no word.")
        is_short = len(key) < _SHORTEST_KEY and key.isascii()
        if is_short or key.casefold() in COMMON_WORDS:
            raise RefusedCallError(f"The key {key} occurs everywhere. Take a name.")
    if not cleaned:
        raise RefusedCallError("There is no key.")
    return cleaned


def mark_of(text: str) -> str:
    """A mark that a model made up, as an answer quotes it."""
    return one_line(text)[:10] or "Nothing"
