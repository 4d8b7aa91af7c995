"""The members of an imported file that rows keep for an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Raw

from backend.chats.models import MESSAGE_SOURCE
from backend.chats.transfer import LogOrigin
from backend.transfer.models import IMPORTED_SOURCE
from backend.vault.sealing import Sealer

DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOrigin:
    """The sources of a message and of one swipe: JSON of the file's members, exactly as written.

    `swipes` are the digests of all swipes of the first message of a branch, in the order of its
    file. Siblings from other files are not among them.
    """

    message: bytes | None = None
    swipe: bytes | None = None
    swipes: Sequence[str] = ()

    def encode(self) -> bytes | None:
        members = {
            "message": self.message,
            "swipe": self.swipe,
            "swipes": msgspec.json.encode(self.swipes) if self.swipes else None,
        }
        kept = {name: Raw(value) for name, value in members.items() if value is not None}
        return msgspec.json.encode(kept) if kept else None

    @classmethod
    def decode(cls, data: bytes) -> MessageOrigin:
        """Read the JSON of a row, which a file may have brought. Unknown members are ignored."""
        try:
            members = msgspec.json.decode(data, type=dict[str, Raw])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return cls()
        message, swipe = members.get("message"), members.get("swipe")
        return cls(
            message=None if message is None else bytes(message),
            swipe=None if swipe is None else bytes(swipe),
            swipes=_decode_digests(members.get("swipes")),
        )

    def seal(self, sealer: Sealer, message_id: UUID) -> bytes | None:
        data = self.encode()
        return None if data is None else sealer.seal_bytes(MESSAGE_SOURCE, message_id, data)

    @classmethod
    def open(cls, sealer: Sealer, message_id: UUID, blob: bytes | None) -> MessageOrigin:
        if blob is None:
            return cls()
        return cls.decode(sealer.open_bytes(MESSAGE_SOURCE, message_id, blob))


def digest_swipe(text: str) -> str:
    """Return a digest that identifies a swipe among those of its message."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()


def _decode_digests(raw: Raw | None) -> Sequence[str]:
    try:
        return () if raw is None else msgspec.json.decode(raw, type=list[str])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOrigin:
    """The name of a chat's file, and the JSON of its header.

    `is_joined` is true for a branch that was joined to the tree of another file's chat. `messages`
    are `MessageOrigin`s in JSON of the messages that it shares with the chat, by position, if the
    chat's own differ.
    """

    name: str
    header: bytes | None = None
    is_joined: bool = False
    messages: Mapping[int, bytes] = field(default_factory=dict[int, bytes])

    def find_message(self, position: int) -> MessageOrigin | None:
        data = self.messages.get(position)
        return None if data is None else MessageOrigin.decode(data)

    def to_log(self, message_id: UUID | None) -> LogOrigin:
        """Return the part of an archive. `message_id` is the last message of the file's path."""
        return LogOrigin(
            name=self.name,
            header=None if self.header is None else self.header.decode(),
            is_joined=self.is_joined,
            message_id=message_id,
            messages={place: data.decode() for place, data in self.messages.items()},
        )

    def encode(self) -> bytes:
        members: dict[str, object] = {"name": self.name, "is_joined": self.is_joined}
        if self.messages:
            members["messages"] = {place: Raw(data) for place, data in self.messages.items()}
        return msgspec.json.encode(
            members if self.header is None else {**members, "header": Raw(self.header)}
        )

    @classmethod
    def decode(cls, data: bytes) -> ChatOrigin:
        members = msgspec.json.decode(data, type=dict[str, Raw])
        header = members.get("header")
        return cls(
            name=msgspec.json.decode(members["name"], type=str),
            header=None if header is None else bytes(header),
            is_joined=msgspec.json.decode(members["is_joined"], type=bool),
            messages={
                place: bytes(value)
                for place, value in msgspec.json.decode(
                    members.get("messages", b"{}"), type=dict[int, Raw]
                ).items()
            },
        )

    def seal(self, sealer: Sealer, row_id: UUID) -> bytes:
        return sealer.seal_bytes(IMPORTED_SOURCE, row_id, self.encode())

    @classmethod
    def open(cls, sealer: Sealer, row_id: UUID, blob: bytes) -> ChatOrigin:
        return cls.decode(sealer.open_bytes(IMPORTED_SOURCE, row_id, blob))
