"""Scenes of a chat: stretches of the story that belong together, found without asking a model."""

from __future__ import annotations

import re
from datetime import timedelta

from backend.chats.models import Message

PAUSE = timedelta(hours=4)
"""Who comes back after so long begins another session, and with it a scene."""

LENGTH = 40
"""Messages in a scene at most."""

_SIGN = r"[*_~=\-–—#•·]"  # noqa: RUF001  # dashes of every length
_MARKER = re.compile(
    rf"\s*+(?:(?:{_SIGN}\s*+){{2}}(?>(?:{_SIGN}[^\S\n]*+)+)(?:\n|\Z)"
    r"|#{0,6}+\s*+[*_]*+(?:chapter|scene|act|part)\s++\w)",
    re.IGNORECASE,
)
"""A line of stars or dashes, or a heading such as `Chapter 3`, at the head of a message.

Nothing in it gives back what it took, so that a message of blanks costs no more than another.
"""


def opens_scene(text: str) -> bool:
    """Whether a message begins with the mark of a new scene."""
    return _MARKER.match(text) is not None


def place_in_scene(message: Message, parent: Message | None) -> None:
    """Give a message its scene: its parent's, or one of its own.

    A scene begins with the first message, after a pause, after `LENGTH` messages, and where the
    text says so (`scene_id` is the message's own id then, as `sealed_draft` leaves it).
    """
    goes_on = (
        message.scene_id != message.id
        and parent is not None
        and parent.scene_id is not None
        and parent.scene_place + 1 < LENGTH
        and message.created_at - parent.created_at <= PAUSE
    )
    if goes_on and parent is not None:
        message.scene_id, message.scene_place = parent.scene_id, parent.scene_place + 1
    else:
        message.scene_id, message.scene_place = message.id, 0
