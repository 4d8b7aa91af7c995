"""Terms that a story coins, found by rules: names, CamelCase, ALL_CAPS, compounds, quotations.

Capitals show names only inside of a sentence, only in scripts that have them, and hardly in German,
which capitalises all nouns: `hides_names` says where a model is to name what rules can't see. All
of it is linear in the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from backend.campaigns.capitals import capitalised_terms
from backend.campaigns.mentions import MAX_TEXT
from backend.campaigns.ordinary_words import ARTICLES, CAPITALISED, CONNECTORS, TITLES
from backend.campaigns.quotations import emphasised_terms, quoted_terms
from backend.campaigns.story_words import LEAST_LETTERS, WORD, has_capitals, is_german, plain

MAX_COINED = 8
"""Terms that one text may give."""

MAX_TERM = 60
MAX_SNIPPET = 300

_CONSIDERED = 100
"""Candidates that are compared with what is familiar, the most frequent first."""

_ENDS = ".!?…。！？\n"  # noqa: RUF001  # sentences end so in Chinese
_SUFFIXES = ("ing", "ed", "es", "er", "ly", "s", "d")


class Coinage(NamedTuple):
    """A term as the text spells it, and the sentence that it is in."""

    term: str
    snippet: str


class Familiar:
    """What is no coinage: names of the story, terms that are known, words of its cards.

    Args:
        names: Of entities, personas and speakers.
        terms: Known ones, whatever their status.
        texts: Texts that the story was made from.
        is_common: Whether a word, spelled as it is, belongs to everyday language.
    """

    def __init__(
        self,
        *,
        names: Iterable[str] = (),
        terms: Iterable[str] = (),
        texts: Iterable[str] = (),
        is_common: Callable[[str], bool],
    ) -> None:
        self.is_common = is_common
        names, terms = list(names), list(terms)
        self._whole = {key_of(each) for each in (*names, *terms)}
        self._names = set(_words_of("\n".join(names)))
        self._terms = set(_words_of("\n".join(terms)))
        self._text = plain("\n".join(texts)).casefold()
        self._words = {_stem(match[0]) for match in WORD.finditer(self._text)}

    def has(self, term: str) -> bool:
        """Whether a term is one of these, or made of nothing else."""
        key, words = key_of(term), _words_of(term)
        if key in self._whole or all(word in CAPITALISED or word in TITLES for word in words):
            return True
        if len(words) == 1:
            return any(words[0] in known for known in (self._names, self._terms, self._words))
        known = self._names | self._terms
        if key in self._text or all(word in known or word in TITLES for word in words):
            return True
        if not any(word in self._names and not self.is_common(word) for word in words):
            return False
        # Beside a name a word makes a fuller name, unless something joins them: Oath of Marlena.
        return not ("'s " in key or "-" in key or any(f" {each} " in key for each in CONNECTORS))

    def is_everyday(self, word: str) -> bool:
        """Whether a word, or what it is a form of, belongs to everyday language."""
        word = word.casefold()
        if word in CAPITALISED or word in TITLES or self.is_common(word):
            return True
        stems = [
            word.removesuffix(suffix)
            for suffix in _SUFFIXES
            if word.endswith(suffix) and len(word) >= len(suffix) + LEAST_LETTERS
        ]
        return any(self.is_common(stem) or self.is_common(f"{stem}e") for stem in stems)


def find_coined(text: str, familiar: Familiar, *, most: int = MAX_COINED) -> list[Coinage]:
    """The terms that `text` coins, in the order in which they come up.

    Where there are more than `most`, the ones that it says most often.
    """
    text = plain(text[:MAX_TEXT])
    found: dict[str, tuple[int, str]] = {}
    counts: Counter[str] = Counter()
    terms = [*quoted_terms(text, familiar)]
    if has_capitals(text):
        terms += [*emphasised_terms(text, familiar), *capitalised_terms(text, familiar)]
    for term, at in terms:
        if len(term) <= MAX_TERM:
            key = _stem(key_of(term))
            counts[key] += 1
            found.setdefault(key, (at, term))
    kept: list[tuple[int, str]] = []
    for key, _ in counts.most_common(_CONSIDERED):
        if len(kept) < most and not familiar.has(found[key][1]):
            kept.append(found[key])
    return [Coinage(term, snippet_of(text, at)) for at, term in sorted(kept)]


def hides_names(text: str) -> bool:
    """Whether capitals don't show the names of a text: its script has none, or it is German."""
    text = text[:MAX_TEXT]
    return not has_capitals(text) or is_german(text)


def snippet_of(text: str, at: int) -> str:
    """The sentence around a place of a text, of at most `MAX_SNIPPET` characters."""
    first = max(0, at - MAX_SNIPPET // 2)
    begin = max(text.rfind(mark, first, at) for mark in _ENDS) + 1 or first
    last = begin + MAX_SNIPPET
    ends = [end for mark in _ENDS if (end := text.find(mark, at, last)) >= 0]
    return " ".join(text[begin : min(ends, default=last - 1) + 1].split())


def key_of(term: str) -> str:
    """A term in the form in which two spellings of it are compared."""
    words = plain(term).casefold().split()
    return " ".join(words[1:] if len(words) > 1 and words[0] in ARTICLES else words)


def _stem(word: str) -> str:
    """A word without a possessive, and without the plural of many languages."""
    word = word.removesuffix("'s")
    return word.removesuffix("s") if len(word) > LEAST_LETTERS else word


def _words_of(term: str) -> list[str]:
    """The words of a term that say something, each in the form in which it is compared."""
    words = [_stem(word) for word in WORD.findall(plain(term).casefold())]
    return [word for word in words if word not in CONNECTORS and word not in ARTICLES]
