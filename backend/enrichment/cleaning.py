"""Clean texts of models and users before they enter a prompt.

A text between the tags of a prompt must not close them. The answers of models enter later prompts
as memories or as lore, where macros and decorators would be executed.
"""

from __future__ import annotations

import re
import unicodedata

_TAG = re.compile(r"<(?=\s*(?:[/!?|\[]|[^\W\d]))")
"""The start of a tag or of a mark in a model's chat format. `<3` is kept."""

_BREAKS = re.compile(r"\r\n?|[\v\f\x85\u2028\u2029]")
_MACROS = re.compile(r"([{}])\1+")
_DECORATORS = re.compile(r"@{2,}")
_JOINERS = frozenset("\u200c\u200d")
"""Invisible, but parts of words and emoji."""

_SELECTORS = frozenset(map(chr, range(0xE0100, 0xE01F0)))
"""Variation selectors of rare ideographs. A sequence of them can encode an invisible text."""

INDENT = "\n    "
_GAP = " [...] "
_SENTENCE_ENDS = ".!?…。\n"


def strip_tags(text: str) -> str:
    """Remove tags, control characters and invisible characters.

    Line breaks of all kinds become plain ones.
    """
    text = _BREAKS.sub("\n", text)
    kept = "".join(each for each in text if each in "\n\t" or _is_visible(each))
    return _TAG.sub("\u2039", kept)  # an angle that opens no tag


def indent_text(text: str, *, most: int) -> str:
    """Clean and indent a text that follows a mark, so that no later line can imitate a mark.

    Texts of more than `most` characters are clipped.
    """
    clean = clip(strip_tags(text).strip(), most)
    return INDENT.join(line.rstrip() for line in clean.split("\n") if line.strip())


def clip(text: str, most: int) -> str:
    """Shorten a text to `most` characters: its beginning, a gap, and its end."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    return text[:head] + _GAP + text[head - most :]


def to_one_line(text: str) -> str:
    """Clean a model's text for a list in a prompt: one line, no macros."""
    return _MACROS.sub(r"\1", " ".join(strip_tags(text).split()))


def clean_paragraphs(text: str) -> str:
    """Clean a model's text for a lorebook: no macros, no decorators, no repeated empty lines."""
    lines = (_DECORATORS.sub("@", to_one_line(line)) for line in strip_tags(text).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def clean_text(text: str, limit: int) -> str:
    """Clean a model's text for a prompt: no tags, no empty lines, at most `limit` characters.

    Sections of a prompt are delimited by tags or empty lines, so that the text cannot end one. A
    longer text is cut after a sentence if possible, or else after a word.
    """
    lines = (line.strip() for line in strip_tags(text).split("\n"))
    whole = "\n".join(line for line in lines if line)
    return whole if len(whole) <= limit else _cut(whole, limit)


def _cut(text: str, limit: int) -> str:
    head = text[: max(0, limit - 1)]
    end = max(head.rfind(mark) for mark in _SENTENCE_ENDS)
    if end >= limit // 2:
        return head[: end + 1].rstrip()
    words = head.rsplit(None, 1)
    return (words[0] if len(words) > 1 else head) + "…" if head else ""


def _is_visible(character: str) -> bool:
    if character in _SELECTORS:
        return False
    return unicodedata.category(character) not in {"Cc", "Cf", "Cs"} or character in _JOINERS
