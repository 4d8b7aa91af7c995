"""What a card's fields and the moment give to macros."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from backend.characters.cards.model import Card
from backend.context.macros import MacroContext


def macros_of(
    card: Card, *, char: str, user: str, persona: str, chat_seed: int, message_seed: int
) -> MacroContext:
    """What a card's macros stand for. Texts of a conversation are the caller's to add.

    The time is the server's, in the server's zone.
    """
    return MacroContext(
        user=user,
        char=char,
        now=datetime.now().astimezone(),
        chat_seed=chat_seed,
        message_seed=message_seed,
        model="",
        max_prompt=0,
        persona=persona,
        description=card.description,
        personality=card.personality,
        scenario=card.scenario,
        mes_examples=card.mes_example,
        char_prompt=card.system_prompt,
        char_instruction=card.post_history_instructions,
        char_depth_prompt=depth.prompt if (depth := card.depth_prompt) else "",
        creator_notes=card.creator_notes,
        greetings=(card.first_mes, *card.alternate_greetings),
        char_version=card.character_version,
    )


MACRO_SIZE = 40
"""A macro takes as long to expand as so many characters to count."""


def expanded_size(texts: Iterable[str]) -> int:
    """What `CpuPool.run` is told of texts whose macros are expanded."""
    return sum(len(text) + MACRO_SIZE * text.count("{{") for text in texts)


def seed_of(*ids: UUID | None) -> int:
    """A seed that is the same for the same ids."""
    joined = b"".join(each.bytes if each else b"-" for each in ids)
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "big")
