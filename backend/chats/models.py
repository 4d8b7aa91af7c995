"""Tables of chats and their message trees."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec
from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, ListedOwnerId, OwnerId, PrimaryId, UpdatedAt
from backend.generation.model import Role
from backend.vault.sealing import Column


class PromptCutNotice(msgspec.Struct, frozen=True, tag_field="kind", tag="prompt_cut"):
    """The model's server cut the prompt of the reply and did not say so.

    `sent` is an estimate of the whole prompt and `read` the part that the server reports, in the
    model's tokens.
    """

    model: str
    sent: int
    read: int


class ReplyCutNotice(msgspec.Struct, frozen=True, tag_field="kind", tag="reply_cut"):
    """The model stopped before the reply was complete.

    `reason` is `length` if the reply or the context window reached its limit, and `safety` if the
    provider's content filter stopped it.
    """

    reason: Literal["length", "safety"]


Notice = PromptCutNotice | ReplyCutNotice


def encode_notices(notices: Sequence[Notice]) -> str | None:
    """Return notices as the column of a message holds them."""
    return msgspec.json.encode(notices).decode() if notices else None


def decode_notices(stored: str | None) -> list[Notice]:
    """Return the notices of a message's column."""
    return msgspec.json.decode(stored, type=list[Notice]) if stored else []


MessageStatus = Literal["complete", "streaming", "interrupted", "failed"]


class Chat(Base):
    """A chat. `leaf_id` is the last message of its active path; null while it has none.

    `count_unit` names how its messages' tokens were counted (see `generation.tokens`).
    `chronicle_id` is the chronicle whose events it remembers. `chronicle_enabled` is its owner's
    consent to have what happens written down there; what was said before `chronicle_since`, when
    that was given last, is not part of it. `campaign_id` is the campaign that it is a session of.
    """

    __tablename__ = "chats"
    __table_args__ = (Index(None, "user_id", "id"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    sealed_title: Mapped[bytes]
    sealed_settings: Mapped[bytes | None]
    sealed_variables: Mapped[bytes | None]
    persona_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("personas.id", ondelete="SET NULL"), index=True
    )
    chronicle_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("chronicles.id", ondelete="SET NULL"), index=True
    )
    chronicle_enabled: Mapped[bool] = mapped_column(default=False)
    chronicle_since: Mapped[datetime | None]
    campaign_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("campaigns.id", ondelete="SET NULL"), index=True
    )
    leaf_id: Mapped[UUID | None]
    count_unit: Mapped[str]
    revision: Mapped[int] = mapped_column(default=1)
    hidden_changes: Mapped[int] = mapped_column(default=0, server_default="0")
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


CHAT_TITLE = Column("chats", "sealed_title")
CHAT_SETTINGS = Column("chats", "sealed_settings")
CHAT_VARIABLES = Column("chats", "sealed_variables")


class ChatCharacter(Base):
    """A character that takes part in a chat."""

    __tablename__ = "chat_characters"

    chat_id: Mapped[UUID] = mapped_column(
        ForeignKey("chats.id", ondelete="CASCADE"), primary_key=True
    )
    character_id: Mapped[UUID] = mapped_column(
        ForeignKey("characters.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    place: Mapped[int]


class Message(Base):
    """A node of a chat's tree.

    `position` is its depth, from 0. `is_selected` marks, among siblings, the one that the path
    takes, or last took, through their parent; `is_active` that the active path runs through it.
    `tokens` is what it costs as it is sent, in the chat's `count_unit`; `path_tokens` the sum from
    the root to it, of what is not hidden. `token_counts` keeps counts in other units (JSON).
    `scene_id` is the message that opens its scene, and `scene_place` how far into it this one is.
    `audience` says who may know it: `public`, `gm`, or ids of a campaign's entities between blanks.
    `sealed_typed` is the user's line before its macros were expanded; null if there were none.
    `sealed_injected_context` is what the campaign put into the prompt of this reply. `notices` are
    notices about how it came about (JSON, in the clear: numbers, and the model's id).
    """

    __tablename__ = "messages"
    # The conditions of the partial indexes stand as SQLAlchemy spells them in queries: SQLite uses
    # such an index only where the query repeats its condition word for word.
    __table_args__ = (
        Index(None, "chat_id", "position"),
        Index(None, "scene_id"),
        Index(
            "ix_messages_active_path",
            "chat_id",
            "path_tokens",
            sqlite_where=text("is_active = 1"),
            postgresql_where=text("is_active"),
        ),
        Index(
            "ix_messages_active_position",
            "chat_id",
            "position",
            sqlite_where=text("is_active = 1"),
            postgresql_where=text("is_active"),
        ),
    )

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    parent_id: Mapped[UUID | None] = mapped_column(ForeignKey("messages.id"), index=True)
    position: Mapped[int]
    role: Mapped[Role] = mapped_column(String)
    character_id: Mapped[UUID | None]
    persona_id: Mapped[UUID | None]
    status: Mapped[MessageStatus] = mapped_column(String, default="complete")
    hidden: Mapped[bool] = mapped_column(default=False)
    is_active: Mapped[bool] = mapped_column(default=False)
    is_selected: Mapped[bool] = mapped_column(default=False)
    tokens: Mapped[int]
    path_tokens: Mapped[int]
    token_counts: Mapped[str] = mapped_column(default="{}")
    scene_id: Mapped[UUID | None]
    scene_place: Mapped[int] = mapped_column(default=0)
    sealed_author: Mapped[bytes]
    sealed_content: Mapped[bytes]
    sealed_typed: Mapped[bytes | None]
    sealed_thinking: Mapped[bytes | None]
    sealed_injected_context: Mapped[bytes | None]
    audience: Mapped[str] = mapped_column(default="public", server_default="public")
    notices: Mapped[str | None]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


MESSAGE_AUTHOR = Column("messages", "sealed_author")
MESSAGE_CONTENT = Column("messages", "sealed_content")
MESSAGE_TYPED = Column("messages", "sealed_typed")
MESSAGE_THINKING = Column("messages", "sealed_thinking")
MESSAGE_CONTEXT = Column("messages", "sealed_injected_context")
