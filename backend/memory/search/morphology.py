"""Terms of words for which the stem of Snowball is not enough."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import cast

import Stemmer

COMPOUNDING = frozenset({"german", "dutch", "swedish", "danish", "norwegian"})

MIN_PART = 4

_VOWELS = "aeiouyäöüåæøéè"
_ONSET = (
    "schw|schr|schl|schm|schn|sch|str|spr|spl|skr|st|sp|sk|pfl|pfr|pf|bl|br|dr|fl|fr|gl|gn"
    "|gr|kl|kn|kr|pl|pr|qu|tr|vl|vr|wr|zw|[bdfghjklmnpqrstvwz]"
)
_BOUNDARY = re.compile(rf"(?<=[{_VOWELS}])([^{_VOWELS}]*?)({_ONSET})(?=[{_VOWELS}])")


def find_heads(word: str) -> list[str]:
    heads: list[str] = []
    for match in _BOUNDARY.finditer(word):
        onset = match.start(2)
        starts = [onset]
        if match[2][0] in "st" and match[2][1:2] in ("t","p") : starts.append(onset+1)
        for i in starts:
            if word[:i] in ("ver","zer","ent","er","emp"): continue
            if i >= 3 or (i == 2 and match[1]):
                if len(word) - i >= MIN_PART:
                    heads.append(word[i:])
    return heads


@cache
def _load_families() -> Mapping[str, list[list[str]]]:
    content = Path(__file__).with_name("irregular_forms.txt").read_text(encoding="utf-8")
    blocks = (block.partition(":\n") for block in content.split("\n\n"))
    return {
        language: [line.split() for line in lines.splitlines()] for language, _, lines in blocks
    }


_GERMAN_PREFIX = re.compile(
    "(ab|an|auf|aus|be|bei|ein|ent|er|fort|her|hin|los|mit|nach|um|ver|vor|weg|wieder|zer|zu|zurück)(.{3,})"
)


def make_stemmer(language: str) -> Callable[[str], str]:
    stem = cast("Callable[[str], str]", Stemmer.Stemmer(language, 0).stemWord)
    families = _load_families().get(language)
    if not families:
        return stem
    stems: dict[str, str] = {}
    for first, *forms in families:
        for form in forms:
            stems.setdefault(stem(form), stem(first))
    if language != "german":

        def find(word: str) -> str:
            found = stem(word)
            return stems.get(found, found)

        return find
    for form, first in list(stems.items()):
        if form.startswith("ge"):
            stems.setdefault(form[2:], first)

    def find_german(word: str) -> str:
        found = stem(word)
        if first := stems.get(found):
            return first
        if (match := _GERMAN_PREFIX.fullmatch(found)) and (first := stems.get(match[2])):
            return match[1] + first
        if found[:2]=="ge" and found[-1]=="t" and len(found)>=7: found=stem(found[2:])
        while len(found) >= 5 and found[-1] == "t":
            found = stem(found[:-1])
        return found

    return find_german


_PARTICLES = (
    "에게서는 에게서도 으로부터 에서부터 에서는 에서도 에게는 에게도 에게서 한테서 으로는 으로도 이라고 이라는 이라도 까지도 까지는"
    " 까지밖에 이랑 이나 이란 이며 이면 라고 라는 에서 에게 한테 께서 으로 까지 부터 처럼 보다 마다 조차 마저 밖에 만큼 이든 하고 에는 에도 로는 로도 와는 과는 와의 과의"
    " 들은 들이 들을 들의 들도 들에게 들과 이다 이었다 이야 인가 이지 인지"
    " 은 는 이 가 을 를 의 에 도 와 과 로 만 께 랑 야 들"
).split()
_ENDINGS = (
    "었습니다 았습니다 였습니다 었지만 았지만 했지만 습니다 습니까 었어요 았어요 었지 았지 었어 았어 었다 았다 였다 였어 었는데 았는데 는데 는지 은지 을지 으려고 려고 으면 으며 으니 으라고"
    " 는다고 다고 는다 어서 아서 어야 아야 어도 아도 지만 지는 지도 지를 거나 도록 면서 으면서 자마자 기를 기가 기는 기에 기로 던 었던 았던 지 고 게 며 면 다 던 어 아 은 는 을 음 어라 아라"
    " 었을 았을"
).split()
_SUFFIX = re.compile("(?:" + "|".join(sorted({*_PARTICLES, *_ENDINGS}, key=lambda x: (-len(x), x))) + ")$")
_CONTRACTED = {"ㅕ": "ㅣ"}


def _undo(s: str) -> str:
    code = ord(s[-1]) - 0xAC00
    if 0 <= code < 11172 and code % 28 == 20:
        return s[:-1] + chr(ord(s[-1]) - 20)
    return s


def stem_korean(word: str) -> str:
    m = _SUFFIX.search(word)
    if not m or m.start() < 1:
        return word
    return word[: m.start()]

MODE = "A"

import os
_PAST = {chr(c): chr(c-20) for c in range(0xAC00+20, 0xD7A4, 28) if chr(c) != "있"}
_PAST_RE = re.compile("[" + "".join(_PAST) + "]")
_NDA = re.compile("[" + "".join(chr(c) for c in range(0xAC00+4, 0xD7A4, 28)) + "](?=다$|다고$|다는$|다며$)")
def split_korean(word: str) -> list[str]:
    v = os.environ.get("V","")
    if "p" in v: word = _PAST_RE.sub(lambda m: _PAST[m[0]], word)
    if "n" in v: word = _NDA.sub(lambda m: chr(ord(m[0])-4), word)
    if "h" in v: word = word.replace("해","하").replace("돼","되")
    stem = stem_korean(word)
    pairs = [word[i:i+2] for i in range(len(word)-1)] or [word]
    if MODE == "B":
        pairs = [word[i:i+2] for i in range(min(len(stem), len(word)-1))] or [word]
    if MODE == "C":
        pairs = [stem[i:i+2] for i in range(len(stem)-1)]
        if len(word) == 2 and stem != word: pairs.append(word)
    if "s" in v and stem in "있없하되그이저것수않뭐왜나너내네":
        return pairs
    if len(stem) == 1 and stem not in pairs:
        pairs.append(_undo(stem))
    return pairs
