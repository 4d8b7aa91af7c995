"""Rows of messages, made: from a draft, or as copies of others; and the scenes that they open.

A scene is a stretch of the story that belongs together, found without asking a model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from backend.chats.models import (
    MESSAGE_AUTHOR,
    MESSAGE_CONTENT,
    MESSAGE_CONTEXT,
    MESSAGE_THINKING,
    MESSAGE_TYPED,
    Message,
    MessageStatus,
)
from backend.chats.token_counting import CountUnit
from backend.database.base import new_id, now
from backend.generation.model import Role
from backend.vault.sealing import Column, Sealer

MAX_SCENE_PAUSE = timedelta(hours=4)
"""Who comes back after so long begins another session, and with it a scene."""

MAX_SCENE_MESSAGES = 40
"""Messages in a scene at most."""

_SEPARATOR = r"[*_~=\-–—#•·]"  # noqa: RUF001  # dashes of every length
_MARKER = re.compile(
    rf"\s*+(?:(?:{_SEPARATOR}\s*+){{2}}(?>(?:{_SEPARATOR}[^\S\n]*+)+)(?:\n|\Z)"
    r"|#{0,6}+\s*+[*_]*+(?:chapter|scene|act|part)\s++\w)",
    re.IGNORECASE,
)
"""A line of stars or dashes, or a heading such as `Chapter 3`, at the head of a message.

Nothing in it gives back what it took, so that a message of blanks costs no more than another.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDraft:
    """A message before it has a place in a tree.

    `typed` is the text before its macros were expanded; None if there were none.
    """

    role: Role
    author: str
    text: str
    typed: str | None = None
    character_id: UUID | None = None
    persona_id: UUID | None = None
    status: MessageStatus = "complete"


SEALED_COLUMNS = (
    MESSAGE_AUTHOR,
    MESSAGE_CONTENT,
    MESSAGE_TYPED,
    MESSAGE_THINKING,
    MESSAGE_CONTEXT,
)


def seal_draft(sealer: Sealer, draft: MessageDraft, *, unit: CountUnit) -> dict[str, Any]:
    """The columns of a message, sealed and counted; `tree.attach` gives it its place.

    Some milliseconds where it is long. They are plain values, so that a thread may make them.
    """
    message_id, at = new_id(), now()
    tokens = unit.count(draft.author, draft.text)
    return {
        "id": message_id,
        "role": draft.role,
        "scene_id": message_id if opens_scene(draft.text) else None,
        "character_id": draft.character_id,
        "persona_id": draft.persona_id,
        "status": draft.status,
        "tokens": tokens,
        "token_counts": msgspec.json.encode({str(unit): tokens}).decode(),
        "sealed_author": sealer.seal(MESSAGE_AUTHOR, message_id, draft.author),
        "sealed_content": sealer.seal(MESSAGE_CONTENT, message_id, draft.text),
        "sealed_typed": (
            None if draft.typed is None else sealer.seal(MESSAGE_TYPED, message_id, draft.typed)
        ),
        "created_at": at,
        "updated_at": at,
    }


def make_message(sealer: Sealer, draft: MessageDraft, *, unit: CountUnit) -> Message:
    """A short message's row, sealed and counted."""
    return Message(**seal_draft(sealer, draft, unit=unit))


def copy_row(sealer: Sealer, row: Any, chat_id: UUID, copied: dict[UUID, UUID]) -> dict[str, Any]:
    """The columns of a message's copy for another chat: a new id, sealed anew, active.

    `row` has all columns. Messages come in the order of their path, from its root: `copied` leads
    from each to its copy, so far.
    """
    copy_id = copied[row.id] = new_id()
    sealed = {
        column.name: reseal(sealer, column, row.id, getattr(row, column.name), copy_id)
        for column in SEALED_COLUMNS
    }
    return {
        **row._asdict(),
        **sealed,
        "id": copy_id,
        "chat_id": chat_id,
        "parent_id": copied.get(row.parent_id),
        "is_active": True,
        "is_selected": True,
        "scene_id": copied.get(row.scene_id),
        "updated_at": now(),
    }


def reseal(
    sealer: Sealer, column: Column, row_id: UUID, blob: bytes | None, copy_id: UUID
) -> bytes | None:
    """A sealed value of one row, sealed for its copy."""
    if blob is None:
        return None
    return sealer.seal_bytes(column, copy_id, sealer.open_bytes(column, row_id, blob))


def opens_scene(text: str) -> bool:
    """Whether a message begins with the mark of a new scene."""
    return _MARKER.match(text) is not None


def place_in_scene(message: Message, parent: Message | None) -> None:
    """Give a message its scene: its parent's, or one of its own.

    A scene begins with the first message, after a pause, after `MAX_SCENE_MESSAGES` messages, and where
    the text says so (`scene_id` is the message's own id then, as `seal_draft` leaves it).
    """
    goes_on = (
        message.scene_id != message.id
        and parent is not None
        and parent.scene_id is not None
        and parent.scene_place + 1 < MAX_SCENE_MESSAGES
        and message.created_at - parent.created_at <= MAX_SCENE_PAUSE
    )
    if goes_on and parent is not None:
        message.scene_id, message.scene_place = parent.scene_id, parent.scene_place + 1
    else:
        message.scene_id, message.scene_place = message.id, 0
