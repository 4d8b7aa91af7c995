"""The text of a reply: join it to the text before it, and remove labels and other speakers."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import regex  # type: ignore[import-untyped]  # it has no types

from backend.chats.speaker_labels import SpeakerFilter
from backend.generation.model import (
    Finish,
    Piece,
    TextPiece,
    TextReset,
)
from backend.turns.prompt.context import LoadedChat
from backend.turns.speakers import PASS_MARK

PARAGRAPH = "\n\n"

_MAX_PASS_MARKS = 20
"""Characters other than letters around the mark of a pass. They are held back."""

_PASS_WORD = "".join(filter(str.isalpha, PASS_MARK))
_PASS = regex.compile(
    rf"[^\p{{L}}\p{{N}}]{{0,{_MAX_PASS_MARKS}}}{_PASS_WORD}[^\p{{L}}\p{{N}}]{{0,{_MAX_PASS_MARKS}}}",
    regex.IGNORECASE,
)
_PASS_BEFORE_TEXT = regex.compile(rf"\s*{regex.escape(PASS_MARK)}\s*", regex.IGNORECASE)

_TAIL_CHARACTERS = 10_000
"""Only so many characters at the end of a text are examined."""

_UNSPACED = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\u3000-\u303f\uff00-\uffef]"
)
"""Characters of scripts that put no spaces between words."""

_MARKS = '"*_~`'
"""Quotation marks and Markdown marks that are the same at both ends."""

_OPENERS = {"“": "„", "”": "“", "»": "«", "«": "»"}
"""Closing quotation marks, each with its opening mark. Languages use them in both directions."""

_QUOTES = _MARKS + "„" + "".join(_OPENERS)
_APOSTROPHES = "'\N{RIGHT SINGLE QUOTATION MARK}"
_DASHES = "-—"
_FENCES = ("```", "~~~")


def find_joint(before: str, more: str) -> str:
    """Return the white space that is missing between a text and its continuation.

    This is a space, unless there is white space already or the characters belong together, such as
    punctuation and the word before it.
    """
    before = before[-_TAIL_CHARACTERS:]
    if not before or not more or before[-1].isspace() or more[0].isspace():
        return ""
    if before.rpartition("\n")[2].startswith(_FENCES):
        return "\n"
    if _UNSPACED.match(before[-1]) or _UNSPACED.match(more[0]):
        return ""
    return "" if _is_open(before) or _is_closing(before, more[0]) else " "


def _is_open(text: str) -> bool:
    """True if a text ends with a character that belongs to the next one."""
    last = text[-1]
    if last in _QUOTES:
        rest = text.rstrip(_QUOTES)
        return not rest or rest[-1].isspace() or unicodedata.category(rest[-1]) in {"Ps", "Pd"}
    return last in _DASHES or unicodedata.category(last) == "Ps"


def _is_closing(before: str, first: str) -> bool:
    """True if the first character of a continuation belongs to the text before it."""
    paragraph = before.rpartition("\n")[2]
    if first in _APOSTROPHES:
        return before[-1].isalnum()
    if first in _MARKS:
        return len(regex.findall(f"{regex.escape(first)}+", paragraph)) % 2 == 1
    if first in _OPENERS:
        return paragraph.count(_OPENERS[first]) > paragraph.count(first)
    return first in ",.;:!?…%—" or unicodedata.category(first) == "Pe"


def make_speaker_filter(loaded: LoadedChat, *, has_text: bool) -> SpeakerFilter:
    """Return the filter for one request. `has_text` if the reply has text before it."""
    cast = [loaded.cast.speaker.name, *loaded.cast.others]
    speaker, *others = (
        [loaded.cast.user_name, *cast]
        if loaded.target.kind == "impersonate"
        else [*cast, loaded.cast.user_name]
    )
    return SpeakerFilter(
        speaker,
        others,
        has_text=has_text,
        joins_text=has_text and loaded.target.kind == "continue",
        keeps_others=loaded.keeps_other_speakers,
    )


async def filter_speakers(
    pieces: AsyncGenerator[Piece, None], make_filter: Callable[[], SpeakerFilter]
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of a reply with its text filtered.

    The reply ends where a line of another speaker begins, and the request is closed. To close it
    earlier, iterate inside `contextlib.aclosing`.
    """
    speakers = make_filter()
    async with aclosing(pieces):
        async for piece in pieces:
            match piece:
                case TextPiece(text):
                    if said := speakers.feed(text):
                        yield TextPiece(said)
                    if speakers.is_over:
                        yield Finish("stop")
                        return
                case TextReset():
                    speakers = make_filter()
                    yield piece
                case _:
                    if rest := speakers.close():
                        yield TextPiece(rest)
                    yield piece


class PassFilter:
    """Removes the mark with which a character says that it has nothing to say.

    It counts in any letter case, in quotation marks, brackets and emphasis, and with punctuation,
    but only alone. Only text that may still be the mark is held back. Before other text, the mark
    alone is removed.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_decided = False

    def feed(self, text: str) -> str:
        """Return the text that certainly belongs to the reply."""
        if self._is_decided:
            return text
        self._held += text
        if _PASS.fullmatch(self._held, partial=True):
            return ""
        self._is_decided = True
        return self._release()

    def close(self) -> str:
        """Return the rest at the end of the reply. Empty if it is the mark."""
        found = _PASS.fullmatch(self._held)
        return "" if found else self._release()

    def _release(self) -> str:
        held, self._held = self._held, ""
        return _PASS_BEFORE_TEXT.sub("", held, count=1) if _PASS_BEFORE_TEXT.match(held) else held


async def drop_pass(pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of a reply, without the mark of a pass. See `PassFilter`."""
    said = PassFilter()
    async with aclosing(pieces):
        async for piece in pieces:
            match piece:
                case TextPiece(text):
                    if kept := said.feed(text):
                        yield TextPiece(kept)
                case TextReset():
                    said = PassFilter()
                    yield piece
                case Finish():
                    if rest := said.close():
                        yield TextPiece(rest)
                    yield piece
                case _:
                    yield piece
    if rest := said.close():
        yield TextPiece(rest)
