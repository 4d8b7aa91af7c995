"""Classification of entry keys and one search automaton for all plain keys of a book.

Keys and texts are compared in NFC, case-folded unless the search is case-sensitive. Folding may
change lengths ("ß" becomes "ss"), so word boundaries are checked in the folded text.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from ahocorasick_rs import AhoCorasick

from backend.core.text_forms import normalize
from backend.regex.javascript import parse_key
from backend.regex.patterns import Pattern, compile_pattern

MAX_ENDINGS = 12
"""Keys of the automaton that may end at one position of a text. The automaton lists all of them, so
keys like "a", "aa" and "aaa" would make the list as long as the text times the keys."""

MIN_HINT = 3
"""Characters in a regex's required literal that make a search for it worthwhile."""

MAX_AUTOMATON_KEYS = 5_000
"""Keys in one automaton. Building takes quadratic time if keys share prefixes, and blocks all other
threads: 25 ms for 5,000 keys, a second for 30,000."""

PIECE_CHARACTERS = 8_192
"""Characters per search, which bounds the size of the list of matches."""

# Scripts without spaces between words, or with endings joined to words, as in Korean. First and
# last code points. Every position in them can be a word boundary.
_UNSPACED: Final = (
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
_FIRST: Final = tuple(first for first, _ in _UNSPACED)


class Folded:
    """A text in the forms in which keys are searched.

    Attributes:
        raw: The original text, for regexes.
        exact: The text in NFC.
        folded: The NFC text, case-folded.
        is_changed: True if `exact` differs from `raw`.
    """

    __slots__ = ("exact", "folded", "is_changed", "raw")

    def __init__(self, text: str) -> None:
        self.raw = text
        self.exact = normalize("NFC", text)
        self.folded = self.exact.casefold()
        self.is_changed = self.exact != text


class Key:
    """A classified key.

    Attributes:
        raw: The key as the user wrote it.
        number: Its index in the automaton, or -1 if it is searched for individually.
        exact, folded: Its two forms. Both are empty if the key can match nothing.
        is_word: True if it is one word. Only then does whole-word matching apply.
        pattern: The compiled pattern of a regex.
        hint: A plain key with the literal that a regex requires. If the hint does not occur, the
            regex cannot match.
        is_hint: True if this key is the hint of a regex.
        has_macro: True if each scan must expand the key's macros first.
    """

    __slots__ = (
        "exact",
        "folded",
        "has_macro",
        "hint",
        "is_hint",
        "is_word",
        "number",
        "pattern",
        "raw",
    )

    def __init__(
        self, raw: str, pattern: Pattern | None = None, *, has_macro: bool = False
    ) -> None:
        self.raw, self.pattern, self.has_macro = raw, pattern, has_macro
        self.number = -1
        self.hint: Key | None = None
        self.is_hint = False
        text = raw.strip()
        self.exact = normalize("NFC", text)
        self.folded = self.exact.casefold()
        self.is_word = len(text.split(None, 1)) == 1

    def occurs_in(self, text: Folded, *, sensitive: bool, whole: bool) -> bool:
        """True if the text contains this plain key."""
        if not self.exact:
            return False
        whole = whole and self.is_word
        if sensitive:
            return _occurs(self.exact, text.exact, whole=whole)
        return _occurs(self.folded, text.folded, whole=whole)

    def match_nothing(self) -> None:
        """Disable the key."""
        self.exact = self.folded = ""


def classify(raw: str) -> Key | None:
    """Return the key for `raw`, whose macros are expanded, or None if it is blank."""
    if not raw.strip():
        return None
    parsed = parse_key(raw.strip())
    return Key(raw, compile_pattern(*parsed) if parsed else None)


def find_hint(pattern: Pattern) -> Key | None:
    """Return a plain key that every match of `pattern` contains, or None if none is useful."""
    literal = pattern.literal.strip()
    is_sound = literal.isprintable() and unicodedata.is_normalized("NFC", literal)
    if len(literal) < MIN_HINT or not is_sound:
        return None
    hint = Key(literal)
    hint.is_hint = True
    return hint


class Hits:
    """The keys of a book's automaton that occur in texts of one kind, and their first positions.

    Four mappings from a key to the index of the first text that contains it. `text` and `word`
    (whole words) are case-insensitive, by number. `exact` and `exact_word` are case-sensitive, by
    spelling. `fresh` lists keys with a new position.
    """

    __slots__ = ("exact", "exact_word", "fresh", "text", "word")

    def __init__(self) -> None:
        self.text: dict[int, int] = {}
        self.word: dict[int, int] = {}
        self.exact: dict[str, int] = {}
        self.exact_word: dict[str, int] = {}
        self.fresh: list[int] = []

    def place(self, key: Key, *, sensitive: bool, whole: bool) -> int | None:
        """Return the index of the first text that contains `key`."""
        if sensitive:
            found = self.exact_word if whole and key.is_word else self.exact
            return found.get(key.exact)
        return (self.word if whole and key.is_word else self.text).get(key.number)


class KeyIndex:
    """All plain keys of a book. One pass over a text finds several thousand keys.

    A key is left out (`number` stays -1) if too many other keys are endings of it.
    """

    def __init__(self, keys: Iterable[Key]) -> None:
        by_text: dict[str, list[Key]] = {}
        for key in keys:
            by_text.setdefault(key.folded, []).append(key)
        too_deep = _too_many_endings(by_text)
        patterns = [text for text in by_text if text not in too_deep]
        for number, text in enumerate(patterns):
            for key in by_text[text]:
                key.number = number
        self.size = len(patterns)
        self._is_word = [by_text[text][0].is_word for text in patterns]
        self._needs_text = [
            any(key.is_hint or not key.is_word for key in by_text[text]) for text in patterns
        ]
        self._spellings = [tuple({key.exact for key in by_text[text]}) for text in patterns]
        self._longest = max(map(len, patterns), default=0)
        self._automata = [
            (start, AhoCorasick(patterns[start : start + MAX_AUTOMATON_KEYS], store_patterns=False))
            for start in range(0, len(patterns), MAX_AUTOMATON_KEYS)
        ]

    def scan(self, text: Folded, place: int, hits: Hits, *, spelling: bool, within: bool) -> None:
        """Add the keys in `text`, whose index is `place`, to `hits`.

        Pass texts in ascending order of `place`, because the first position is kept. `spelling`
        adds exact spellings, for case-sensitive entries. `within` adds words found inside other
        words, for entries without whole-word matching.
        """
        here: set[int] = set()
        is_word, needs_text = self._is_word, self._needs_text
        for number, first, end in self._matches(text.folded):
            if (within or needs_text[number]) and number not in hits.text:
                hits.text[number] = place
                hits.fresh.append(number)
            if is_word[number] and number not in hits.word and is_whole(text.folded, first, end):
                hits.word[number] = place
                hits.fresh.append(number)
            if spelling:
                here.add(number)
        for number in here:
            for written in self._spellings[number]:
                if written not in hits.exact and written in text.exact:
                    hits.exact[written] = place
                    hits.fresh.append(number)
                if written not in hits.exact_word and _occurs(written, text.exact, whole=True):
                    hits.exact_word[written] = place
                    hits.fresh.append(number)

    def scan_hints(self, text: str, place: int, hits: Hits) -> None:
        """Add hints only. For texts that are not NFC, because regexes search the raw spelling."""
        for number, _, _ in self._matches(text.casefold()):
            if self._needs_text[number] and number not in hits.text:
                hits.text[number] = place
                hits.fresh.append(number)

    def _matches(self, text: str) -> Iterable[tuple[int, int, int]]:
        """Return matching keys as number, start and end. Matches near piece borders may repeat."""
        if len(self._automata) == 1 and len(text) <= PIECE_CHARACTERS:
            return self._automata[0][1].find_matches_as_indexes(text, overlapping=True)
        return self._matches_by_piece(text)

    def _matches_by_piece(self, text: str) -> Iterator[tuple[int, int, int]]:
        for start in range(0, len(text), PIECE_CHARACTERS):
            begin = max(0, start - self._longest + 1)
            piece = text[begin : start + PIECE_CHARACTERS]
            for least, automaton in self._automata:
                found = automaton.find_matches_as_indexes(piece, overlapping=True)
                for number, first, end in found:
                    yield least + number, begin + first, begin + end


def _too_many_endings(texts: Iterable[str]) -> set[str]:
    """Return the texts of which more than MAX_ENDINGS others are endings.

    Reversed and sorted, an ending is a prefix and comes directly before the text that contains it.
    """
    deep: set[str] = set()
    open_texts: list[str] = []
    for backwards in sorted(text[::-1] for text in texts):
        while open_texts and not backwards.startswith(open_texts[-1]):
            open_texts.pop()
        if len(open_texts) >= MAX_ENDINGS:
            deep.add(backwards[::-1])
        else:
            open_texts.append(backwards)
    return deep


def is_whole(text: str, start: int, end: int) -> bool:
    """True if `text[start:end]`, which is not empty, has word boundaries at both ends."""
    return (start == 0 or _may_part(text[start - 1], text[start])) and (
        end == len(text) or _may_part(text[end], text[end - 1])
    )


def _occurs(key: str, text: str, *, whole: bool) -> bool:
    """True if `text` contains `key` in the same form, between word boundaries if `whole` is set."""
    start = text.find(key)
    while start >= 0:
        if not whole or is_whole(text, start, start + len(key)):
            return True
        start = text.find(key, start + 1)
    return False


@lru_cache(maxsize=4096)
def _may_part(neighbour: str, edge: str) -> bool:
    """True if there is a word boundary between the edge of a match and its neighbour."""
    if not _is_of_a_word(neighbour):
        return True
    return _is_unspaced(neighbour) or _is_unspaced(edge)


def _is_of_a_word(char: str) -> bool:
    if char.isalnum() or char == "_":
        return True
    # Variation selectors are marks too, but they style emoji and are not part of words.
    return unicodedata.category(char).startswith("M") and not "\ufe00" <= char <= "\ufe0f"


def _is_unspaced(char: str) -> bool:
    place = bisect_right(_FIRST, ord(char)) - 1
    return place >= 0 and ord(char) <= _UNSPACED[place][1]
