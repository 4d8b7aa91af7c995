"""The words of a story's text, with what stands before each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from backend.campaigns.ordinary_words import ABBREVIATIONS, GERMAN
from backend.text_forms import normalized

LEAST_LETTERS = 3
"""Letters of the shortest name that is found."""

WORD = re.compile(r"[^\W_]+(?:['_-][^\W_]+)*")

_STARTS = frozenset('.!?…:"“”„«»‹›*_(\n—–[#>')  # noqa: RUF001  # as they are printed
"""Between two words these begin a sentence, or speech."""

_PLAIN = str.maketrans(
    {
        "\N{LEFT SINGLE QUOTATION MARK}": "'",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{HYPHEN}": "-",
        "\N{NON-BREAKING HYPHEN}": "-",
    }
)


class Vocabulary(Protocol):
    """Which words belong to everyday language."""

    def is_common(self, word: str, /) -> bool:
        """Whether a word does, spelled as it is."""
        ...

    def is_everyday(self, word: str, /) -> bool:
        """Whether a word does, or what it is a form of, in whatever case."""
        ...


class Word(NamedTuple):
    """A word of a text. `gap` is what stands before it, `starts` whether it begins a sentence."""

    text: str
    at: int
    gap: str
    starts: bool

    @property
    def folded(self) -> str:
        """In the form in which words are compared."""
        return self.text.removesuffix("'s").casefold()

    @property
    def bare(self) -> str:
        """Without a possessive ending."""
        return self.text.removesuffix("'s")

    @property
    def is_capitalised(self) -> bool:
        """Whether it begins with a capital."""
        return self.text[0].isupper()


def words_in(text: str) -> Iterator[Word]:
    """The words of a text that is `plain`. In a Markdown heading each begins a sentence."""
    end, before, is_heading = 0, "", False
    for match in WORD.finditer(text):
        gap, end = text[end : match.start()], match.end()
        if not before or "\n" in gap:
            is_heading = "#" in gap
        is_abbreviated = gap.startswith(".") and before.casefold() in ABBREVIATIONS
        marks = gap[1:] if is_abbreviated else gap
        starts = is_heading or not before or not _STARTS.isdisjoint(marks)
        before = match[0]
        yield Word(before, match.start(), gap, starts)


def plain(text: str) -> str:
    """A text in one form: composed letters, straight apostrophes, plain hyphens."""
    return normalized("NFC", text).translate(_PLAIN)


def has_capitals(text: str) -> bool:
    """Whether most letters of a text are of a script with capitals."""
    letters = sum(map(str.isalpha, text))
    cased = sum(char.islower() or char.isupper() for char in text)
    return 2 * cased > letters or not letters


def is_german(text: str) -> bool:
    """Whether a fifth of a text's words are German ones without which no text does."""
    words = [match[0].casefold() for match in WORD.finditer(text)]
    german = [word for word in words if word in GERMAN]
    return len(set(german)) > 1 and 5 * len(german) > len(words)
