"""Messages as a source of memories: what is indexed of them, and which of them count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.memory.documents import WINDOW, Document, Line, message_documents, scene_document
from backend.memory.index.protocol import Kind
from backend.memory.sources import Recalled, Stored, version_of
from backend.vault.sealing import Sealer

PARAMETERS = 5000


class MessageSource:
    """The messages of all branches: what is not active is dropped when it is recalled."""

    kind: Kind = "message"

    async def containers(self, session: AsyncSession, *, owner_id: UUID) -> list[UUID]:
        """A user's chats."""
        return list(await session.scalars(select(Chat.id).where(Chat.user_id == owner_id)))

    async def inventory(
        self, session: AsyncSession, container_id: UUID, *, owner_id: UUID
    ) -> list[Stored] | None:
        """A chat's messages, from the root down; None when there is no such chat."""
        owned = Chat.id == container_id, Chat.user_id == owner_id
        if await session.scalar(select(Chat.id).where(*owned)) is None:
            return None
        rows = await session.execute(
            select(Message.id, Message.updated_at)
            .where(Message.chat_id == container_id, Message.status != "streaming")
            .order_by(Message.position)
        )
        return [Stored(source_id=row.id, version=version_of(row.updated_at)) for row in rows]

    async def documents(
        self,
        session: AsyncSession,
        sealer: Sealer,
        container_id: UUID,
        source_ids: Sequence[UUID],
        *,
        neighbours: bool,
    ) -> list[Document]:
        """Messages with their windows, and the scenes that they stand in.

        With `neighbours` also those above them whose windows reach down to them.
        """
        reader = _Reader(session, sealer, container_id)
        wanted = await reader.load(source_ids)
        if neighbours:
            wanted |= await reader.load_above(wanted)
        await reader.load_around(wanted)
        messages = [
            document
            for message_id in wanted
            if reader.rows[message_id].status != "streaming"
            for document in message_documents(
                reader.line(message_id),
                before=reader.before(message_id),
                after=reader.after(message_id),
            )
        ]
        return [*messages, *await reader.scenes(wanted)]

    async def recall(
        self, session: AsyncSession, sealer: Sealer, source_ids: Collection[UUID]
    ) -> dict[UUID, Recalled]:
        """Messages of active paths that are not hidden."""
        found: dict[UUID, Recalled] = {}
        for ids in _chunks(list(source_ids)):
            rows = await session.execute(
                select(
                    Message.id,
                    Message.chat_id,
                    Message.position,
                    Message.tokens,
                    Message.created_at,
                    Message.sealed_author,
                    Message.sealed_content,
                ).where(
                    Message.id.in_(ids),
                    Message.user_id == sealer.user_id,
                    Message.is_active,
                    ~Message.hidden,
                    Message.status != "streaming",
                )
            )
            for row in rows:
                found[row.id] = Recalled(
                    kind=self.kind,
                    source_id=row.id,
                    container_id=row.chat_id,
                    title=sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author),
                    text=sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content),
                    said_at=row.created_at,
                    position=row.position,
                    chat_id=row.chat_id,
                    tokens=row.tokens,
                )
        return found


class _Reader:
    """Messages of one chat with what stands around them in the tree."""

    def __init__(self, session: AsyncSession, sealer: Sealer, chat_id: UUID) -> None:
        self._session = session
        self._sealer = sealer
        self._chat_id = chat_id
        self.rows: dict[UUID, Message] = {}
        self._selected: dict[UUID, UUID] = {}
        self._lines: dict[UUID, Line] = {}

    async def load(self, ids: Iterable[UUID]) -> set[UUID]:
        """Read messages; those of them that are there."""
        wanted = set(ids)
        await self._read(Message.id.in_(part) for part in _chunks(list(wanted - self.rows.keys())))
        return wanted & self.rows.keys()

    async def load_above(self, ids: set[UUID]) -> set[UUID]:
        """Read the `WINDOW` messages above each; their ids."""
        above: set[UUID] = set()
        level = ids
        for _ in range(WINDOW):
            parents = {self.rows[each].parent_id for each in level}
            level = await self.load(each for each in parents if each is not None)
            above |= level
        return above

    async def load_around(self, ids: set[UUID]) -> None:
        """Read what stands in the windows of messages."""
        await self.load_above(ids)
        level = ids
        for _ in range(WINDOW):
            unknown = [each for each in level if each not in self._selected]
            await self._read(
                Message.parent_id.in_(part) & Message.is_selected for part in _chunks(unknown)
            )
            level = {self._selected[each] for each in level if each in self._selected}

    async def _read(self, conditions: Iterator[object]) -> None:
        for condition in conditions:
            rows = await self._session.scalars(
                select(Message)
                .where(
                    Message.chat_id == self._chat_id,
                    Message.user_id == self._sealer.user_id,
                    condition,  # type: ignore[arg-type]  # a condition on messages
                )
                .options(defer(Message.sealed_thinking, raiseload=True))
            )
            for row in rows:
                self.rows[row.id] = row
                if row.is_selected and row.parent_id is not None:
                    self._selected[row.parent_id] = row.id

    def line(self, message_id: UUID) -> Line:
        """A message, unsealed."""
        line = self._lines.get(message_id)
        if line is None:
            row = self.rows[message_id]
            line = self._lines[message_id] = Line(
                id=row.id,
                container_id=row.chat_id,
                author=self._sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author),
                text=self._sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content),
                said_at=row.created_at,
                position=row.position,
                scene_id=row.scene_id,
                version=version_of(row.updated_at),
            )
        return line

    def before(self, message_id: UUID) -> list[Line]:
        """What stands above a message, as far as its window reaches, oldest first."""
        found: list[Line] = []
        parent = self.rows[message_id].parent_id
        while parent is not None and parent in self.rows and len(found) < WINDOW:
            found.append(self.line(parent))
            parent = self.rows[parent].parent_id
        return found[::-1]

    def after(self, message_id: UUID) -> list[Line]:
        """What follows a message where the path goes, or last went, on below it."""
        found: list[Line] = []
        child = self._selected.get(message_id)
        while child is not None and len(found) < WINDOW:
            found.append(self.line(child))
            child = self._selected.get(child)
        return found

    async def scenes(self, ids: set[UUID]) -> list[Document]:
        """The scenes in which messages stand, each made of those that are active."""
        scene_ids = {scene for each in ids if (scene := self.rows[each].scene_id) is not None}
        members: dict[UUID, list[Line]] = defaultdict(list)
        for part in _chunks(list(scene_ids)):
            rows = await self._session.execute(
                select(Message)
                .where(
                    Message.scene_id.in_(part),
                    Message.chat_id == self._chat_id,
                    Message.user_id == self._sealer.user_id,
                    Message.is_active,
                    Message.status != "streaming",
                )
                .order_by(Message.position)
                .options(defer(Message.sealed_thinking, raiseload=True))
            )
            for row in rows.scalars():
                self.rows.setdefault(row.id, row)
                if row.scene_id is not None:
                    members[row.scene_id].append(self.line(row.id))
        return [scene_document(scene, lines) for scene, lines in members.items()]


def _chunks(ids: list[UUID]) -> Iterator[list[UUID]]:
    for start in range(0, len(ids), PARAMETERS):
        yield ids[start : start + PARAMETERS]
