"""What the model thought before its last replies, sent again where a chat's settings say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import MESSAGE_THINKING, Message
from backend.core.audience import GM
from backend.turns.prompt.context import LoadedChat
from backend.vault.sealing import Sealer

SealedThoughts = Mapping[int, tuple[UUID, bytes]]
"""The message's id and its sealed thoughts, by its position on the path."""

LARGEST_SHARE = 4
"""Thoughts take at most a quarter of a prompt: those of the last replies first."""

_LAST = (
    select(Message.position, Message.id, Message.sealed_thinking)
    .where(
        Message.chat_id == bindparam("chat_id"),
        Message.is_active,
        ~Message.hidden,
        Message.role == "assistant",
        Message.position <= bindparam("to_position"),
    )
    .order_by(Message.position.desc())
    .limit(bindparam("most"))
)


async def last_thoughts(session: AsyncSession, loaded: LoadedChat, most: int) -> SealedThoughts:
    """The thoughts of the last `most` replies above what is said next.

    Of a reply that goes on none are sent. Thoughts may tell what the characters don't know: in a
    prompt from a viewpoint other than the game master's there are none.
    """
    leaf = loaded.target.leaf
    if not most or leaf is None or loaded.viewpoint != GM:
        return {}
    last = leaf.position - (loaded.target.line_kind == "continue")
    values = {"chat_id": loaded.chat.id, "to_position": last, "most": most}
    rows = (await session.execute(_LAST, values)).all()
    return {position: (key, sealed) for position, key, sealed in rows if sealed is not None}


def think_aloud(text: str, thoughts: str) -> str:
    """A reply with its thoughts before it, as models that think in their text write them."""
    return f"<think>\n{thoughts}\n</think>\n\n{text}"


def add_thoughts(
    texts: list[str],
    tokens: list[int],
    positions: Sequence[int],
    sealed: SealedThoughts,
    *,
    sealer: Sealer,
    count: Callable[[str], int],
    most: int,
) -> dict[int, int]:
    """Put thoughts before the replies in `texts`, the last first, and count them. CPU-bound.

    Args:
        texts: The lines of the history, oldest first; changed in place.
        tokens: Their tokens; likewise.
        positions: Where they stand on the path.
        sealed: The thoughts.
        sealer: Opens them.
        count: Tokens of a text.
        most: Tokens that thoughts may take in all.

    Returns:
        The tokens that thoughts added, by position.
    """
    added: dict[int, int] = {}
    for at in range(len(texts) - 1, -1, -1):
        if len(added) == len(sealed):
            break
        if (found := sealed.get(positions[at])) is None:
            continue
        thoughts = think_aloud("", sealer.open(MESSAGE_THINKING, *found))
        more = count(thoughts)
        if sum(added.values()) + more > most:
            break
        added[positions[at]] = more
        texts[at], tokens[at] = thoughts + texts[at], tokens[at] + more
    return added
