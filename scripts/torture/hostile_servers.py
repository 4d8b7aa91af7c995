"""Oversized answers of a user's own model server: replies, and lists of models."""

from __future__ import annotations

from scripts.torture.hostile_user import HostileUser

BIG = 8_000_000
PIECE = "The rain fell on the harbour. " * 1_000
LONGEST_REPLY = 400_000
"""Characters of a reply that are kept: a promise."""


async def big_reply(user: HostileUser) -> None:
    """A reply of 8 MB in one piece, and the requests that read it again."""
    await _reply(user, PIECE * (BIG // len(PIECE)), is_endless=False)


async def endless_reply(user: HostileUser) -> None:
    """A reply that does not end, in pieces of 30 KB."""
    await _reply(user, PIECE, is_endless=True)


async def big_list(user: HostileUser) -> None:
    """A list of models of 8 MB."""
    user.model.listed = [f"model-{number:0100}" for number in range(BIG // 150)]
    await user.list_models()


async def _reply(user: HostileUser, text: str, *, is_endless: bool) -> None:
    chat = await user.chat()
    user.model.literal, user.model.is_endless = text, is_endless
    heard = await user.say(chat, "Go on.")
    user.model.literal, user.model.is_endless = None, False
    if not heard.is_over or len(heard.text) > LONGEST_REPLY:
        user.client.history.breach(f"a reply had {len(heard.text):,} characters, and no end")
    await user.preview(chat)
    await user.say(chat, "Say it again.")


SERVERS = {
    "a reply of 8 MB": big_reply,
    "an endless reply": endless_reply,
    "a list of models of 8 MB": big_list,
}
