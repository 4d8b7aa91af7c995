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
