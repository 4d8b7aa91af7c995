"""Build rows of messages, from drafts or as copies, and assign messages to scenes.

A scene is a coherent section of the story. Scenes are found without a model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

import msgspec

from backend.chats.models import (
    MESSAGE_AUTHOR,
    MESSAGE_CONTENT,
    MESSAGE_CONTEXT,
    MESSAGE_SOURCE,
    MESSAGE_THINKING,
    MESSAGE_TYPED,
    Message,
    MessageStatus,
)
from backend.chats.text_digests import TextDigester
from backend.chats.token_counting import CountUnit
from backend.database.base import new_id, now
from backend.generation.model import Role
from backend.vault.sealing import Column, Sealer

MAX_SCENE_PAUSE = timedelta(hours=4)
"""A message after a longer pause begins a new scene."""

MAX_SCENE_MESSAGES = 40

_SEPARATOR = r"[*_~=\-–—#•·]"  # noqa: RUF001  # dashes of every length
_MARKER = re.compile(
    rf"\s*+(?:(?:{_SEPARATOR}\s*+){{2}}(?>(?:{_SEPARATOR}[^\S\n]*+)+)(?:\n|\Z)"
    r"|#{0,6}+\s*+[*_]*+(?:chapter|scene|act|part)\s++\w)",
    re.IGNORECASE,
)
"""A line of stars or dashes, or a heading such as `Chapter 3`, at the start of a message.

The quantifiers are possessive, so that a long run of white space is read once.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDraft:
    """A message that has no place in a tree yet.

    `typed` is the text before macro expansion, or None if it had no macros.
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
    MESSAGE_SOURCE,
)


def seal_draft(sealer: Sealer, draft: MessageDraft, *, unit: CountUnit) -> dict[str, Any]:
    """Return the columns of a message, sealed and counted. `tree.attach_message` sets its place.

    Takes some milliseconds if the text is long. The values are plain, so a thread may build them.
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
        "sealed_typed": seal_optional(sealer, MESSAGE_TYPED, message_id, draft.typed),
        "text_digest": TextDigester(sealer).compute(draft.role, draft.text),
        "created_at": at,
        "updated_at": at,
    }


def make_message(sealer: Sealer, draft: MessageDraft, *, unit: CountUnit) -> Message:
    """Build the row of a short message, sealed and counted."""
    return Message(**seal_draft(sealer, draft, unit=unit))


def copy_row(sealer: Sealer, row: Any, chat_id: UUID, copied: dict[UUID, UUID]) -> dict[str, Any]:
    """Return the columns of a message's copy for another chat, with a new id and sealed again.

    `row` has all columns. Call it for parents before their children. `copied` maps messages to
    their copies and is extended.
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
        "scene_id": copied.get(row.scene_id),
        "updated_at": now(),
    }


def seal_optional(sealer: Sealer, column: Column, row_id: UUID, text: str | None) -> bytes | None:
    return None if text is None else sealer.seal(column, row_id, text)


def reseal(
    sealer: Sealer, column: Column, row_id: UUID, blob: bytes | None, copy_id: UUID
) -> bytes | None:
    """Seal a value again for a copy of its row."""
    if blob is None:
        return None
    return sealer.seal_bytes(column, copy_id, sealer.open_bytes(column, row_id, blob))


def opens_scene(text: str) -> bool:
    """True if a message begins with the mark of a new scene."""
    return _MARKER.match(text) is not None


class ScenePlace(Protocol):
    """The scene and the time of a message, with or without its row."""

    id: Any
    presence: Any
    scene_id: Any
    scene_place: Any
    created_at: Any


def place_in_scene(message: ScenePlace, parent: ScenePlace | None) -> None:
    """Assign a message to its parent's scene, or to a new one.

    A new scene begins with the first message, after a pause, after `MAX_SCENE_MESSAGES` messages,
    and at a mark in the text. For a mark, `seal_draft` has set `scene_id` to the message's own id.
    A message with which someone joins or leaves is a scene of its own: all messages of a scene were
    heard by the same characters.
    """
    continues = (
        message.scene_id != message.id
        and message.presence is None
        and parent is not None
        and parent.presence is None
        and parent.scene_id is not None
        and parent.scene_place + 1 < MAX_SCENE_MESSAGES
        and message.created_at - parent.created_at <= MAX_SCENE_PAUSE
    )
    if continues and parent is not None:
        message.scene_id, message.scene_place = parent.scene_id, parent.scene_place + 1
    else:
        message.scene_id, message.scene_place = message.id, 0
