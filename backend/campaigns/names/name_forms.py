"""The words of a name in the forms in which two spellings of it are compared.

What is no name (articles, titles, forms of address, words for somebody's age or for another one)
is in `name_words.txt`, for English, German, French, Russian and Japanese.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from backend.campaigns.names.words import GERMAN_ENDINGS, WORD, to_plain
from backend.core.text_forms import normalize
from backend.memory.search.terms import ELISIONS

MAX_NAME = 200
"""Characters of a name that are read."""

MAX_WORDS = 20
"""Words of it. A campaign whose names share all their words is looked through for each."""

_MAX_WORD_LENGTH = 30
_VOWELS = frozenset("aeiou")
_GENDERS = {"n": "", "m": "m", "f": "f"}
_CYRILLIC = re.compile(r"[\u0400-\u04ff]+")
_UNSPACED = re.compile(r"[\u3041-\u30fa\u30fc\u3400-\u9fff\uac00-\ud7a3]+")
_HAN = re.compile(r"[\u3400-\u9fff]+")

_SYLLABLES = ("KATAKANA LETTER ", "HIRAGANA LETTER ", "HANGUL SYLLABLE ")

_SOUNDS = (
    ("dzh", "j"), ("zh", "j"), ("kh", "h"), ("tch", "tsh"), ("sch", "sh"), ("ch", "k"),
    ("ph", "f"), ("ck", "k"), ("x", "ks"), ("q", "k"), ("c", "k"), ("z", "s"), ("w", "v"),
    ("y", "i"), ("j", "i"),
)  # fmt: skip
"""Spellings of one sound, in English, German and French, and where Cyrillic is transcribed."""


class Title(NamedTuple):
    """What a word says of somebody: what they are, and `m` or `f` where it says that too.

    `is_inflected`: it does not stand in the nominative, nor does the name with it.
    """

    role: str
    gender: str
    is_inflected: bool = False


class NameWord(NamedTuple):
    """A word of a name, `fold_word`. `owns` is a possessive, `is_small` one without a capital."""

    text: str
    owns: bool
    is_small: bool


def read_words(name: str) -> list[NameWord]:
    """The first words of a name or a mention."""
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
    """A word without case, and without the accents of Latin letters."""
    word = word.casefold()
    if word.isascii():
        return word
    if _CYRILLIC.search(word) or _UNSPACED.search(word):
        return word.replace("\N{CYRILLIC SMALL LETTER IO}", "\N{CYRILLIC SMALL LETTER IE}")
    return transliterate(word)


def transliterate(word: str) -> str:
    """A folded word in Latin letters without accents, as far as its script says how it sounds."""
    return word if word.isascii() else "".join(map(_transliterate, word))


def _transliterate(char: str) -> str:
    if char.isascii():
        return char
    base = unicodedata.normalize("NFD", char)[0]
    name = unicodedata.name(char, "")
    if found := _LETTERS.get(char) or _LETTERS.get(base):
        return found
    if name.startswith(_SYLLABLES):  # KATAKANA LETTER SMALL YA, HANGUL SYLLABLE GIM
        return "" if name.endswith("SMALL TU") else name.rpartition(" ")[2].casefold()
    return base if base.isascii() else ""


def is_unspaced(word: str) -> bool:
    """Whether a word is of a script without spaces, so that it may be a whole phrase."""
    return _UNSPACED.fullmatch(word) is not None


def yield_case_forms(word: str) -> Iterator[str]:
    """Forms of a name in other cases: of Russian names, and a genitive's s."""
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
    """What a Russian form may be of where the name is known in another script."""
    if _CYRILLIC.fullmatch(word):
        yield from (word.removesuffix(end) for end in _AFTER_CONSONANTS if word.endswith(end))


def yield_adjective_forms(word: str) -> Iterator[str]:
    """Forms of a German adjective: Goldener of Goldenen."""
    for ending in GERMAN_ENDINGS:
        if word.isascii() and word.endswith(ending):
            yield from (word.removesuffix(ending) + each for each in GERMAN_ENDINGS)


def yield_genitives(word: str) -> Iterator[str]:
    """The genitive of a Russian man's name that is a woman's name too: Волкова of Волков."""
    if _CYRILLIC.fullmatch(word) and word.endswith(_WOMEN_TOO):
        yield f"{word}\N{CYRILLIC SMALL LETTER A}"


def yield_name_parts(word: str) -> Iterator[str]:
    """Beginnings and ends of a name in Han characters: the family's, and one's own.

    Of a thing what stands after its last no: 短剣 of 月の短剣.
    """
    if is_unspaced(word) and "の" in word[:-2]:
        yield word.rpartition("の")[2]
    if _HAN.fullmatch(word) and 3 <= len(word) <= 8:  # noqa: PLR2004  # two names, at least three
        for cut in range(1, len(word)):
            yield from (part for part in (word[:cut], word[cut:]) if len(part) > 1)


def get_sound(word: str) -> str:
    """How a name sounds, roughly, in Latin letters; empty for Han, which says it in no way."""
    if _HAN.search(word):
        return ""
    said = transliterate(word)
    for spelled, heard in _SOUNDS:
        said = said.replace(spelled, heard)
    said = said[:1] + said[1:].replace("h", "")
    return "".join(char for at, char in enumerate(said) if char != said[at - 1 : at])


def get_consonants(word: str) -> str:
    """Its consonants, in which a name of another script is compared; empty where they are few."""
    if _HAN.search(word):
        return ""
    heard = get_sound(word).replace("l", "r").replace("h", "")
    bones = "".join(char for char in heard if char not in _VOWELS)
    return bones if len(bones) > 1 else ""


def yield_shortened(word: str) -> Iterator[str]:
    """A word, and the same with each of its letters left out; nothing of one that is no name.

    Two words that have one of these in common differ in a letter that is missing, added, another
    one, or elsewhere. (The index of Garbe's SymSpell, 2012.)
    """
    if len(word) <= _MAX_WORD_LENGTH:
        yield word
        yield from (word[:at] + word[at + 1 :] for at in range(len(word)))


def is_misspelling(one: str, other: str) -> bool:
    """Whether two names that have a `yield_shortened` form in common may be one, spelled wrongly.

    Short names that differ in a letter are two names (Mirko and Marko), and so are those that
    differ in their ends (Marie and Maria).
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
    of: defaultdict[str, set[str]] = defaultdict(set)
    names: defaultdict[str, set[str]] = defaultdict(set)
    for pair in text.split("·"):
        if pair.strip():
            short, full = map(fold_word, pair.split())
            of[full].add(short)
    for full, shorts in of.items():
        for short in shorts:
            names[short] |= {full} | shorts - {short}
        names[full] |= shorts
    return names


_BLOCKS = _read_blocks()


_spelled = _BLOCKS["letters"].split()
_LETTERS = dict(zip(_spelled[::2], _spelled[1::2], strict=True))


def _fold_block(name: str) -> frozenset[str]:
    return frozenset(map(fold_word, _BLOCKS[name].split()))


_CASES = {
    ending: forms
    for ending, *forms in sorted(
        (line.split() for line in _BLOCKS["cases"].splitlines()), key=lambda line: -len(line[0])
    )
}
"""Endings of Russian names with those of their other cases, the longest first."""

_AFTER_CONSONANTS = _BLOCKS["consonant"].split()
_OTHER_VOWELS = _fold_block("vowels")
_WOMEN_TOO = tuple(_BLOCKS["women"].split())
"""Men's names that end so have a woman's, which is what their genitive looks like: Volkova."""

TITLES = _read_titles(_BLOCKS)
"""Titles, offices and forms of address, by word."""

ARTICLES, INDEFINITE, LINKING = map(_fold_block, ("article", "indefinite", "linking"))
NEUTRAL, ANOTHER, YOUNGER, ELDER = map(_fold_block, ("neutral", "another", "younger", "elder"))
GENERIC = {word: name for name in ("inn", "town") for word in _fold_block(name)}
"""What a place's name may have or leave out: the Salty Sigil, a tavern."""

SHORT_NAMES = _read_short_names(_BLOCKS["short"])
"""Short names with those that they stand for, and others for the same; and the other way round."""
