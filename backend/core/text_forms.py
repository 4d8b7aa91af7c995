"""Unicode's normal forms, in linear time whatever the text is."""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import Literal

import regex  # type: ignore[import-untyped]  # it has no types

MAX_MARKS = 30
"""Marks in a row that belong together. Unicode's stream-safe format has the same limit (UAX #15,
section 13): no language stacks more than a few."""

_TOO_MANY = regex.compile(rf"\p{{M}}{{{MAX_MARKS}}}(?=\p{{M}})")


def normalize(form: Literal["NFC", "NFKC"], text: str) -> str:
    """`text` in a normal form.

    Python sorts the marks on a letter by insertion, with the interpreter's lock held: 100,000 of
    them take ten seconds. So a run of marks is cut after every `MAX_MARKS`, and each part is
    brought into the form by itself.
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
