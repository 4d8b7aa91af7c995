"""The messages of stored paths as columns, and a cache of them.

A path of 5,000 messages as rows with ids and names takes longer to build than all else that
recognises a conversation. Columns of bytes are read, extended and compared as a whole.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, overload
from uuid import UUID

from sqlalchemy import bindparam, case, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.types import NullType

from backend.accounts.events import UserSignedOut
from backend.chats.models import Message
from backend.chats.text_digests import DIGEST_BYTES
from backend.chats.tree import find_last_leaf, make_ancestors
from backend.core.plain_cache import PlainCache
from backend.database.types import Id
from backend.openai_api.contracts import ChatVersion, StoredLine

ID_BYTES: Final = 16

MAX_CACHED_BYTES: Final = 16 * 1024 * 1024
KEEP_SECONDS: Final = 3600.0

NO_DIGEST: Final = bytes(DIGEST_BYTES)
"""The digest of a message without one."""

_HIDDEN: Final = re.compile("[A-Z]")
_SYSTEM: Final = re.compile("[Ss]")
_ROLES: Final[Mapping[str, Literal["user", "assistant", "system"]]] = {
    "u": "user",
    "a": "assistant",
    "s": "system",
}


@dataclass(frozen=True, slots=True)
class MessagePath:
    """A path from the root: ids, digests and flags of its messages, each joined.

    A flag is the first letter of the message's role, in upper case if the message is hidden. The
    first `active` messages are on the active path.
    """

    ids: bytes = b""
    digests: bytes = b""
    flags: str = ""
    active: int = 0

    def __len__(self) -> int:
        return len(self.flags)

    @property
    def has_hidden(self) -> bool:
        return not self.flags.islower() and len(self) > 0

    def list_hidden(self) -> list[int]:
        """Return the places of hidden messages."""
        if not self.has_hidden:
            return []
        return [found.start() for found in _HIDDEN.finditer(self.flags)]

    def list_system(self) -> list[int]:
        """Return the places of system messages, which are no lines of a client.

        They are changes of presence, briefings and narration, and removed messages. They stay where
        they are.
        """
        return [found.start() for found in _SYSTEM.finditer(self.flags)]

    def find_line(self, place: int) -> int:
        """Return the first place from `place` on that is not a system message."""
        while place < len(self) and self.get_role(place) == "system":
            place += 1
        return place

    def without(self, places: Sequence[int]) -> MessagePath:
        """Return the path without some messages, in ascending order, as if they did not exist."""
        parts = list(pairwise([-1, *places, len(self)]))
        spans = [(before + 1, end) for before, end in parts]
        ids, digests = ID_BYTES, DIGEST_BYTES
        return MessagePath(
            b"".join([self.ids[first * ids : end * ids] for first, end in spans]),
            b"".join([self.digests[first * digests : end * digests] for first, end in spans]),
            "".join([self.flags[first:end] for first, end in spans]),
            self.active - bisect_left(places, self.active),
        )

    def contains(self, message_id: UUID) -> bool:
        at = self.ids.find(message_id.bytes)
        while at % ID_BYTES and at >= 0:
            at = self.ids.find(message_id.bytes, at + 1)
        return at >= 0

    def get_id(self, place: int) -> UUID:
        return UUID(bytes=self.ids[ID_BYTES * place : ID_BYTES * (place + 1)])

    def get_digest(self, place: int) -> bytes:
        return self.digests[DIGEST_BYTES * place : DIGEST_BYTES * (place + 1)]

    def get_role(self, place: int) -> Literal["user", "assistant", "system"]:
        return _ROLES[self.flags[place].lower()]

    def is_hidden(self, place: int) -> bool:
        return self.flags[place].isupper()

    def get_line(self, place: int) -> StoredLine:
        return StoredLine(
            id=self.get_id(place),
            parent_id=self.get_id(place - 1) if place else None,
            position=place,
            role=self.get_role(place),
            hidden=self.is_hidden(place),
            is_active=place < self.active,
            digest=self.get_digest(place),
        )

    def list_digests(self) -> list[bytes]:
        size = DIGEST_BYTES
        return [self.digests[at : at + size] for at in range(0, len(self.digests), size)]

    def cut(self, count: int) -> MessagePath:
        """Return the first messages."""
        return MessagePath(
            self.ids[: ID_BYTES * count],
            self.digests[: DIGEST_BYTES * count],
            self.flags[:count],
            min(self.active, count),
        )

    def extend(self, rows: Sequence[Any], *, are_active: bool) -> MessagePath:
        """Return the path with the rows of the messages after it (id, role, hidden, digest)."""
        # The driver of SQLite returns bytes, that of PostgreSQL a UUID.
        ids = [row[0] if isinstance(row[0], bytes) else row[0].bytes for row in rows]
        flags = [row[1][0].upper() if row[2] else row[1][0] for row in rows]
        return MessagePath(
            self.ids + b"".join(ids),
            self.digests + b"".join([row[3] or NO_DIGEST for row in rows]),
            self.flags + "".join(flags),
            self.active + len(rows) if are_active else self.active,
        )


class PathLines(Mapping[int, StoredLine]):
    """The stored messages of a client's lines, made when they are asked for."""

    def __init__(self, path: MessagePath, places: Mapping[int, int]) -> None:
        self._path = path
        self._places = places

    def __getitem__(self, line: int) -> StoredLine:
        return self._path.get_line(self._places[line])

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class PathEnd(Sequence[StoredLine]):
    """The messages of a path from a place on, made when they are asked for."""

    def __init__(self, path: MessagePath, first: int) -> None:
        self._path = path
        self._places = range(first, len(path))

    @overload
    def __getitem__(self, index: int) -> StoredLine: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[StoredLine]: ...

    def __getitem__(self, index: int | slice) -> StoredLine | Sequence[StoredLine]:
        if isinstance(index, slice):
            return [self._path.get_line(place) for place in self._places[index]]
        return self._path.get_line(self._places[index])

    def __len__(self) -> int:
        return len(self._places)


class LineBlock(Mapping[int, int]):
    """Maps the first lines of a client to consecutive messages of a path.

    `hidden` are the places of messages that do not count, in ascending order. `start` is the first
    message among the others.
    """

    def __init__(self, start: int, count: int, hidden: Sequence[int] = ()) -> None:
        self._start = start
        self._lines = range(count)
        self._before = [place - number for number, place in enumerate(hidden)]

    def __getitem__(self, line: int) -> int:
        if line not in self._lines:
            raise KeyError(line)
        place = self._start + line
        return place + bisect_right(self._before, place)

    def __iter__(self) -> Iterator[int]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


_ROLE = case((Message.removed_at.is_not(None), "system"), else_=Message.role)
"""A removed message stays where it is, like a system message, and no line of a client is it."""

_COLUMNS = tuple(
    # With `NullType`, SQLAlchemy does not convert the driver's values.
    type_coerce(column, NullType())
    for column in (Message.id, _ROLE, Message.hidden, Message.text_digest)
)
_ACTIVE = (
    select(*_COLUMNS)
    .where(
        Message.chat_id == bindparam("chat_id"),
        Message.is_active,
        Message.position >= bindparam("first"),
    )
    .order_by(Message.position)
)


def _make_branch() -> Any:
    climb = make_ancestors(bindparam("leaf", type_=Id()), inactive=True)
    return (
        select(*_COLUMNS, climb.c.is_active, climb.c.position)
        .join(climb, climb.c.id == Message.id)
        .order_by(climb.c.position)
    )


_BRANCH = _make_branch()
"""The statements are built once, because building takes longer than running."""


@dataclass(frozen=True, slots=True)
class _CachedPath:
    """The active path of a chat without its last message, because its text may be continued."""

    hidden_changes: int
    path: MessagePath


class PathCache(UserSignedOut):
    """The active paths of chats.

    The ancestors of a message never change. Their texts and flags are current while the chat's
    `hidden_changes` is the same.
    """

    def __init__(self) -> None:
        self._kept: PlainCache[_CachedPath] = PlainCache(
            most=MAX_CACHED_BYTES, seconds=KEEP_SECONDS
        )

    async def load(self, session: AsyncSession, chat: ChatVersion) -> MessagePath:
        """Return the active path. Reads only the messages after the cached ones, and the last."""
        kept = self._kept.get(chat.user_id, chat.id)
        path = MessagePath()
        if kept is not None and kept.hidden_changes == chat.hidden_changes:
            path = kept.path
        first = max(0, len(path) - 1)
        rows = (await session.execute(_ACTIVE, {"chat_id": chat.id, "first": first})).all()
        read = MessagePath().extend(rows, are_active=True)
        if len(path) and read.ids[:ID_BYTES] != path.ids[-ID_BYTES:]:
            # The path has moved to another branch.
            rows = (await session.execute(_ACTIVE, {"chat_id": chat.id, "first": 0})).all()
            return self._keep(chat, MessagePath().extend(rows, are_active=True))
        return self._keep(chat, path.cut(first).extend(rows, are_active=True))

    def _keep(self, chat: ChatVersion, path: MessagePath) -> MessagePath:
        kept = path.cut(len(path) - 1) if len(path) else path
        if len(kept) and NO_DIGEST not in kept.digests:
            size = len(kept.ids) + len(kept.digests) + len(kept.flags)
            self._kept.put(chat.user_id, chat.id, _CachedPath(chat.hidden_changes, kept), size=size)
        return path

    def user_signed_out(self, user_id: UUID) -> None:
        self._kept.forget(user_id)

    def sweep(self) -> None:
        self._kept.sweep()


async def load_branch(session: AsyncSession, active: MessagePath, message_id: UUID) -> MessagePath:
    """Return the path through an inactive message, to the last leaf below it."""
    leaf = await find_last_leaf(session, message_id)
    rows = (await session.execute(_BRANCH, {"leaf": leaf})).all()
    own = [row for row in rows if not row.is_active]
    junction = own[0].position if own else len(active)
    return active.cut(junction).extend(own, are_active=False)
