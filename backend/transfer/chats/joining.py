"""Find the place of a branch in the tree of its main chat.

SillyTavern copies a chat for each branch and checkpoint. The copy shares its first messages with
the original, and becomes a branch below the last of them here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats import repository
from backend.chats.models import MESSAGE_CONTENT, Chat, Message
from backend.core.cpu_pool import CpuPool, check_stopped
from backend.database.engine import Database
from backend.transfer.chats.origin import MessageOrigin, digest_swipe
from backend.transfer.chats.tree_rows import TreePlace
from backend.transfer.formats.chat_file import ChatReading, FileMessage
from backend.vault.sealing import Sealer

LEVELS_PER_PAGE: Final = 100
MAX_SIBLINGS: Final = 50_000
"""Maximum number of messages that are compared on `LEVELS_PER_PAGE` levels of the tree."""

MAX_DIFFERENCE_BYTES: Final = 1024 * 1024
"""Limit for the members of shared messages that are kept twice. Usually only the last differs."""

_COLUMNS = (
    Message.id,
    Message.parent_id,
    Message.position,
    Message.role,
    Message.is_active,
    Message.path_tokens,
    Message.scene_id,
    Message.scene_place,
    Message.created_at,
    Message.sealed_content,
    Message.sealed_source,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Junction:
    """The last message that a branch shares with a chat.

    `rest` is the first message that differs, without the swipes that are there already. None if the
    chat contains the whole branch. `swipes` are the digests of all its swipes. `messages` are the
    origins of the shared messages that differ, by position.
    """

    chat: Chat
    last: TreePlace
    rest: FileMessage | None
    swipes: Sequence[str]
    messages: Mapping[int, bytes]


class BranchFinder:
    """Compares the messages of a file with all branches of a chat, until they differ."""

    def __init__(self, database: Database, pool: CpuPool, sealer: Sealer, chat_id: UUID) -> None:
        self._database = database
        self._pool = pool
        self._sealer = sealer
        self._chat_id = chat_id

    async def find(self, reading: ChatReading) -> tuple[Junction | None, list[FileMessage]]:
        """Return the junction, or None and the messages that were read from the file.

        There is no junction if the first messages differ or the chat has been deleted.
        """
        walk = _Walk(self._sealer)
        while True:
            async with self._database.read() as session:
                chat = await repository.find_chat(
                    session, self._chat_id, owner_id=self._sealer.user_id
                )
                rows: Sequence[Any] = ()
                if chat is not None:
                    rows = await _load_levels(session, chat, walk.level)
            work = partial(walk.follow, reading, rows)
            is_over = await self._pool.run(self._sealer.user_id, work, is_job=True)
            if chat is None or walk.last is None:
                return None, walk.pending
            if is_over:
                rest = walk.pending[0] if walk.pending else None
                junction = Junction(
                    chat=chat,
                    last=walk.last,
                    rest=rest,
                    swipes=walk.swipes,
                    messages=walk.messages,
                )
                return junction, []


class _Walk:
    """Follows the messages of a file down a tree. CPU-bound."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self.last: TreePlace | None = None
        self.pending: list[FileMessage] = []
        self.swipes: list[str] = []
        self.messages: dict[int, bytes] = {}
        self._free_bytes = MAX_DIFFERENCE_BYTES

    @property
    def level(self) -> int:
        return self.last.position + 1 if self.last else 0

    def follow(self, reading: ChatReading, rows: Sequence[Any]) -> bool:
        """Follow these levels of the tree. True if the branch differs from here, or has ended."""
        below: dict[UUID | None, list[Any]] = {}
        for row in rows:
            below.setdefault(row.parent_id, []).append(row)
        sources = {row.id: row.sealed_source for row in rows}
        bottom = max((row.position for row in rows), default=-1)
        while True:
            check_stopped()
            if not self.pending:
                message = next(reading.messages, None)
                if message is None:
                    return True
                self.pending.append(message)
            if bottom < self.level:
                # The page may end here, and the tree does if it is empty.
                return not rows
            message = self.pending[0]
            texts = self._open(below.get(self.last.id if self.last else None, ()), message)
            same = texts.get(message.swipes[message.selected].text)
            if same is None:
                if self.last is not None:
                    self.swipes = [digest_swipe(each.text) for each in message.swipes]
                    _drop_swipes(message, texts)
                return True
            self.pending.clear()
            self.last = same
            self._note_difference(message, same, sources[same.id])

    def _note_difference(
        self, message: FileMessage, same: TreePlace, sealed_source: bytes | None
    ) -> None:
        """Keep the members of the file if those of the chat differ."""
        own = MessageOrigin(
            message=message.source, swipe=message.swipes[message.selected].source
        ).encode()
        stored = MessageOrigin.open(self._sealer, same.id, sealed_source)
        known = MessageOrigin(message=stored.message, swipe=stored.swipe).encode()
        if own is not None and own != known and len(own) <= self._free_bytes:
            self._free_bytes -= len(own)
            self.messages[same.position] = own

    def _open(self, rows: Sequence[Any], message: FileMessage) -> dict[str, TreePlace]:
        """Return the siblings of the message's role by text. The active one comes first."""
        found: dict[str, TreePlace] = {}
        for row in sorted(rows, key=lambda row: (not row.is_active, row.id)):
            check_stopped()
            if row.role == message.role:
                text = self._sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
                place = TreePlace(
                    id=row.id,
                    role=row.role,
                    position=row.position,
                    path_tokens=row.path_tokens,
                    scene_id=row.scene_id,
                    scene_place=row.scene_place,
                    created_at=row.created_at,
                )
                found.setdefault(text, place)
        return found


def _drop_swipes(message: FileMessage, texts: Collection[str]) -> None:
    """Remove the swipes that are siblings in the tree already."""
    selected = message.swipes[message.selected]
    message.swipes = [each for each in message.swipes if each is selected or each.text not in texts]
    message.selected = message.swipes.index(selected)


async def _load_levels(session: AsyncSession, chat: Chat, level: int) -> Sequence[Any]:
    query = (
        select(*_COLUMNS)
        .where(
            Message.chat_id == chat.id,
            Message.user_id == chat.user_id,
            Message.removed_at.is_(None),
            Message.position >= level,
            Message.position < level + LEVELS_PER_PAGE,
        )
        .order_by(Message.position, Message.id)
        .limit(MAX_SIBLINGS)
    )
    return (await session.execute(query)).all()
