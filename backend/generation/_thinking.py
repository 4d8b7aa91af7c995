"""Thoughts that a server leaves in the text of a reply, between `<think>` and `</think>`."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from backend.generation._fenced_calls import held_back
from backend.generation._replies import Delta
from backend.generation.model import TextPiece, ThinkingPiece

_OPENINGS = ("<think>", "<thinking>")

_LONGEST_HEAD = 200
"""Characters of white space after which a reply has begun."""


class ThinkReader:
    """Takes thoughts and text apart, piece by piece: linear in what comes, however it is cut.

    A block counts where the reply begins, or after another block: in the middle of a text, in code
    say, the tags are a part of it. One that is never closed is thought to the end. `</think>` in
    backticks closes nothing.

    Args:
        start: What the reply is made to begin with. `started` is what there is of it to read.
    """

    def __init__(self, start: str = "") -> None:
        self._place: Literal["head", "thoughts", "text"] = "head"
        self._closing = ""
        self._held = ""
        self._before = ""  # the last character of the thoughts so far
        self.started = self.feed(start) if start else []

    def feed(self, text: str) -> list[TextPiece | ThinkingPiece]:
        """What has become clear with the next part of a reply."""
        text, self._held = self._held + text, ""
        pieces: list[TextPiece | ThinkingPiece] = []
        while text:
            if self._place == "text":
                pieces.append(TextPiece(text))
                break
            text = self._think(text, pieces) if self._place == "thoughts" else self._begin(text)
        return pieces

    def close(self) -> list[TextPiece | ThinkingPiece]:
        """What is left at the end."""
        held, self._held = self._held, ""
        if not held:
            return []
        return [ThinkingPiece(held) if self._place == "thoughts" else TextPiece(held)]

    def read(self, delta: Delta) -> Delta:
        """A part of a reply, with its thoughts as such."""
        if self._place == "text" and not self.started:
            return delta
        kept = [piece for piece in delta.pieces if not isinstance(piece, TextPiece)]
        said = [
            part
            for piece in delta.pieces
            if isinstance(piece, TextPiece)
            for part in self.feed(piece.text)
        ]
        if delta.pieces:
            said, self.started = [*self.started, *said], []
        if delta.finish is not None:
            said += self.close()
        thoughts = [piece for piece in kept if isinstance(piece, ThinkingPiece)]
        return replace(delta, pieces=(*thoughts, *said, *kept[len(thoughts) :]))

    def _begin(self, text: str) -> str:
        bare = text.lstrip()
        for opening in _OPENINGS:
            if bare.startswith(opening):
                self._place, self._closing = "thoughts", f"</{opening[1:]}"
                return bare[len(opening) :]
        if len(text) <= _LONGEST_HEAD and any(tag.startswith(bare) for tag in _OPENINGS):
            self._held = text
            return ""
        has_thought = bool(self._closing)
        self._place = "text"
        return bare if has_thought else text

    def _think(self, text: str, pieces: list[TextPiece | ThinkingPiece]) -> str:
        at = text.find(self._closing)
        while at >= 0 and (text[at - 1] if at else self._before) == "`":
            at = text.find(self._closing, at + 1)
        end = at if at >= 0 else len(text) - held_back(text, self._closing)
        if thought := text[:end]:
            pieces.append(ThinkingPiece(thought))
            self._before = thought[-1]
        if at >= 0:
            self._place = "head"
            return text[at + len(self._closing) :]
        self._held = text[end:]
        return ""


def without_thoughts(delta: Delta) -> Delta:
    """An answer that came as a whole; what stands before a `</think>` alone is thought as well.

    Chat templates may have written the opening tag into the prompt.
    """
    reader = ThinkReader()
    text = "".join(piece.text for piece in delta.pieces if isinstance(piece, TextPiece))
    before, closing, _ = text.partition("</think>")
    if closing and not any(before.lstrip().startswith(tag) for tag in _OPENINGS):
        rest = [piece for piece in delta.pieces if not isinstance(piece, TextPiece)]
        delta = replace(delta, pieces=(TextPiece(f"<think>{text}"), *rest))
    read = reader.read(delta)
    return replace(read, pieces=(*read.pieces, *reader.close()))
