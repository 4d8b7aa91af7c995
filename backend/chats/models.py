"""Tables of chats and their message trees."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec
from sqlalchemy import ForeignKey, Index, String, text, true
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


class PassedNotice(msgspec.Struct, frozen=True, tag_field="kind", tag="passed"):
    """The character had nothing to say. The message is hidden and has no text."""


Notice = PromptCutNotice | ReplyCutNotice | PassedNotice


def encode_notices(notices: Sequence[Notice]) -> str | None:
    return msgspec.json.encode(notices).decode() if notices else None


def decode_notices(stored: str | None) -> list[Notice]:
    return msgspec.json.decode(stored, type=list[Notice]) if stored else []


MessageStatus = Literal["complete", "streaming", "interrupted", "failed"]

Presence = Literal["present", "absent", "muted"]
"""The presence of a character in the scene. A muted one hears everything, and speaks on request."""


TitleOrigin = Literal["user", "characters", "first_line", "model"]
"""The source of a chat's title. A title that is not the user's is replaced by a better one."""


class Chat(Base):
    """A chat. `leaf_id` is the last message of its active path, or null if it has no messages.

    `count_unit` is the `CountUnit` of its messages. The chat remembers the events of the chronicle
    `chronicle_id`. `chronicle_enabled` is the owner's consent to record events there; messages
    before `chronicle_since`, the time of the last consent, are not recorded. The chat is a session
    of the campaign `campaign_id`. Pinned chats come first in lists, archived ones have a list of
    their own. While `is_ready` is false, an import is storing it, or its rows are being deleted: it
    is in no list, and no route finds it.
    """

    __tablename__ = "chats"
    __table_args__ = (
        Index(None, "user_id", "id"),
        Index(
            "ix_chats_hidden",
            "updated_at",
            sqlite_where=text("is_ready = 0"),
            postgresql_where=text("NOT is_ready"),
        ),
    )

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
    is_ready: Mapped[bool] = mapped_column(default=True, server_default=true())
    pinned_at: Mapped[datetime | None]
    archived_at: Mapped[datetime | None]
    title_origin: Mapped[TitleOrigin] = mapped_column(String, default="user", server_default="user")
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


CHAT_TITLE = Column("chats", "sealed_title")
CHAT_SETTINGS = Column("chats", "sealed_settings")
CHAT_VARIABLES = Column("chats", "sealed_variables")


class ChatCharacter(Base):
    """A member of a chat.

    One that is not there from the start joins with a message of the tree.
    """

    __tablename__ = "chat_characters"

    chat_id: Mapped[UUID] = mapped_column(
        ForeignKey("chats.id", ondelete="CASCADE"), primary_key=True
    )
    character_id: Mapped[UUID] = mapped_column(
        ForeignKey("characters.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    place: Mapped[int]
    is_from_start: Mapped[bool] = mapped_column(default=True, server_default=true())


class Message(Base):
    """A node of a chat's tree.

    `position` is its depth, from 0. `is_active` marks the active path. `is_selected` marks the
    sibling on the active path, or on it most recently. `tokens` is its cost in a prompt, in the
    chat's `count_unit`. `path_tokens` is the sum from the root to it, without hidden messages.
    `token_counts` has counts in other units (JSON).

    `scene_id` is the first message of its scene, and `scene_place` its place in it. `audience` is
    `public`, `gm`, or ids of characters or of a campaign's entities, separated by spaces. A message
    with a `presence` says that `character_id` joins, leaves or is muted; it is hidden, because the
    prompt says who is there in another place. `sealed_typed` is the
    user's line before macro expansion, or null if it had no macros. `sealed_injected_context` is
    the campaign's part of the prompt of this reply. `sealed_source` is the JSON of an imported
    file's members that have no column, for an export. `notices` describe problems of the reply
    (JSON, not encrypted: numbers and the model's id). `text_digest` is a keyed digest of the text,
    by which a client's message is recognised. It is null for messages without one so far. A message
    with `removed_at` has no text and is hidden. It stays in the tree, so that its siblings and the
    messages below it keep their place.
    """

    __tablename__ = "messages"
    # SQLite uses a partial index only if a query repeats its condition literally, so the conditions
    # are spelled as in SQLAlchemy's queries.
    __table_args__ = (
        Index(None, "chat_id", "position"),
        Index(None, "scene_id"),
        Index(
            "ix_messages_text_digest",
            "user_id",
            "text_digest",
            sqlite_where=text("text_digest IS NOT NULL"),
            postgresql_where=text("text_digest IS NOT NULL"),
        ),
        Index(
            "ix_messages_undigested",
            "chat_id",
            sqlite_where=text("text_digest IS NULL"),
            postgresql_where=text("text_digest IS NULL"),
        ),
        Index(
            "ix_messages_presence",
            "chat_id",
            "position",
            sqlite_where=text("presence IS NOT NULL"),
            postgresql_where=text("presence IS NOT NULL"),
        ),
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
    presence: Mapped[Presence | None] = mapped_column(String)
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
    sealed_source: Mapped[bytes | None] = mapped_column(deferred=True)
    audience: Mapped[str] = mapped_column(default="public", server_default="public")
    notices: Mapped[str | None]
    text_digest: Mapped[bytes | None]
    removed_at: Mapped[datetime | None]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


MESSAGE_AUTHOR = Column("messages", "sealed_author")
MESSAGE_CONTENT = Column("messages", "sealed_content")
MESSAGE_TYPED = Column("messages", "sealed_typed")
MESSAGE_THINKING = Column("messages", "sealed_thinking")
MESSAGE_CONTEXT = Column("messages", "sealed_injected_context")
MESSAGE_SOURCE = Column("messages", "sealed_source")


class StoredFile(Base):
    """A picture or file of messages, stored once for all messages with the same content.

    `digest` is the SHA-256 of the content, keyed with the user's key. `sealed_description` is the
    JSON of its media type and its size in bytes. Until `waits_until`, an uploaded file is kept
    without a message.
    """

    __tablename__ = "stored_files"
    __table_args__ = (
        Index(None, "user_id", "digest", unique=True),
        Index(
            "ix_stored_files_waits_until",
            "waits_until",
            sqlite_where=text("waits_until IS NOT NULL"),
            postgresql_where=text("waits_until IS NOT NULL"),
        ),
    )

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    digest: Mapped[bytes]
    sealed_description: Mapped[bytes]
    sealed_data: Mapped[bytes]
    waits_until: Mapped[datetime | None]
    created_at: Mapped[CreatedAt]


FILE_DESCRIPTION = Column("stored_files", "sealed_description")
FILE_DATA = Column("stored_files", "sealed_data")


class MessageFile(Base):
    """A file of a message, at its place among them.

    `sealed_reference` is the JSON of its name and of the path in the imported file. `file_id` is
    null if the content was missing there.
    """

    __tablename__ = "message_files"

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    message_id: Mapped[UUID] = mapped_column(
        ForeignKey("messages.id", ondelete="CASCADE"), index=True
    )
    file_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("stored_files.id", ondelete="SET NULL"), index=True
    )
    place: Mapped[int]
    sealed_reference: Mapped[bytes]


FILE_REFERENCE = Column("message_files", "sealed_reference")


class Background(Base):
    """The picture behind the messages of a chat, or of a character's chats without one."""

    __tablename__ = "backgrounds"

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    chat_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("chats.id", ondelete="CASCADE"), unique=True
    )
    character_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("characters.id", ondelete="CASCADE"), unique=True
    )
    media_type: Mapped[str]
    sealed_image: Mapped[bytes]
    created_at: Mapped[CreatedAt]


BACKGROUND_IMAGE = Column("backgrounds", "sealed_image")
