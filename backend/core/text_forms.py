"""Unicode normalization in linear time."""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import Literal

import regex  # type: ignore[import-untyped]  # it has no types

MAX_MARKS = 30
"""Combining marks in a row that are normalized together: the limit of Unicode's stream-safe text
format (UAX #15, section 13). No language uses more than a few."""

_TOO_MANY = regex.compile(rf"\p{{M}}{{{MAX_MARKS}}}(?=\p{{M}})")


def normalize(form: Literal["NFC", "NFKC"], text: str) -> str:
    """Return `text` in a normal form.

    Python sorts the marks of a letter by insertion while it keeps the interpreter lock: 100,000
    marks take 10 seconds. Therefore each run of marks is split after `MAX_MARKS`, and the parts are
    normalized separately.
    """
    if text.isascii():
        return text
    cuts = [match.end() for match in _TOO_MANY.finditer(text)]
    if not cuts:
        return unicodedata.normalize(form, text)
    return "".join(
        unicodedata.normalize(form, text[start:end])
        for start, end in pairwise((0, *cuts, len(text)))
    )
