"""The limit on the length of a reply, because a server may send one without an end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from backend.generation._replies import Delta, DeltaPiece
from backend.generation.model import TextPiece, ThinkingPiece

SLICE_CHARACTERS = 4_000
"""Characters that are read before others get their turn. A server may send a reply in one event,
and reading short lines takes up to 4 µs a character."""


class ReplyLimit:
    """Cuts one reply after so many characters of text, and after as many of thoughts.

    Attributes:
        is_reached: True once the reply was cut. Nothing after that is read.
    """

    def __init__(self, characters: int) -> None:
        self._left = {TextPiece: characters, ThinkingPiece: characters}
        self.is_reached = False

    def read(self, delta: Delta) -> Sequence[Delta]:
        """Return a part of the reply in slices. If it was cut, the last one has finish `length`."""
        pieces = [part for piece in delta.pieces for part in self._slices(piece)]
        if self.is_reached:
            end = Delta(usage=delta.usage, finish="length")
        elif len(pieces) == len(delta.pieces):
            return (delta,)
        else:
            end = replace(delta, pieces=())
        return (*(Delta((each,)) for each in pieces), end)

    def _slices(self, piece: DeltaPiece) -> Iterator[DeltaPiece]:
        if self.is_reached:
            return
        if not isinstance(piece, TextPiece | ThinkingPiece):
            yield piece
            return
        kind, text = type(piece), piece.text[: self._left[type(piece)]]
        self._left[kind] -= len(text)
        self.is_reached = len(text) < len(piece.text)
        for start in range(0, len(text), SLICE_CHARACTERS):
            yield kind(text[start : start + SLICE_CHARACTERS])
