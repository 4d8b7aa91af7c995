"""Shapes of the chats' part of the API."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from backend.chats.models import MessageStatus
from backend.generation.model import Role

Title = Annotated[str, msgspec.Meta(max_length=300)]


class NewChat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A chat to open. The first character's greetings become its first message and its swipes."""

    character_ids: Annotated[list[UUID], msgspec.Meta(max_length=20)] = []
    persona_id: UUID | None = None
    title: Title | None = None


class ChatView(msgspec.Struct, kw_only=True):
    """A chat as it is listed."""

    id: UUID
    title: str
    character_ids: list[UUID]
    persona_id: UUID | None
    leaf_id: UUID | None
    revision: int
    created_at: datetime
    updated_at: datetime


class ChatPatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What can be changed about a chat beside its settings."""

    title: Title = ""
    persona_id: UUID | None = None
    character_ids: Annotated[list[UUID], msgspec.Meta(max_length=20)] = []


class MessageView(msgspec.Struct, kw_only=True):
    """A message. `sibling` counts from 1 among `sibling_count` swipes.

    `shown` and `shown_thinking` are what regex scripts show in the place of `text` and `thinking`;
    null where they change nothing.
    """

    id: UUID
    chat_id: UUID
    parent_id: UUID | None
    position: int
    role: Role
    author: str
    character_id: UUID | None
    persona_id: UUID | None
    text: str
    thinking: str | None
    status: MessageStatus
    hidden: bool
    is_active: bool
    tokens: int
    sibling: int
    sibling_count: int
    created_at: datetime
    updated_at: datetime
    shown: str | None = None
    shown_thinking: str | None = None


class MessagePage(msgspec.Struct, kw_only=True):
    """A stretch of the active path, newest last. `previous` is the `before` of the one above."""

    items: list[MessageView]
    previous: int | None


class MessagePatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`text` adds a sibling and makes it active; `hidden` changes the message itself."""

    text: str | msgspec.UnsetType = msgspec.UNSET
    hidden: bool | msgspec.UnsetType = msgspec.UNSET


class Activation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where the path goes: `follow` goes on below the message to where it last ended."""

    follow: bool = True


class Deleted(msgspec.Struct, kw_only=True):
    """How many messages went, and where the active path ends now."""

    deleted: int
    leaf_id: UUID | None


class Fork(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The message at whose end the new chat's path ends."""

    message_id: UUID
    title: Title | None = None
