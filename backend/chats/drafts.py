"""Rows of messages, made: from a draft, or as copies of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

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
from backend.vault.sealing import Sealer


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A message before it has a place in a tree."""

    role: Role
    author: str
    text: str
    character_id: UUID | None = None
    persona_id: UUID | None = None
    status: MessageStatus = "complete"


def draft_message(
    sealer: Sealer, draft: Draft, *, unit: CountUnit, message_id: UUID | None = None
) -> Message:
    """A message's row, sealed and counted; `tree.attach` gives it its place."""
    message_id = message_id or new_id()
    at = now()
    tokens = unit.count(draft.author, draft.text)
    return Message(
        id=message_id,
        role=draft.role,
        scene_id=message_id if opens_scene(draft.text) else None,
        character_id=draft.character_id,
        persona_id=draft.persona_id,
        status=draft.status,
        tokens=tokens,
        token_counts=msgspec.json.encode({str(unit): tokens}).decode(),
        sealed_author=sealer.seal(MESSAGE_AUTHOR, message_id, draft.author),
        sealed_content=sealer.seal(MESSAGE_CONTENT, message_id, draft.text),
        created_at=at,
        updated_at=at,
    )


def copy_path(sealer: Sealer, path: Sequence[Message], chat_id: UUID) -> list[Message]:
    """A path from a root, copied for another chat: new ids, sealed anew, all of it active."""
    copies: list[Message] = []
    copied: dict[UUID, UUID] = {}
    for row in path:
        copy_id = copied[row.id] = new_id()
        copies.append(
            Message(
                id=copy_id,
                user_id=row.user_id,
                chat_id=chat_id,
                parent_id=copies[-1].id if copies else None,
                position=row.position,
                role=row.role,
                character_id=row.character_id,
                persona_id=row.persona_id,
                status=row.status,
                hidden=row.hidden,
                is_active=True,
                is_selected=True,
                tokens=row.tokens,
                path_tokens=row.path_tokens,
                token_counts=row.token_counts,
                scene_id=copied.get(row.scene_id) if row.scene_id else None,
                scene_place=row.scene_place,
                sealed_author=sealer.seal(
                    MESSAGE_AUTHOR, copy_id, sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author)
                ),
                sealed_content=sealer.seal(
                    MESSAGE_CONTENT,
                    copy_id,
                    sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content),
                ),
                sealed_thinking=(
                    sealer.seal(
                        MESSAGE_THINKING,
                        copy_id,
                        sealer.open(MESSAGE_THINKING, row.id, row.sealed_thinking),
                    )
                    if row.sealed_thinking
                    else None
                ),
                created_at=row.created_at,
                updated_at=now(),
            )
        )
    return copies
