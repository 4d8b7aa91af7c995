"""Keys of entries: what each one is, and all plain keys of a book in one automaton.

Keys and texts are brought into one form (NFC, and case-folded where case does not matter), and are
compared in it. Folding may change lengths ("ß" becomes "ss"), so neighbours are looked at in the
folded text, where the match was found.
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
"""How many keys of the automaton may end at one place of a text. It lists them all, so that keys
"a", "aa", "aaa" and on would make the list as long as the text times the keys."""

MIN_HINT = 3
"""Characters that a regex must need, for looking for them first to be worth it."""

KEYS_AT_ONCE = 5_000
"""Keys in one automaton. To build one takes quadratic time where keys begin with one another, and
keeps all other threads waiting: 25 ms for so many, a second for 30,000."""

PIECE = 8_192
"""Characters that go to the automaton at once, which bounds the list of what it found."""

# Scripts that are written without spaces between words, or, as Korean, with endings joined to them:
# first and last code point, flat. In them every place is a place where a word may end.
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
    """A text in the forms in which keys are looked for in it.

    Attributes:
        raw: As it came, for regexes.
        exact: In NFC.
        folded: The same, case-folded.
        is_changed: Whether `exact` differs from `raw`.
    """

    __slots__ = ("exact", "folded", "is_changed", "raw")

    def __init__(self, text: str) -> None:
        self.raw = text
        self.exact = normalize("NFC", text)
        self.folded = self.exact.casefold()
        self.is_changed = self.exact != text


class Key:
    """A key, classified.

    Attributes:
        raw: As the user wrote it.
        number: Its place among the automaton's keys; -1 where it is looked for by itself.
        exact, folded: Its two forms. Empty for a key that occurs nowhere.
        is_word: Whether it is one word, to which whole-word matching applies.
        pattern: Set for a regex.
        hint: Set for a regex that needs certain characters: a plain key of them. Where that does
            not occur, the regex can't.
        is_hint: Whether it is such a key.
        has_macro: Whether it is only known once its macros are expanded, in each scan.
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

    def is_in(self, text: Folded, *, sensitive: bool, whole: bool) -> bool:
        """Look for a plain key by itself."""
        if not self.exact:
            return False
        whole = whole and self.is_word
        if sensitive:
            return _occurs(self.exact, text.exact, whole=whole)
        return _occurs(self.folded, text.folded, whole=whole)

    def match_nothing(self) -> None:
        """Make it a key that occurs nowhere."""
        self.exact = self.folded = ""


def classify(raw: str) -> Key | None:
    """The key that `raw` is, its macros expanded; null for one of blanks, which matches nothing."""
    if not raw.strip():
        return None
    parsed = parse_key(raw.strip())
    return Key(raw, compile_pattern(*parsed) if parsed else None)


def hint_of(pattern: Pattern) -> Key | None:
    """A plain key that occurs wherever `pattern` is found, if there is one that says something."""
    literal = pattern.literal.strip()
    is_sound = literal.isprintable() and unicodedata.is_normalized("NFC", literal)
    if len(literal) < MIN_HINT or not is_sound:
        return None
    hint = Key(literal)
    hint.is_hint = True
    return hint


class Hits:
    """Which of a book's automaton keys occur in texts of one kind, and where first.

    Four mappings from a key to the first place: as text and as a whole word, by number and without
    regard to case; and the same in exact spelling, by the spelling. `fresh` are keys of which one
    of these is new.
    """

    __slots__ = ("exact", "exact_word", "fresh", "text", "word")

    def __init__(self) -> None:
        self.text: dict[int, int] = {}
        self.word: dict[int, int] = {}
        self.exact: dict[str, int] = {}
        self.exact_word: dict[str, int] = {}
        self.fresh: list[int] = []

    def place(self, key: Key, *, sensitive: bool, whole: bool) -> int | None:
        """The first place where `key` was found in the asked way."""
        if sensitive:
            found = self.exact_word if whole and key.is_word else self.exact
            return found.get(key.exact)
        return (self.word if whole and key.is_word else self.text).get(key.number)


class KeyIndex:
    """All plain keys of a book, found in one pass over a text for every few thousand of them.

    Keys that many others of the book are endings of are left out (`number` stays -1).
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
            (start, AhoCorasick(patterns[start : start + KEYS_AT_ONCE], store_patterns=False))
            for start in range(0, len(patterns), KEYS_AT_ONCE)
        ]

    def scan(self, text: Folded, place: int, hits: Hits, *, spelling: bool, within: bool) -> None:
        """Add to `hits` what occurs in `text`, which stands at `place`.

        Places must come in ascending order: the first that a key is found at is kept. `spelling`
        asks for exact spellings too, which entries that mind case need; `within` for single words
        that are found within others, which entries need that do not ask for whole words.
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
        """Add hints alone: for the spelling in which regexes see a text, where it is not NFC."""
        for number, _, _ in self._matches(text.casefold()):
            if self._needs_text[number] and number not in hits.text:
                hits.text[number] = place
                hits.fresh.append(number)

    def _matches(self, text: str) -> Iterable[tuple[int, int, int]]:
        """Keys that occur, as number, start and end. Near the seams of pieces some come twice."""
        if len(self._automata) == 1 and len(text) <= PIECE:
            return self._automata[0][1].find_matches_as_indexes(text, overlapping=True)
        return self._matches_by_piece(text)

    def _matches_by_piece(self, text: str) -> Iterator[tuple[int, int, int]]:
        for start in range(0, len(text), PIECE):
            begin = max(0, start - self._longest + 1)
            piece = text[begin : start + PIECE]
            for least, automaton in self._automata:
                found = automaton.find_matches_as_indexes(piece, overlapping=True)
                for number, first, end in found:
                    yield least + number, begin + first, begin + end


def _too_many_endings(texts: Iterable[str]) -> set[str]:
    """Those of `texts` that more than MAX_ENDINGS others are endings of.

    Read backwards, an ending is a beginning, and beginnings stand right before in sorted order.
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
    """Whether `text[start:end]`, not empty, stands there as a word of its own."""
    return (start == 0 or _may_part(text[start - 1], text[start])) and (
        end == len(text) or _may_part(text[end], text[end - 1])
    )


def _occurs(key: str, text: str, *, whole: bool) -> bool:
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
