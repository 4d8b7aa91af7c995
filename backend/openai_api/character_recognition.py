"""Recognise the character that a client plays from its system messages.

Clients put the card's description into the system messages, with macros replaced, and name the
character in their main prompt ("Write Bor's next reply in a fictional chat between Bor and Ada").
The description decides if the text contains it. Otherwise the main prompt decides, because the text
may also name the user's persona and other characters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from backend.core.cpu_pool import check_stopped
from backend.core.text_forms import normalize

MAX_SYSTEM_CHARACTERS = 100_000
MAX_CANDIDATES = 20
"""Maximum number of characters to compare with the text by their descriptions."""

_MAX_DESCRIPTION_CHARACTERS = 20_000
_WINDOW_CHARACTERS = 24
_MAX_WINDOWS = 64
_MIN_SHARE = 0.4
"""Share of the description that the text must contain. Clients cut and rewrite a little."""
_MAX_PLACES = 50
"""Places of a word at which the rest of a name is looked for."""
_MIN_LETTERS = 2

_WORD = re.compile("\\w+(?:['\u2019]\\w+)*")
_SPACE = re.compile(r"\s+")
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3041-\u30fa\u30fc\u3400-\u9fff]")
"""Scripts without spaces between words."""

_BEFORE_NAME = re.compile(
    r"(?:\bwrite(?: only)?(?: as)?|\byou are|\byou're|\broleplay(?:ing)? as|\bplay(?:ing)?(?: as)?"
    r"|\bact(?:ing)? as|\brespond as|\breply as|\bfor|\bcharacter(?: name)?\s*:|\bname\s*:)"
    r"[\s\"'“*\[]{0,3}$",
    re.IGNORECASE,
)
"""The words of a main prompt before the name of the character that the model plays."""
_BEFORE_CHARACTERS = 40


class SystemText:
    """The system messages of a request, prepared for many searches."""

    def __init__(self, texts: Iterable[str]) -> None:
        joined = "\n".join(texts)[:MAX_SYSTEM_CHARACTERS]
        self._text = _SPACE.sub(" ", normalize("NFC", joined))
        self._words: list[tuple[str, int]] = []
        self._places: dict[str, list[int]] = defaultdict(list)
        for found in _WORD.finditer(self._text):
            word = _cut_possessive(found[0])
            places = self._places[word]
            if len(places) < _MAX_PLACES:
                places.append(len(self._words))
            self._words.append((word, found.start()))

    def find_name(self, name: str) -> list[int]:
        """Return the first places of a name, as it is written. Constant time for spaced scripts."""
        name = _SPACE.sub(" ", normalize("NFC", name)).strip()
        if len(name) < _MIN_LETTERS:
            return []
        if _UNSPACED.search(name):
            place = self._text.find(name)
            return [] if place < 0 else [place]
        words = [_cut_possessive(each) for each in _WORD.findall(name)]
        if not words:
            return []
        return [
            self._words[place][1]
            for place in self._places.get(words[0], ())
            if [word for word, _ in self._words[place : place + len(words)]] == words
        ]

    def is_played(self, places: Sequence[int]) -> bool:
        """True if the model shall play the character with a name at one of these places."""
        return any(
            _BEFORE_NAME.search(self._text[max(0, place - _BEFORE_CHARACTERS) : place])
            for place in places
        )

    def measure_share(self, description: str) -> float:
        """Return the share of a description that the text contains, from 0 to 1.

        It compares windows of characters at even distances. Those with macros are left out.
        """
        cut = _SPACE.sub(" ", normalize("NFC", description[:_MAX_DESCRIPTION_CHARACTERS])).strip()
        last = len(cut) - _WINDOW_CHARACTERS
        if last < 0:
            return 0.0
        step = max(_WINDOW_CHARACTERS, last // _MAX_WINDOWS)
        windows = [
            window
            for start in range(0, last + 1, step)
            if "{" not in (window := cut[start : start + _WINDOW_CHARACTERS]) and "}" not in window
        ]
        if not windows:
            return 0.0
        return sum(window in self._text for window in windows) / len(windows)


def find_candidates(text: SystemText, names: Mapping[int, Sequence[str]]) -> list[int]:
    """Return the keys of the characters that the text names, at most `MAX_CANDIDATES`.

    `names` are the names of each character. Those that the model shall play come first, then
    those with the longest names, because a short name may be a common word.
    """
    found: list[tuple[bool, int, int]] = []
    for key, forms in names.items():
        check_stopped()
        lengths = [(len(form), text.find_name(form)) for form in forms]
        if any(places for _, places in lengths):
            plays = any(text.is_played(places) for _, places in lengths)
            found.append((plays, max(length for length, places in lengths if places), key))
    return [key for *_, key in sorted(found, reverse=True)[:MAX_CANDIDATES]]


def choose_character(
    text: SystemText, names: Mapping[int, Sequence[str]], descriptions: Mapping[int, str]
) -> int | None:
    """Return the key of the character that the text is about. None if that is not clear.

    Of equal ones the last key wins. `descriptions` are those of the candidates.
    """
    shares = {key: text.measure_share(each) for key, each in descriptions.items()}
    best = max(shares, key=lambda key: (shares[key], key), default=None)
    if best is not None and shares[best] >= _MIN_SHARE:
        return best
    played = [
        key
        for key in descriptions
        if any(text.is_played(text.find_name(form)) for form in names[key])
    ]
    remaining = played or list(descriptions)
    distinct = {names[key][0] for key in remaining}
    return max(remaining) if len(distinct) == 1 else None


def _cut_possessive(word: str) -> str:
    return word[:-2] if word.endswith(("'s", "\u2019s")) else word
