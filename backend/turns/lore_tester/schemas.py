"""What a lorebook is tried on, and what comes of it."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec

from backend.core.reasons import Reason
from backend.generation.model import Role
from backend.lorebooks.entries import Position

MAX_MESSAGES = 100
MAX_CHARACTERS = 100_000
"""Of all messages together."""

Line = Annotated[str, msgspec.Meta(max_length=MAX_CHARACTERS)]


class LoreTestRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to try a lorebook on: messages, the newest last, as if they had just been said.

    With `chat_id` they are said in that chat, by the user and the character in turns: its cast, its
    names, its settings, and what is sticky or cools down there count. `seed` decides the draws; the
    same seed makes the same ones.
    """

    texts: Annotated[list[Line], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    chat_id: UUID | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] | None = None


class LoreMatch(msgspec.Struct, kw_only=True):
    """A key in the text: which message, from 0, and which characters of it, in Unicode's NFC."""

    key: str
    is_secondary: bool
    message: int
    start: int
    end: int


class TestedEntry(msgspec.Struct, kw_only=True):
    """An entry that would come in, and why: for programs, and in words.

    `matches` are the first places of its keys in the text. `roll` is what was drawn where the entry
    has a probability, in per cent: it comes in below that. `depth` is set where it counts.
    """

    id: UUID
    title: str
    reasons: list[Reason]
    reason: str
    matches: list[LoreMatch]
    roll: float | None
    tokens: int
    position: Position
    depth: int | None
    role: Role
    outlet: str
    order: int


class MissedEntry(msgspec.Struct, kw_only=True):
    """An entry that nearly came in, and why it did not. `tokens` is 0 where none were counted."""

    id: UUID
    title: str
    reasons: list[Reason]
    reason: str
    matches: list[LoreMatch]
    roll: float | None
    tokens: int


class LoreTest(msgspec.Struct, kw_only=True):
    """What would come in, in the order of the prompt, and what nearly would.

    `tokens` is what it takes, `budget` what lore may take: of the chat, else of the account, or of
    the book where that says less. `more` counts entries beyond those listed, `not_found` those of
    which nothing is in the text. `notes` are about keys that could not be used.
    """

    entries: list[TestedEntry]
    left_out: list[MissedEntry]
    more: int
    not_found: int
    tokens: int
    budget: int
    notes: list[str]
