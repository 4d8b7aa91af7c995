"""Coined terms that their capitals, or their form, show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from backend.campaigns.ordinary_words import (
    ARTICLES,
    CAPITALISED,
    CONNECTORS,
    GERMAN_ENDINGS,
    MEASURES,
    PRONOUN_ENDINGS,
    QUANTITIES,
    TITLES,
)
from backend.campaigns.story_words import (
    LEAST_LETTERS,
    Vocabulary,
    Word,
    is_german,
    words_in,
)

_CAMEL = re.compile(r"[^\W\d_A-Z][A-Z]")
_FAMILY = ("Mc", "Mac", "De", "Di", "La", "Le", "Van", "Fitz")
"""Capitals after these are no sign of a coined word."""

_MAX_WORDS = 5
_MAX_JOINTS = 2
_JOINED = frozenset((" ", ". ", "' "))
"""Between words of one name, where no sentence ends: Dr. Vex, the Thieves' Court."""


def capitalised_terms(text: str, vocabulary: Vocabulary) -> Iterator[tuple[str, int]]:
    """Terms with their places in a `plain` text, the same one as often as it comes up."""
    words = list(words_in(text))
    reading = _Reading(text, words, vocabulary)
    for number, word in enumerate(words):
        if reading.is_coined_form(number):
            yield word.bare, word.at
    for before, run in _runs(words):
        if term := reading.name(before, run):
            yield term, run[0].at


@dataclass
class _Reading:
    """A text with how it spells its words.

    Attributes:
        lower: The words that it spells without capitals.
        inside: How often a word has a capital that no sentence gives it.
        compounds: How often it says each word with a hyphen.
    """

    text: str
    words: Sequence[Word]
    vocabulary: Vocabulary
    lower: frozenset[str] = field(init=False)
    inside: Counter[str] = field(init=False)
    compounds: Counter[str] = field(init=False)
    is_german: bool = field(init=False)

    def __post_init__(self) -> None:
        self.lower = frozenset(word.text for word in self.words if word.text.islower())
        self.inside = Counter(
            word.folded for word in self.words if word.is_capitalised and not word.starts
        )
        self.compounds = Counter(word.text for word in self.words if "-" in word.text)
        self.is_german = is_german(self.text)

    def is_coined_form(self, number: int) -> bool:
        """Whether the form of a word alone shows that it was coined."""
        word = self.words[number].bare
        if "-" in word:
            return self._is_compound(self.words[number])
        if len(word) < LEAST_LETTERS or not word[0].isalpha() or "'" in word:
            return False
        if word.isupper():
            return self._is_sign(number)
        return _is_camel(word) and not self.vocabulary.is_common(word)

    def _is_sign(self, number: int) -> bool:
        """Whether a word in capitals is a name, not shouted and no common abbreviation."""
        word = self.words[number].bare
        if "_" in word or any(map(str.isdigit, word)):
            return True
        near = [*self.words[max(0, number - 1) : number], *self.words[number + 1 : number + 2]]
        is_shouted = any(len(each.text) > 1 and each.text.isupper() for each in near)
        is_drawn_out = any(letter * 3 in word for letter in word) or len(set(word)) < LEAST_LETTERS
        is_known = self.vocabulary.is_common
        return not (
            is_shouted
            or is_drawn_out
            or word.casefold() in self.lower
            or is_known(word)
            or is_known(word.capitalize())
            or self.vocabulary.is_everyday(word)
        )

    def _is_compound(self, word: Word) -> bool:
        """Whether a word with a hyphen is a name, or a new word that comes up twice."""
        parts = word.bare.split("-")
        if any(char.isdigit() for char in word.bare):
            return word.is_capitalised and word.bare.upper() == word.bare
        if any(len(part) == 1 or part.casefold() in CAPITALISED for part in parts):  # W-what
            return False
        if parts[1].casefold().startswith(parts[0].casefold()):  # Wh-what
            return False
        capitals = [part for part in parts if part[0].isupper()]
        if word.is_capitalised and (len(capitals) > 1 or not word.starts):
            return len(capitals) > 1 or not self.is_german
        return (
            not capitals
            and self.compounds[word.text] > 1
            and parts[-1] not in PRONOUN_ENDINGS
            and not all(map(self.vocabulary.is_everyday, parts))
        )

    def name(self, before: Word | None, run: Sequence[Word]) -> str:
        """The name that a run of words is, or nothing. `before` is the word in front of it."""
        words = list(run)
        if words[0].starts and not self.inside[words[0].folded] and not _begins_name(words):
            before = words.pop(0)
        while words and _is_filler(words[0]):
            before = words.pop(0)
        while words and words[-1].folded in CAPITALISED:
            words.pop()
        named = [word for word in words if word.text not in CONNECTORS]
        if not named or len(named) > _MAX_WORDS or all(word.text.isupper() for word in named):
            return ""
        is_name = len(named) > 1 or self._is_coined_name(before, named[0])
        if self.is_german:
            is_name = _is_german_name(words)
        return self.text[words[0].at : words[-1].at + len(words[-1].bare)] if is_name else ""

    def _is_coined_name(self, before: Word | None, word: Word) -> bool:
        """Whether a capitalised word inside of a sentence is a name that was made up."""
        if len(word.bare) < LEAST_LETTERS or word.folded in self.lower or _is_camel(word.bare):
            return False
        if not self.vocabulary.is_common(word.bare):
            return True
        # A common noun as a name: the Hollow.
        is_named = before is not None and before.folded in ARTICLES
        is_named = is_named or self.inside[word.folded] > 1
        return is_named and self.vocabulary.is_common(word.folded)


def _runs(words: Sequence[Word]) -> Iterator[tuple[Word | None, list[Word]]]:
    """Words in a row that may be one name, capitalised ones and what joins them.

    Each with the word in front of it.
    """
    run: list[Word] = []
    joints: list[Word] = []
    before_run = before = None
    for word in words:
        follows = bool(run) and word.gap in _JOINED and not word.starts
        if word.is_capitalised and "-" not in word.text:
            if run and not follows:
                yield before_run, run
                run = []
            if not run:
                before_run, joints = before, []
            run += [*joints, word]
            joints = []
        elif follows and word.text in CONNECTORS and len(joints) < _MAX_JOINTS:
            joints.append(word)
        else:
            if run:
                yield before_run, run
            run, joints = [], []
        before = word
    if run:
        yield before_run, run


def _begins_name(words: Sequence[Word]) -> bool:
    """Whether a name may begin with a sentence's first word: Order of the Ash, Captain Vex."""
    first = words[0].folded
    if len(words) == 1 or first in QUANTITIES or first in CAPITALISED:
        return False
    return first in TITLES or words[1].text in CONNECTORS


def _is_filler(word: Word) -> bool:
    return word.folded in CAPITALISED or word.folded in ARTICLES or word.text in CONNECTORS


def _is_camel(word: str) -> bool:
    return not word.startswith(_FAMILY) and _CAMEL.search(word) is not None


def _is_german_name(words: Sequence[Word]) -> bool:
    """A capitalised adjective makes a name of its noun: die Silberne Wacht."""
    first, *others = words
    return (
        len(others) == 1
        and not first.starts
        and first.text.endswith(GERMAN_ENDINGS)
        and first.folded not in MEASURES
    )
