"""Texts that go into prompts and come out of models, so that they are text and nothing else.

What stands between the tags of a prompt must not close them, and what a model wrote lands in
prompts later: as a line of memory, or as lore, where macros and decorators would have power.
"""

from __future__ import annotations

import re
import unicodedata

_TAG = re.compile(r"<(?=\s*(?:[/!?|\[]|[^\W\d]))")
"""What may open or close a tag, or be a mark of some model's chat format. `<3` stays."""

_BREAKS = re.compile(r"\r\n?|[\v\f\x85\u2028\u2029]")
_MACROS = re.compile(r"([{}])\1+")
_DECORATORS = re.compile(r"@{2,}")
_JOINERS = frozenset("\u200c\u200d")
"""Invisible, but parts of words and emoji."""

_SELECTORS = frozenset(map(chr, range(0xE0100, 0xE01F0)))
"""Variation selectors of rare ideographs: in a row they can spell out a text that nobody sees."""

INDENT = "\n    "
_GAP = " [...] "


def strip_tags(text: str) -> str:
    """The same text with nothing in it that is a tag, a control character or invisible.

    Line breaks of all kinds become plain ones.
    """
    text = _BREAKS.sub("\n", text)
    kept = "".join(each for each in text if each in "\n\t" or _is_visible(each))
    return _TAG.sub("\u2039", kept)  # an angle that opens no tag


def indent_text(text: str, *, most: int) -> str:
    """A text as a prompt shows it behind a mark: later lines indented, so that none fakes a mark.

    Of what is longer than `most` characters the beginning and the end are shown.
    """
    clean = clip(strip_tags(text).strip(), most)
    return INDENT.join(line.rstrip() for line in clean.split("\n") if line.strip())


def clip(text: str, most: int) -> str:
    """Of what is longer than `most` characters the beginning and the end, with a gap between."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    return text[:head] + _GAP + text[head - most :]


def to_one_line(text: str) -> str:
    """What a model wrote, as one line without macros: it stands in lists in prompts."""
    return _MACROS.sub(r"\1", " ".join(strip_tags(text).split()))


def clean_paragraphs(text: str) -> str:
    """What a model wrote for a lorebook: no macros, no decorators, no empty lines in a row."""
    lines = (_DECORATORS.sub("@", to_one_line(line)) for line in strip_tags(text).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _is_visible(character: str) -> bool:
    if character in _SELECTORS:
        return False
    return unicodedata.category(character) not in {"Cc", "Cf", "Cs"} or character in _JOINERS
