"""Views of chats: the title, the tags, and the beginning of the last message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats import repository
from backend.chats.models import CHAT_SETTINGS, CHAT_TITLE, MESSAGE_CONTENT, Chat
from backend.chats.repository import LastMessage
from backend.chats.schemas import ChatView
from backend.core.cpu_pool import SEALED_FACTOR
from backend.http.schemas import make_struct
from backend.vault.sealing import Sealer

PREVIEW_CHARACTERS: Final = 160

_VIEW_SIZE: Final = 60
"""The work for one view with short texts, in characters to count."""


class _StoredTags(msgspec.Struct):
    """The tags in a chat's settings. The other settings are not decoded."""

    tags: list[str] = []


_TAGS = msgspec.json.Decoder(_StoredTags)


class ChatListRows:
    """Rows of chats, with their members and their last messages."""

    def __init__(
        self,
        chats: Sequence[Chat],
        members: Mapping[UUID, list[UUID]],
        last: Mapping[UUID, LastMessage],
    ) -> None:
        self._chats = chats
        self._members = members
        self._last = last

    @classmethod
    async def load(cls, session: AsyncSession, chats: Sequence[Chat]) -> ChatListRows:
        ids = [chat.id for chat in chats]
        return cls(
            chats,
            await repository.list_character_ids(session, ids),
            await repository.find_last_messages(session, ids),
        )

    @property
    def size(self) -> int:
        """The work of `open`, in characters to count."""
        sealed = sum(len(each.sealed_content) for each in self._last.values())
        sealed += sum(len(chat.sealed_settings or b"") for chat in self._chats)
        return _VIEW_SIZE * len(self._chats) + sealed // SEALED_FACTOR

    def open(self, sealer: Sealer) -> list[ChatView]:
        """Return the views. CPU-bound."""
        return [self._open(sealer, chat) for chat in self._chats]

    def _open(self, sealer: Sealer, chat: Chat) -> ChatView:
        last, preview = self._last.get(chat.id), ""
        if last is not None:
            preview = make_preview(sealer.open(MESSAGE_CONTENT, last.id, last.sealed_content))
        return make_struct(
            ChatView,
            chat,
            title=sealer.open(CHAT_TITLE, chat.id, chat.sealed_title),
            character_ids=self._members.get(chat.id, []),
            tags=_read_tags(sealer, chat),
            preview=preview,
            last_message_at=last.created_at if last else None,
        )


def make_preview(text: str) -> str:
    """Return the beginning of a text on one line."""
    # So many words have at least so many characters.
    words = text.split(None, PREVIEW_CHARACTERS)[:PREVIEW_CHARACTERS]
    return " ".join(words)[:PREVIEW_CHARACTERS].rstrip()


def clean_tags(tags: Iterable[str]) -> list[str]:
    """Return tags without empty ones, and each only once."""
    stripped = (" ".join(tag.split()) for tag in tags)
    return list({tag.casefold(): tag for tag in stripped if tag}.values())


def _read_tags(sealer: Sealer, chat: Chat) -> list[str]:
    if chat.sealed_settings is None:
        return []
    data = sealer.open_bytes(CHAT_SETTINGS, chat.id, chat.sealed_settings)
    return _TAGS.decode(data).tags
