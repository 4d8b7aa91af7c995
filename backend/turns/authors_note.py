"""Whose author's note a turn takes: the chat's own, or that of the character who speaks."""

from __future__ import annotations

import msgspec

from backend.characters.cards.model import Card
from backend.chats.schemas import AuthorsNote
from backend.reasons import ReasonKind


class _Ours(msgspec.Struct):
    authors_note: AuthorsNote


class _Extensions(msgspec.Struct):
    talekeeper: _Ours


def authors_note(own: AuthorsNote, card: Card) -> tuple[AuthorsNote, ReasonKind]:
    """The note that holds, and where it is from.

    A card keeps its character's in `extensions.talekeeper.authors_note`.
    """
    if not own.text.strip():
        try:
            return msgspec.convert(card.extensions, _Extensions).talekeeper.authors_note, "card"
        except msgspec.ValidationError:  # there is none, or what is there is no note
            pass
    return own, "chat_settings"
