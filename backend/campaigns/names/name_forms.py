"""Forms of the words of a name, by which two spellings are compared.

`name_words.txt` lists words that are no names (articles, titles, forms of address, "young",
"another") in English, German, French, Russian and Japanese.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from anyascii import anyascii

from backend.campaigns.names.words import GERMAN_ENDINGS, WORD, to_plain
from backend.core.text_forms import normalize
from backend.memory.search.terms import ELISIONS

MAX_NAME = 200
"""Maximum number of characters of a name that are read."""

MAX_WORDS = 20
"""Maximum number of words of a name, because each can match every name of a campaign."""

_MAX_WORD_LENGTH = 30
_VOWELS = frozenset("aeiou")
_GENDERS = {"n": "", "m": "m", "f": "f"}
_CYRILLIC = re.compile(r"[\u0400-\u04ff]+")
_UNSPACED = re.compile(r"[\u3041-\u30fa\u30fc\u3400-\u9fff\uac00-\ud7a3]+")
_HAN = re.compile(r"[\u3400-\u9fff]+")

_SOUNDS = (
    ("dzh", "j"), ("zh", "j"), ("kh", "h"), ("tch", "tsh"), ("sch", "sh"), ("ch", "k"),
    ("ph", "f"), ("ck", "k"), ("x", "ks"), ("q", "k"), ("c", "k"), ("z", "s"), ("w", "v"),
    ("y", "i"), ("j", "i"),
)  # fmt: skip
"""Spellings of the same sound in English, German, French and transliterated Cyrillic."""


class Title(NamedTuple):
    """A role or a form of address. `gender` is `m`, `f` or empty.

    An inflected title is not in the nominative case, and neither is its name.
    """

    role: str
    gender: str
    is_inflected: bool = False


class NameWord(NamedTuple):
    """A folded word of a name. `owns` marks a possessive, `is_small` a word without capitals."""

    text: str
    owns: bool
    is_small: bool


def read_words(name: str) -> list[NameWord]:
    """Return the first `MAX_WORDS` words of a name or a mention."""
    words: list[NameWord] = []
    for match in islice(WORD.finditer(to_plain(normalize("NFKC", name[:MAX_NAME]))), MAX_WORDS):
        word = match[0].replace("_", "-")
        head, mark, tail = word.partition("'")
        if mark and head.casefold() in ELISIONS:
            words.append(NameWord(head.casefold() + "'", owns=False, is_small=True))
            word = tail
        bare = word.removesuffix("'s")
        owns = bare != word or match.string[match.end() : match.end() + 2].rstrip() == "'"
        words.append(NameWord(fold_word(bare), owns, bare.islower()))
    return words


def fold_word(word: str) -> str:
    """Return a word in lower case. Cyrillic and unspaced scripts stay, others become Latin."""
    word = word.casefold()
    if word.isascii():
        return word
    if _CYRILLIC.search(word) or _UNSPACED.search(word):
        return word.replace("\N{CYRILLIC SMALL LETTER IO}", "\N{CYRILLIC SMALL LETTER IE}")
    return transliterate(word)


def transliterate(word: str) -> str:
    """Return a folded word in Latin letters without accents."""
    return word if word.isascii() else "".join(map(_transliterate, word))


@cache
def _transliterate(char: str) -> str:
    """Transliterate one character; return "" for marks, such as the Russian soft sign."""
    return char if char.isascii() else "".join(filter(str.isalnum, anyascii(char))).casefold()


def is_unspaced(word: str) -> bool:
    """True if a script without spaces is used, so that the word can be a whole phrase."""
    return _UNSPACED.fullmatch(word) is not None


def yield_case_forms(word: str) -> Iterator[str]:
    """Yield forms of a name in other grammatical cases: Russian cases, and the genitive's s."""
    if not _CYRILLIC.fullmatch(word):
        if not is_unspaced(word):
            yield f"{word}s"
        return
    ending = next((each for each in _CASES if word.endswith(each)), "")
    if ending or word[-1] not in _OTHER_VOWELS:
        stem = word.removesuffix(ending)
        yield from (f"{stem}{each}" for each in _CASES.get(ending, _AFTER_CONSONANTS))
    if not ending and word[-1] not in _OTHER_VOWELS and not word.endswith(_WOMEN_TOO):
        yield f"{word}\N{CYRILLIC SMALL LETTER A}"


def yield_oblique_stems(word: str) -> Iterator[str]:
    """Yield stems of a Russian form, to compare it with a name in another script."""
    if _CYRILLIC.fullmatch(word):
        yield from (word.removesuffix(end) for end in _AFTER_CONSONANTS if word.endswith(end))


def yield_adjective_forms(word: str) -> Iterator[str]:
    """Yield the other forms of a German adjective: Goldener for Goldenen."""
    for ending in GERMAN_ENDINGS:
        if word.isascii() and word.endswith(ending):
            yield from (word.removesuffix(ending) + each for each in GERMAN_ENDINGS)


def yield_genitives(word: str) -> Iterator[str]:
    """Yield the genitive of a Russian man's name that is a woman's name, too: Волкова, Волков."""
    if _CYRILLIC.fullmatch(word) and word.endswith(_WOMEN_TOO):
        yield f"{word}\N{CYRILLIC SMALL LETTER A}"


def yield_name_parts(word: str) -> Iterator[str]:
    """Yield the beginnings and ends of a name in Han characters: family and given names.

    For the name of a thing, also yield the part after its last の: 短剣 for 月の短剣.
    """
    if is_unspaced(word) and "の" in word[:-2]:
        yield word.rpartition("の")[2]
    if _HAN.fullmatch(word) and 3 <= len(word) <= 8:  # noqa: PLR2004  # two names, at least three
        for cut in range(1, len(word)):
            yield from (part for part in (word[:cut], word[cut:]) if len(part) > 1)


def get_sound(word: str) -> str:
    """Return a rough pronunciation in Latin letters; "" for Han, which has several readings."""
    if _HAN.search(word):
        return ""
    spoken = transliterate(word)
    for spelling, letters in _SOUNDS:
        spoken = spoken.replace(spelling, letters)
    spoken = spoken[:1] + spoken[1:].replace("h", "")
    return "".join(char for at, char in enumerate(spoken) if char != spoken[at - 1 : at])


def get_consonants(word: str) -> str:
    """Return the consonants of a name, to compare names across scripts; "" if it has only one."""
    spoken = get_sound(word).replace("l", "r").replace("h", "")
    consonants = "".join(char for char in spoken if char not in _VOWELS)
    return consonants if len(consonants) > 1 else ""


def yield_shortened(word: str) -> Iterator[str]:
    """Yield a word, and the word without each of its letters. A very long word is no name.

    Two words that share one of these differ by a missing, added, replaced or moved letter. This is
    the index of SymSpell (Garbe, 2012).
    """
    if len(word) <= _MAX_WORD_LENGTH:
        yield word
        yield from (word[:at] + word[at + 1 :] for at in range(len(word)))


def is_misspelling(one: str, other: str) -> bool:
    """True if one of two names that share a shortened form can be a misspelling of the other.

    Short names that differ in a letter are two names (Mirko, Marko), and so are names with
    different endings (Marie, Maria).
    """
    length = max(len(one), len(other))
    if one[0] != other[0] or one[-1] != other[-1] or not (one + other).isalpha():
        return False
    if len(one) == len(other):
        differing = [at for at in range(length) if one[at] != other[at]]
        if len(differing) > 1:
            is_swap = sorted(one) == sorted(other) and differing[1] - differing[0] == 1
            return is_swap and len(differing) == 2 and length > 5  # noqa: PLR2004  # Clara, Carla
        return length > 6  # noqa: PLR2004  # Marin and Mavin are two
    more, less = (one, other) if len(one) > len(other) else (other, one)
    at = next((at for at in range(len(less)) if more[at] != less[at]), len(less))
    if more[at] == more[at - 1]:
        return length > 4  # noqa: PLR2004  # a letter that is doubled
    is_vowel = transliterate(more[at]) in _VOWELS
    return length > (6 if is_vowel else 7)  # Marina and Martina are two


def _read_blocks() -> Mapping[str, str]:
    content = Path(__file__).with_name("name_words.txt").read_text(encoding="utf-8")
    found = (block.partition(":\n") for block in content.strip().split("\n\n"))
    return {name: text for name, _, text in found}


def _read_titles(blocks: Mapping[str, str]) -> dict[str, Title]:
    titles: dict[str, Title] = {}
    for name, text in blocks.items():
        first, *words = text.split()
        if first not in _GENDERS:
            continue
        gender = _GENDERS[first]
        for word in map(fold_word, words):
            if word in _GENDERS:
                gender = _GENDERS[word]
                continue
            title = titles[word] = Title(name, gender)
            forms = [f"{word}{end}" for end in ("s", "es", "n", "en")] if gender == "m" else []
            if _CYRILLIC.fullmatch(word):
                forms = [*yield_case_forms(word), *yield_genitives(word)]
            for form in forms:
                titles.setdefault(form, title._replace(is_inflected=True))
    return titles


def _read_short_names(text: str) -> dict[str, set[str]]:
    by_full: defaultdict[str, set[str]] = defaultdict(set)
    names: defaultdict[str, set[str]] = defaultdict(set)
    for pair in text.split("·"):
        if pair.strip():
            short, full = map(fold_word, pair.split())
            by_full[full].add(short)
    for full, shorts in by_full.items():
        for short in shorts:
            names[short] |= {full} | shorts - {short}
        names[full] |= shorts
    return names


_BLOCKS = _read_blocks()


def _fold_block(name: str) -> frozenset[str]:
    return frozenset(map(fold_word, _BLOCKS[name].split()))


_CASES = {
    ending: forms
    for ending, *forms in sorted(
        (line.split() for line in _BLOCKS["cases"].splitlines()), key=lambda line: -len(line[0])
    )
}
"""Endings of Russian names and the endings of their other cases, the longest first."""

_AFTER_CONSONANTS = _BLOCKS["consonant"].split()
_OTHER_VOWELS = _fold_block("vowels")
_WOMEN_TOO = tuple(_BLOCKS["women"].split())
"""Endings of men's names with a genitive that looks like a woman's name: Volkova."""

TITLES = _read_titles(_BLOCKS)
"""Titles, offices and forms of address, by word."""

ARTICLES, INDEFINITE, LINKING = map(_fold_block, ("article", "indefinite", "linking"))
NEUTRAL, ANOTHER, YOUNGER, ELDER = map(_fold_block, ("neutral", "another", "younger", "elder"))
GENERIC = {word: name for name in ("inn", "town") for word in _fold_block(name)}
"""Optional words in the name of a place: the Salty Sigil (tavern)."""

SHORT_NAMES = _read_short_names(_BLOCKS["short"])
"""Short names by full name, and full names and other short names by short name."""
