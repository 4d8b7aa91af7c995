"""How deep a JSON text is nested and how many values it has, found without parsing it."""

from __future__ import annotations

import re
from itertools import accumulate

from backend.characters.cards.limits import JSON_DEPTH, JSON_VALUES

_SLICE_BYTES = 64 * 1024

# Possessive (`++`, `*+`, `?+`): linear on any input.
_STRING = re.compile(rb'"(?>(?:[^"\\]++|\\.)*)"?+', re.DOTALL)
_CLOSED_STRINGS = re.compile(rb'(?>(?:[^"]++|"(?>(?:[^"\\]++|\\.)*)")*)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def check_structure(data: bytes, *, slice_bytes: int = _SLICE_BYTES) -> None:
    """Bound nesting and values by the punctuation outside strings, before a parser recurses.

    `data` is read in slices: memory is a small multiple of one slice, and a text that is over a
    limit is read no further than that.

    Raises:
        CardLimitError: Too deep, or too many values.
    """
    values = depth = 0
    begun = b""  # of a string that the slice before did not close: its quote, a backslash
    for start in range(0, len(data), slice_bytes):
        piece = begun + data[start : start + slice_bytes]
        end = _closed_end(piece)
        open_string = piece[end:]
        is_escaping = (len(open_string) - len(open_string.rstrip(b"\\"))) % 2
        begun = open_string[:1] + b"\\" * is_escaping
        punctuation = _STRING.sub(b"", piece[:end])
        values += sum(map(punctuation.count, (b",", b"[", b"{")))
        JSON_VALUES.check(values, "The JSON text")
        brackets = punctuation.translate(None, _NOT_BRACKETS)
        depths = list(accumulate(map(_STEPS.__getitem__, brackets), initial=depth))
        JSON_DEPTH.check(max(depths), "The JSON text")
        depth = depths[-1]


def _closed_end(piece: bytes) -> int:
    """Where the string begins that `piece` does not close; its length where there is none."""
    found = _CLOSED_STRINGS.match(piece)
    return found.end() if found else 0
