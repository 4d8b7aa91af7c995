"""A simple alignment with one stored path, for tests of decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal
from uuid import UUID

from backend.openai_api.contracts import ChatPlacement, Line, SentConversation, StoredLine
from backend.vault.sealing import Sealer

SEALER = Sealer(UUID(int=1), {1: bytes(32)}, user_key=bytes(32))

Sent = tuple[Literal["system", "user", "assistant"], str]


def place(reading: SentConversation, stored: Sequence[Sent], cut: str = "") -> ChatPlacement:
    """Align equal lines, and stored texts among the pieces of a line.

    `cut` is a stored text that its beginning matches.
    """
    path = [
        StoredLine(
            id=UUID(int=number + 1),
            parent_id=UUID(int=number) if number else None,
            position=number,
            role=role,
            hidden=False,
            is_active=True,
            digest=text.encode(),
        )
        for number, (role, text) in enumerate(stored)
    ]
    pairs: dict[int, StoredLine] = {}
    edits: dict[UUID, str] = {}
    remainder: list[Line] = []
    for number, (line, (role, text)) in enumerate(zip(reading.lines, stored, strict=False)):
        is_cut = text == cut and text.startswith(line.text)
        pieces = text.split("\n\n")
        is_merged = line.text != text and set(pieces) <= set(line.pieces)
        if line.role != role or not (line.text == text or is_cut or is_merged):
            break
        pairs[number] = path[number]
        if is_cut and line.text != text:
            edits[path[number].id] = line.text
        after = line.pieces[line.pieces.index(pieces[-1]) + 1 :] if is_merged else ()
        remainder = [replace(line, text="\n\n".join(after), pieces=())] if after else []
    if len(pairs) < len(reading.lines):
        remainder = []
    return ChatPlacement(
        chat_id=UUID(int=99),
        pairs=pairs,
        edits=edits,
        last=path[len(pairs) - 1] if pairs else None,
        tail=[*remainder, *reading.lines[len(pairs) :]],
        rest=path[len(pairs) :],
        window_start=0,
        is_leaf=len(pairs) == len(path),
    )
