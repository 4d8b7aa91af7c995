"""Finds terms that a story coins: names, CamelCase, ALL_CAPS, compounds, quotations.

Capitals reveal names only inside a sentence and only in scripts that have capitals. German
capitalises all nouns. If `hides_names` is True, a model should read the text, too. The cost is
linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from backend.campaigns.names.roster import MAX_TEXT
from backend.campaigns.names.words import (
    ARTICLES,
    CAPITALISED,
    CONNECTORS,
    GERMAN_ENDINGS,
    MEASURES,
    MIN_LETTERS,
    NAMING,
    PRONOUN_ENDINGS,
    QUANTITIES,
    TITLES,
    WORD,
    Vocabulary,
    Word,
    has_capitals,
    is_german,
    split_words,
    to_plain,
)

_CAMEL = re.compile(r"[^\W\d_A-Z][A-Z]")
_FAMILY = ("Mc", "Mac", "De", "Di", "La", "Le", "Van", "Fitz")
"""Prefixes of family names. A capital letter after one does not mark a coined word."""

_MAX_NAME_WORDS = 5
_MAX_JOINTS = 2
_JOINED = frozenset((" ", ". ", "' "))
"""Gaps inside a name, where no sentence ends: Dr. Vex, the Thieves' Court."""


def find_capitalised_terms(text: str, vocabulary: Vocabulary) -> Iterator[tuple[str, int]]:
    """Yield terms and their positions in a plain text. A term is repeated for each occurrence."""
    words = list(split_words(text))
    scan = _CapitalScan(text, words, vocabulary)
    for number, word in enumerate(words):
        if scan.is_coined_form(number):
            yield word.bare, word.at
    for before, run in _find_runs(words):
        if term := scan.find_name(before, run):
            yield term, run[0].at


@dataclass
class _CapitalScan:
    """A text and its spellings of words.

    `lower` has words without capitals, `inside` counts capitals inside sentences, and `compounds`
    counts words with a hyphen.
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
        """True if the form of a word alone shows that it was coined."""
        word = self.words[number].bare
        if "-" in word:
            return self._is_compound(self.words[number])
        if len(word) < MIN_LETTERS or not word[0].isalpha() or "'" in word:
            return False
        if word.isupper():
            return self._is_sign(number)
        return _is_camel(word) and not self.vocabulary.is_common(word)

    def _is_sign(self, number: int) -> bool:
        """True if a word in capitals is a name: not shouted, and no common abbreviation."""
        word = self.words[number].bare
        if "_" in word or any(map(str.isdigit, word)):
            return True
        near = [*self.words[max(0, number - 1) : number], *self.words[number + 1 : number + 2]]
        is_shouted = any(len(each.text) > 1 and each.text.isupper() for each in near)
        is_drawn_out = any(letter * 3 in word for letter in word) or len(set(word)) < MIN_LETTERS
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
        """True if a word with a hyphen is a name, or a new word that is used twice."""
        parts = word.bare.split("-")
        if any(char.isdigit() for char in word.bare):
            return word.is_capitalised and word.bare.upper() == word.bare
        if any(len(part) == 1 or part.casefold() in CAPITALISED for part in parts):  # B-but
            return False
        if parts[1].casefold().startswith(parts[0].casefold()):  # Bu-but
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

    def find_name(self, before: Word | None, run: Sequence[Word]) -> str:
        """Return the name in a run of words, or "". `before` is the word in front of the run."""
        words = list(run)
        if words[0].starts and not self.inside[words[0].folded] and not _begins_name(words):
            before = words.pop(0)
        while words and _is_filler(words[0]):
            before = words.pop(0)
        while words and words[-1].folded in CAPITALISED:
            words.pop()
        named = [word for word in words if word.text not in CONNECTORS]
        if not named or len(named) > _MAX_NAME_WORDS or all(word.text.isupper() for word in named):
            return ""
        is_name = len(named) > 1 or self._is_coined_name(before, named[0])
        if self.is_german:
            is_name = _is_german_name(words)
        return self.text[words[0].at : words[-1].at + len(words[-1].bare)] if is_name else ""

    def _is_coined_name(self, before: Word | None, word: Word) -> bool:
        """True if a capitalised word inside a sentence is an invented name."""
        if len(word.bare) < MIN_LETTERS or word.folded in self.lower or _is_camel(word.bare):
            return False
        if not self.vocabulary.is_common(word.bare):
            return True
        # Common nouns can be names: the Hollow.
        is_named = before is not None and before.folded in ARTICLES
        is_named = is_named or self.inside[word.folded] > 1
        return is_named and self.vocabulary.is_common(word.folded)


def _find_runs(words: Sequence[Word]) -> Iterator[tuple[Word | None, list[Word]]]:
    """Yield runs of capitalised and joining words that may be a name, after the word before."""
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
    """True if a name may include the first word of a sentence: Order of the Ash, Captain Vex."""
    first = words[0].folded
    if len(words) == 1 or first in QUANTITIES or first in CAPITALISED:
        return False
    return first in TITLES or words[1].text in CONNECTORS


def _is_filler(word: Word) -> bool:
    return word.folded in CAPITALISED or word.folded in ARTICLES or word.text in CONNECTORS


def _is_camel(word: str) -> bool:
    return not word.startswith(_FAMILY) and _CAMEL.search(word) is not None


def _is_german_name(words: Sequence[Word]) -> bool:
    """True for a capitalised adjective and its noun: die Silberne Wacht."""
    first, *others = words
    return (
        len(others) == 1
        and not first.starts
        and first.text.endswith(GERMAN_ENDINGS)
        and first.folded not in MEASURES
    )


_OPENING = re.compile(r"""[“„«»‹"「『《〈【]|(?<!\w)'(?=\w)""")  # noqa: RUF001  # as printed
_CLOSING = {
    "“": "”", "„": "“”", "«": "»", "»": "«", "‹": "›", '"': '"', "'": "'",  # noqa: RUF001
    "「": "」", "『": "』", "《": "》", "〈": "〉", "【": "】",
}  # fmt: skip
_TITLES = frozenset("《〈【")
_SPOKEN = frozenset('.!?…。！？、，,;:\n"“”*<>{}[]|')  # noqa: RUF001  # no term has these
_HIRAGANA = re.compile(r"[\u3041-\u309f\u30fc]+")

_EMPHASIS = re.compile(r"(?<=\w )(\*{1,2})(\w[^*\n]{1,38}\w)\1(?!\w)")

_MAX_QUOTED = 40
_MAX_QUOTED_WORDS = 4
_MAX_UNSPACED = 12
"""Maximum length of a term in a script without spaces."""

_NAMING_CHARACTERS = 40
"""Number of characters before a quotation in which a word like "called" marks a name."""


def find_quoted_terms(text: str, vocabulary: Vocabulary) -> Iterator[tuple[str, int]]:
    """Yield quoted terms and their positions in a plain text."""
    at = 0
    unclosed: set[str] = set()
    while (opening := _OPENING.search(text, at)) is not None:
        at = opening.end()
        ends: list[int] = []
        for mark in _CLOSING[opening[0]]:
            if mark not in unclosed and (end := text.find(mark, at)) >= 0:
                ends.append(end)
            else:
                unclosed.add(mark)  # not searched again, so that the cost stays linear
        end = min(ends, default=-1)
        if end < 0 or (opening[0] == "'" and end - at > _MAX_QUOTED):
            continue
        said = text[at:end].strip("*_ ")
        if _may_be_term(said) and _is_term(text, opening.start(), said, vocabulary):
            yield said, at
        at = end + 1


def find_emphasised_terms(text: str, vocabulary: Vocabulary) -> Iterator[tuple[str, int]]:
    """Yield names in italics or bold and their positions: the *Meridian*."""
    for match in _EMPHASIS.finditer(text):
        said = match[2]
        is_title = all(word[0].isupper() for word in said.split() if word not in CONNECTORS)
        if is_title and _may_be_term(said) and _is_term(text, match.start(), said, vocabulary):
            yield said, match.start(2)


def _may_be_term(said: str) -> bool:
    return 1 < len(said) <= _MAX_QUOTED and any(map(str.isalpha, said)) and _SPOKEN.isdisjoint(said)


def _is_term(text: str, at: int, said: str, vocabulary: Vocabulary) -> bool:
    before = text[max(0, at - _NAMING_CHARACTERS) : at].rstrip(" *_")
    if not has_capitals(said):
        return text[at] in _TITLES or (_is_inside(before) and _is_short(said))
    words = [word for word in said.split() if word.casefold() not in ARTICLES]
    if not 0 < len(words) <= _MAX_QUOTED_WORDS or any(
        word.casefold() in CAPITALISED for word in words
    ):
        return False
    is_title = all(word[0].isupper() for word in words if word not in CONNECTORS)
    if not _is_inside(before):
        return before.endswith((":", "(")) and is_title and len(words) > 1
    if not NAMING.isdisjoint(word.casefold() for word in WORD.findall(before)[-3:]):
        return True
    if len(words) > 1:
        return is_title
    follows_article = before.split()[-1].casefold() in ARTICLES
    return (is_title and follows_article) or not vocabulary.is_everyday(words[0])


def _is_inside(before: str) -> bool:
    """True if a quotation follows a word, not a mark that introduces speech."""
    return bool(before) and (before[-1].isalnum() or unicodedata.category(before[-1])[0] == "M")


def _is_short(said: str) -> bool:
    if " " in said:
        return len(said.split()) <= _MAX_QUOTED_WORDS
    return len(said) <= _MAX_UNSPACED and not _HIRAGANA.fullmatch(said)


MAX_COINED = 8
"""Maximum number of terms of one text."""

MAX_TERM = 60
MAX_SNIPPET = 300

_MAX_CANDIDATES = 100
"""Maximum number of candidates that are checked, the most frequent first."""

_ENDS = ".!?…。！？\n"  # noqa: RUF001  # sentences end so in Chinese
_SUFFIXES = ("ing", "ed", "es", "er", "ly", "s", "d")


class Coinage(NamedTuple):
    """A term in the spelling of the text, and its sentence."""

    term: str
    snippet: str


class Familiar:
    """Words that are not coinages: names of the story, known terms, words of its cards.

    `is_common` returns True if the exact spelling of a word is everyday language.
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
        self._whole = {make_term_key(each) for each in (*names, *terms)}
        self._names = set(_split_term("\n".join(names)))
        self._terms = set(_split_term("\n".join(terms)))
        self._text = to_plain("\n".join(texts)).casefold()
        self._words = {_stem(match[0]) for match in WORD.finditer(self._text)}

    def has(self, term: str) -> bool:
        """True if a term is familiar, or consists only of familiar words."""
        key, words = make_term_key(term), _split_term(term)
        if key in self._whole or all(word in CAPITALISED or word in TITLES for word in words):
            return True
        if len(words) == 1:
            return any(words[0] in known for known in (self._names, self._terms, self._words))
        known = self._names | self._terms
        if key in self._text or all(word in known or word in TITLES for word in words):
            return True
        if not any(word in self._names and not self.is_common(word) for word in words):
            return False
        # Another word only extends a name, unless a joining word makes a term: Oath of Marlena.
        return not ("'s " in key or "-" in key or any(f" {each} " in key for each in CONNECTORS))

    def is_everyday(self, word: str) -> bool:
        """True if a word or its base form is everyday language."""
        word = word.casefold()
        if word in CAPITALISED or word in TITLES or self.is_common(word):
            return True
        stems = [
            word.removesuffix(suffix)
            for suffix in _SUFFIXES
            if word.endswith(suffix) and len(word) >= len(suffix) + MIN_LETTERS
        ]
        return any(self.is_common(stem) or self.is_common(f"{stem}e") for stem in stems)


def find_coined(text: str, familiar: Familiar, *, most: int = MAX_COINED) -> list[Coinage]:
    """Return the `most` most frequent terms that a text coins, in order of appearance."""
    text = to_plain(text[:MAX_TEXT])
    found: dict[str, tuple[int, str]] = {}
    counts: Counter[str] = Counter()
    terms = [*find_quoted_terms(text, familiar)]
    if has_capitals(text):
        terms += [*find_emphasised_terms(text, familiar), *find_capitalised_terms(text, familiar)]
    for term, at in terms:
        if len(term) <= MAX_TERM:
            key = _stem(make_term_key(term))
            counts[key] += 1
            found.setdefault(key, (at, term))
    kept: list[tuple[int, str]] = []
    for key, _ in counts.most_common(_MAX_CANDIDATES):
        if len(kept) < most and not familiar.has(found[key][1]):
            kept.append(found[key])
    return [Coinage(term, get_sentence(text, at)) for at, term in sorted(kept)]


def hides_names(text: str) -> bool:
    """True if capitals do not reveal names: the script has none, or the text is German."""
    text = text[:MAX_TEXT]
    return not has_capitals(text) or is_german(text)


def get_sentence(text: str, at: int) -> str:
    """Return the sentence around a position, at most `MAX_SNIPPET` characters long."""
    first = max(0, at - MAX_SNIPPET // 2)
    begin = max(text.rfind(mark, first, at) for mark in _ENDS) + 1 or first
    last = begin + MAX_SNIPPET
    ends = [end for mark in _ENDS if (end := text.find(mark, at, last)) >= 0]
    return " ".join(text[begin : min(ends, default=last - 1) + 1].split())


def make_term_key(term: str) -> str:
    """Return the form of a term by which spellings are compared."""
    words = to_plain(term).casefold().split()
    return " ".join(words[1:] if len(words) > 1 and words[0] in ARTICLES else words)


def _stem(word: str) -> str:
    """Remove a possessive ending and a plural s, which many languages use."""
    word = word.removesuffix("'s")
    return word.removesuffix("s") if len(word) > MIN_LETTERS else word


def _split_term(term: str) -> list[str]:
    """Return the stems of a term's words without articles and joining words."""
    words = [_stem(word) for word in WORD.findall(to_plain(term).casefold())]
    return [word for word in words if word not in CONNECTORS and word not in ARTICLES]
