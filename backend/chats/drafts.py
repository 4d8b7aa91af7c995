"""Rows of messages, made: from a draft, or as copies of others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy.orm import InstrumentedAttribute

from backend.chats.counting import CountUnit
from backend.chats.models import (
    MESSAGE_AUTHOR,
    MESSAGE_CONTENT,
    MESSAGE_THINKING,
    Message,
    MessageStatus,
)
from backend.chats.scenes import opens_scene
from backend.database.base import new_id, now
from backend.generation.model import Role
from backend.vault.sealing import Column, Sealer


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDraft:
    """A message before it has a place in a tree."""

    role: Role
    author: str
    text: str
    character_id: UUID | None = None
    persona_id: UUID | None = None
    status: MessageStatus = "complete"


@dataclass(frozen=True, slots=True)
class SealedDraft:
    """A draft, sealed and counted: plain values, so that a thread may make it.

    `scene_id` is the message's own id where its text opens a scene.
    """

    id: UUID
    draft: MessageDraft
    scene_id: UUID | None
    tokens: int
    token_counts: str
    sealed_author: bytes
    sealed_content: bytes
    at: datetime

    def to_message(self) -> Message:
        """A message's row; `tree.attach` gives it its place."""
        draft = self.draft
        return Message(
            id=self.id,
            role=draft.role,
            scene_id=self.scene_id,
            character_id=draft.character_id,
            persona_id=draft.persona_id,
            status=draft.status,
            tokens=self.tokens,
            token_counts=self.token_counts,
            sealed_author=self.sealed_author,
            sealed_content=self.sealed_content,
            created_at=self.at,
            updated_at=self.at,
        )


def sealed_draft(sealer: Sealer, draft: MessageDraft, *, unit: CountUnit) -> SealedDraft:
    """Seal and count a draft: some milliseconds where it is long."""
    message_id = new_id()
    tokens = unit.count(draft.author, draft.text)
    return SealedDraft(
        id=message_id,
        draft=draft,
        scene_id=message_id if opens_scene(draft.text) else None,
        tokens=tokens,
        token_counts=msgspec.json.encode({str(unit): tokens}).decode(),
        sealed_author=sealer.seal(MESSAGE_AUTHOR, message_id, draft.author),
        sealed_content=sealer.seal(MESSAGE_CONTENT, message_id, draft.text),
        at=now(),
    )


def draft_message(sealer: Sealer, draft: MessageDraft, *, unit: CountUnit) -> Message:
    """A short message's row, sealed and counted."""
    return sealed_draft(sealer, draft, unit=unit).to_message()


class PathCopier:
    """Copies a path from a root for another chat: new ids, sealed anew, all of it active.

    Attributes:
        copied: What each message's copy is, by the ids of both, so far.
    """

    def __init__(self, sealer: Sealer, chat_id: UUID) -> None:
        self._sealer = sealer
        self._chat_id = chat_id
        self._last: UUID | None = None
        self.copied: dict[UUID, UUID] = {}

    def copy(self, row: Any) -> dict[str, Any]:
        """The columns of a message's copy. Messages come in the order of the path."""
        copy_id = self.copied[row.id] = new_id()
        parent_id, self._last = self._last, copy_id
        kept = {column.key: getattr(row, column.key) for column in _KEPT}
        sealed = {
            column.name: self._resealed(column, row.id, getattr(row, column.name), copy_id)
            for column in (MESSAGE_AUTHOR, MESSAGE_CONTENT, MESSAGE_THINKING)
        }
        return {
            **kept,
            **sealed,
            "id": copy_id,
            "chat_id": self._chat_id,
            "parent_id": parent_id,
            "is_active": True,
            "is_selected": True,
            "scene_id": self.copied.get(row.scene_id) if row.scene_id else None,
            "updated_at": now(),
        }

    def _resealed(
        self, column: Column, row_id: UUID, blob: bytes | None, copy_id: UUID
    ) -> bytes | None:
        if blob is None:
            return None
        data = self._sealer.open_bytes(column, row_id, blob)
        return self._sealer.seal_bytes(column, copy_id, data)


_KEPT: tuple[InstrumentedAttribute[Any], ...] = (
    Message.user_id,
    Message.position,
    Message.role,
    Message.character_id,
    Message.persona_id,
    Message.status,
    Message.hidden,
    Message.tokens,
    Message.path_tokens,
    Message.token_counts,
    Message.scene_place,
    Message.created_at,
)
COPIED: tuple[InstrumentedAttribute[Any], ...] = (
    *_KEPT,
    Message.id,
    Message.scene_id,
    Message.sealed_author,
    Message.sealed_content,
    Message.sealed_thinking,
)
"""What a copy is made of."""
