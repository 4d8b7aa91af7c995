"""Forms of words that Snowball does not reduce to one stem.

**Irregular forms.** `irregular_forms.txt` has a line for each word ("fly flew flown"). All of its
forms have the stem of the first one.

**German verbs** lose the endings and the prefix of regular forms ("weckt", "gewischt"), which
Snowball keeps because nouns have them, too. Such nouns are shortened in queries as in documents.

**Compounds** of German, Dutch and Scandinavian languages also have the stems of their possible
heads: their ends that begin like a syllable ("Jagdhorn": "horn"). A vocabulary is not needed,
because an end that is not a word is in no query.

**Korean** words are pairs of syllables. A word that is one syllable with a particle or an ending
also has that syllable.

docs/explanation/quality.md has the effect of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import cast

import Stemmer

MIN_PART_CHARACTERS = 4
"""Minimum length of the head of a compound."""

MAX_HEADS = 4
"""Heads of one compound, the shortest ones."""

_COMPOUNDING = frozenset({"german", "dutch", "swedish", "danish", "norwegian"})

_VOWEL = "[aeiouyäöüåæøéè]"
_CONSONANT = _VOWEL.replace("[", "[^")
_ONSET = (
    "schw|schr|schl|schm|schn|sch|str|spr|spl|skr|st|sp|sk|pfl|pfr|pf|bl|br|dr|fl|fr|gl|gn"
    "|gr|kl|kn|kr|pl|pr|qu|tr|vl|vr|wr|zw|[bdfghjklmnpqrstvwz]"
)
"""Consonants that a syllable can begin with, the longest first."""

_SYLLABLE = re.compile(rf"(?<={_VOWEL})({_CONSONANT}*?)(?<!c)({_ONSET})(?={_VOWEL})")
_FIRST_PART = re.compile(rf"...|.{_CONSONANT}")
_LINKED_ONSETS = ("st", "sp")
"""Their `s` can also belong to the part before: "Blut-s-tropfen"."""

_INSEPARABLE = frozenset({"er", "ver", "zer", "ent", "emp"})

_PREFIXED_VERB = re.compile(
    "(ab|an|auf|aus|be|bei|ein|ent|er|fort|her|hin|los|mit|nach|um|ver|vor|weg|wieder|zer|zu|zurück)"
    "(.{3,})"
)

_PARTICIPLE = re.compile("ge(.{4,}t)")


def find_heads(word: str, language: str) -> list[str]:
    """Return the possible heads of a compound. O(n) for n characters."""
    if language not in _COMPOUNDING:
        return []
    starts: list[int] = []
    for match in _SYLLABLE.finditer(word):
        start = match.start(2)
        starts += [start, start + 1] if match[2].startswith(_LINKED_ONSETS) else [start]
    return [
        word[start:]
        for start in starts
        if _can_be_first_part(word[:start]) and len(word) - start >= MIN_PART_CHARACTERS
    ][-MAX_HEADS:]


def _can_be_first_part(part: str) -> bool:
    return _FIRST_PART.match(part) is not None and part not in _INSEPARABLE


def find_parts(word: str, language: str) -> list[str]:
    """Return the possible heads of a compound, and the parts before them."""
    heads = find_heads(word, language)
    firsts = [word.removesuffix(head) for head in heads]
    return list(dict.fromkeys([*heads, *firsts, *(first.removesuffix("s") for first in firsts)]))


@cache
def load_irregular_forms() -> Mapping[str, Sequence[Sequence[str]]]:
    """Return the words of each language, by Snowball's names, each as a list of its forms."""
    content = Path(__file__).with_name("irregular_forms.txt").read_text(encoding="utf-8")
    blocks = (block.partition(":\n") for block in content.split("\n\n"))
    return {language: [*map(str.split, words.splitlines())] for language, _, words in blocks}


def make_stemmer(language: str) -> Callable[[str], str]:
    """Return a stemmer of normalized words. It is not thread-safe and caches no words."""
    snowball = cast("Callable[[str], str]", Stemmer.Stemmer(language, 0).stemWord)
    stems: dict[str, str] = {}
    for forms in load_irregular_forms().get(language, ()):
        stems |= {snowball(form): snowball(forms[0]) for form in forms}
    if language == "german":
        return _make_german_stemmer(snowball, stems)

    def stem(word: str) -> str:
        found = snowball(word)
        return stems.get(found, found)

    return stem if stems else snowball


def _make_german_stemmer(
    snowball: Callable[[str], str], stems: Mapping[str, str]
) -> Callable[[str], str]:
    # Participles with another prefix have no `ge`: "gebrochen", but "zerbrochen".
    rests = {form.removeprefix("ge"): first for form, first in stems.items()} | dict(stems)

    def stem(word: str) -> str:
        found = snowball(word)
        if first := stems.get(found):
            return first
        if (match := _PREFIXED_VERB.fullmatch(found)) and (first := rests.get(match[2])):
            return match[1] + first
        if match := _PARTICIPLE.fullmatch(found):
            found = snowball(match[1])
        while len(found) > MIN_PART_CHARACTERS and found.endswith("t"):
            found = snowball(found[:-1])
        return found

    return stem


_KOREAN_PARTICLES = """
    은 는 이 가 을 를 의 에 도 와 과 로 만 께 랑 야 들 에서 에게 한테 께서 으로 까지 부터 처럼
    보다 마다 조차 마저 밖에 만큼 이든 하고 이랑 이나 이란 이며 이면 라고 라는 이라고 이라는
    이라도 이다 이었다 이야 인가 이지 인지 에는 에도 로는 로도 와는 과는 와의 과의 에게서 한테서
    에서는 에서도 에게는 에게도 으로는 으로도 까지도 까지는 들은 들이 들을 들의 들도 들과 들에게
    에서부터 으로부터 에게서는 에게서도 까지밖에
"""
_KOREAN_ENDINGS = """
    다 지 고 게 며 면 던 어 아 은 는 을 음 는다 다고 지만 지는 지도 지를 거나 도록 면서 려고 는데
    는지 은지 을지 으면 으며 으니 어서 아서 어야 아야 어도 아도 어라 아라 기를 기가 기는 기에 기로
    었다 았다 였다 었어 았어 였어 었지 았지 었던 았던 었을 았을 는다고 으려고 으라고 으면서 자마자
    었어요 았어요 었지만 았지만 었는데 았는데 습니다 습니까 었습니다 았습니다 였습니다
"""
_KOREAN_WORD = re.compile(
    f"(.)(?:{'|'.join(sorted((_KOREAN_PARTICLES + _KOREAN_ENDINGS).split(), key=len)[::-1])})"
)
_COMMON_SYLLABLES = frozenset("있없하되그이저것수않뭐왜나너내네")
"""Words of one syllable that say nothing: "be", "do", "it", "thing", "I"."""


def split_korean(word: str) -> list[str]:
    """Return the pairs of syllables of a word, and its stem if that is one syllable."""
    pairs = [word[start : start + 2] for start in range(len(word) - 1)] or [word]
    match = _KOREAN_WORD.fullmatch(word)
    return pairs if match is None or match[1] in _COMMON_SYLLABLES else [*pairs, match[1]]
