"""Coined terms that a text puts into quotation marks, told apart from what somebody says."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from backend.campaigns.ordinary_words import ARTICLES, CAPITALISED, CONNECTORS, NAMING
from backend.campaigns.story_words import WORD, Vocabulary, has_capitals

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
_MAX_WORDS = 4
_MAX_UNSPACED = 12
"""Characters of a term in a script that puts no spaces between words."""

_NEAR = 40
"""Characters before a quotation that may say that it is a name."""


def quoted_terms(text: str, vocabulary: Vocabulary) -> Iterator[tuple[str, int]]:
    """Terms with their places in a `plain` text, the same one as often as it is quoted."""
    at = 0
    unclosed: set[str] = set()
    while (opening := _OPENING.search(text, at)) is not None:
        at = opening.end()
        ends: list[int] = []
        for mark in _CLOSING[opening[0]]:
            if mark not in unclosed and (end := text.find(mark, at)) >= 0:
                ends.append(end)
            else:
                unclosed.add(mark)  # nor is there one further on
        end = min(ends, default=-1)
        if end < 0 or (opening[0] == "'" and end - at > _MAX_QUOTED):
            continue
        said = text[at:end].strip("*_ ")
        if _may_be_term(said) and _is_term(text, opening.start(), said, vocabulary):
            yield said, at
        at = end + 1


def emphasised_terms(text: str, vocabulary: Vocabulary) -> Iterator[tuple[str, int]]:
    """The same of names that are set in italics or bold: the *Meridian*."""
    for match in _EMPHASIS.finditer(text):
        said = match[2]
        is_title = all(word[0].isupper() for word in said.split() if word not in CONNECTORS)
        if is_title and _may_be_term(said) and _is_term(text, match.start(), said, vocabulary):
            yield said, match.start(2)


def _may_be_term(said: str) -> bool:
    return 1 < len(said) <= _MAX_QUOTED and any(map(str.isalpha, said)) and _SPOKEN.isdisjoint(said)


def _is_term(text: str, at: int, said: str, vocabulary: Vocabulary) -> bool:
    before = text[max(0, at - _NEAR) : at].rstrip(" *_")
    if not has_capitals(said):
        return text[at] in _TITLES or (_is_inside(before) and _is_short(said))
    words = [word for word in said.split() if word.casefold() not in ARTICLES]
    if not 0 < len(words) <= _MAX_WORDS or any(word.casefold() in CAPITALISED for word in words):
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
    """Whether a word stands right before a quotation, and no mark that introduces speech."""
    return bool(before) and (before[-1].isalnum() or unicodedata.category(before[-1])[0] == "M")


def _is_short(said: str) -> bool:
    if " " in said:
        return len(said.split()) <= _MAX_WORDS
    return len(said) <= _MAX_UNSPACED and not _HIRAGANA.fullmatch(said)
