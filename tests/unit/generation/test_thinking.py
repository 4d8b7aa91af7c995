"""Thoughts in an answer that came as a whole."""

from __future__ import annotations

from backend.generation._replies import Delta
from backend.generation._thinking import without_thoughts
from backend.generation.model import TextPiece, ThinkingPiece


def test_what_stands_before_a_closing_tag_alone_is_thought() -> None:
    read = without_thoughts(Delta(pieces=(TextPiece("Who?</think>\nOswin."),), finish="stop"))

    assert read.pieces == (ThinkingPiece("Who?"), TextPiece("Oswin."))
