"""Messages as a source of memories: what is indexed of them, and which of them count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.core.audience import GM, Viewpoint, filter_known_to
from backend.database.base import get_table, skip_index, split_chunks
from backend.database.types import Id
from backend.memory.index.protocol import Kind
from backend.memory.indexing.documents import (
    WINDOW,
    Document,
    Line,
    message_documents,
    scene_document,
)
from backend.memory.indexing.sources import Recalled, SourceRow, count_of, inventory_of, version_of
from backend.vault.sealing import Sealer

_LINES_KEPT = 64
"""Lines that stay open while rows are made into documents: a scene and its neighbours."""

_MOST_NEAR = 300
"""Rows that are read at once around those that are asked for: an indexer's batch has 200."""


class MessageSource:
    """The messages of all branches: what is not active is dropped when it is recalled."""

    kind: Kind = "message"

    async def containers(self, session: AsyncSession, *, owner_id: UUID) -> list[UUID]:
        """A user's chats."""
        return list(await session.scalars(select(Chat.id).where(Chat.user_id == owner_id)))

    async def count(
        self,
        session: AsyncSession,
        *,
        owner_id: UUID,
        container_ids: Sequence[UUID] | None = None,
    ) -> int:
        """See `Source`."""
        owned = select(func.count()).where(Message.user_id == owner_id)
        return await count_of(session, owned, Message.chat_id, container_ids)

    async def inventory(
        self, session: AsyncSession, container_id: UUID, *, owner_id: UUID
    ) -> dict[UUID, int] | None:
        """A chat's messages, from the root down; None when there is no such chat."""
        owned = Chat.id == container_id, Chat.user_id == owner_id
        if await session.scalar(select(Chat.id).where(*owned)) is None:
            return None
        rows = await session.execute(
            select(Message.id, Message.updated_at)
            .where(Message.chat_id == container_id, Message.status != "streaming")
            .order_by(Message.position)
        )
        return await inventory_of(rows)

    async def rows(
        self,
        session: AsyncSession,
        sealer: Sealer,
        container_id: UUID,
        source_ids: Sequence[UUID],
        *,
        neighbours: bool,
    ) -> list[SourceRow]:
        """Messages with their windows, from the root down.

        With `neighbours` also those above them whose windows reach down to them. A scene comes with
        the last of its messages here: while that is not stored, the scene is made again.
        """
        stretch = _Stretch(sealer, container_id)
        await stretch.load_near(session, source_ids)
        wanted = await stretch.load(session, source_ids)
        if neighbours:
            wanted |= await stretch.load_above(session, wanted)
        await stretch.load_around(session, wanted)
        members = await stretch.load_scenes(session, wanted)
        ordered = sorted(wanted, key=lambda each: (stretch.rows[each].position, each))
        scene_of = {each: stretch.rows[each].scene_id for each in ordered}
        last = {scene: each for each, scene in scene_of.items()}
        return [
            stretch.source_row(each, members.get(scene, ()) if last[scene] == each else ())
            for each, scene in scene_of.items()
        ]

    async def recall(
        self,
        session: AsyncSession,
        sealer: Sealer,
        source_ids: Collection[UUID],
        *,
        viewpoint: Viewpoint = GM,
    ) -> dict[UUID, Recalled]:
        """Messages of active paths that are not hidden, and that the viewpoint may know."""
        query = _COUNTING
        if viewpoint != GM:
            query = query.where(filter_known_to(viewpoint, _ROW.audience))
        found: dict[UUID, Recalled] = {}
        for ids in split_chunks(list(source_ids)):
            asked = {"ids": ids, "owner_id": sealer.user_id}
            rows = (await session.execute(query, asked)).all()
            authors = sealer.open_many(
                MESSAGE_AUTHOR, ((row.id.bytes, row.sealed_author) for row in rows)
            )
            texts = sealer.open_many(
                MESSAGE_CONTENT, ((row.id.bytes, row.sealed_content) for row in rows)
            )
            for row, author, text in zip(rows, authors, texts, strict=True):
                found[row.id] = Recalled(
                    kind=self.kind,
                    source_id=row.id,
                    container_id=row.chat_id,
                    title=author,
                    text=text,
                    said_at=row.created_at,
                    position=row.position,
                    chat_id=row.chat_id,
                    tokens=row.tokens,
                    audience=row.audience,
                )
        return found


async def windows_below(session: AsyncSession, message_id: UUID) -> list[UUID]:
    """The messages below one, on all branches, whose windows hold its text."""
    found: list[UUID] = []
    level: Sequence[UUID] = [message_id]
    for _ in range(WINDOW):
        below: list[UUID] = []
        for part in split_chunks(level):
            below += await session.scalars(select(Message.id).where(Message.parent_id.in_(part)))
        found += below
        level = below
    return found


_ROW = get_table(Message).c
_COLUMNS = (
    _ROW.id,
    _ROW.parent_id,
    _ROW.position,
    _ROW.status,
    _ROW.scene_id,
    _ROW.is_selected,
    _ROW.created_at,
    _ROW.updated_at,
    _ROW.audience,
    _ROW.sealed_author,
    _ROW.sealed_content,
)
_IDS = bindparam("ids", expanding=True, type_=Id())
_OWNED = skip_index(_ROW.user_id) == bindparam("owner_id")
_IN_CHAT = skip_index(_ROW.chat_id) == bindparam("chat_id")
_OF_A_CHAT = select(*_COLUMNS).where(_IN_CHAT, _OWNED)
_THEMSELVES = _OF_A_CHAT.where(_ROW.id.in_(_IDS))
_FOLLOWING = _OF_A_CHAT.where(_ROW.parent_id.in_(_IDS), _ROW.is_selected)
_SCENES = _OF_A_CHAT.where(_ROW.scene_id.in_(_IDS), _ROW.is_active, _ROW.status != "streaming")
_FIRST, _LAST = (
    select(end(_ROW.position)).where(_IN_CHAT, _ROW.id.in_(_IDS)).scalar_subquery()
    for end in (func.min, func.max)
)
_NEAR = (
    select(*_COLUMNS)
    .where(
        _ROW.chat_id == bindparam("chat_id"),
        _OWNED,
        _ROW.position >= _FIRST - 2 * WINDOW,
        _ROW.position <= _LAST + WINDOW,
    )
    .limit(_MOST_NEAR)
)
_COUNTING = select(
    _ROW.id,
    _ROW.chat_id,
    _ROW.position,
    _ROW.tokens,
    _ROW.created_at,
    _ROW.audience,
    _ROW.sealed_author,
    _ROW.sealed_content,
).where(_ROW.id.in_(_IDS), _OWNED, _ROW.is_active, ~_ROW.hidden, _ROW.status != "streaming")
"""Built once: building them costs more than running them."""


class _Stretch:
    """Messages of one chat, read and still sealed, and how they hang together in the tree.

    Plain rows: once they are loaded, they may be used in a thread.
    """

    def __init__(self, sealer: Sealer, chat_id: UUID) -> None:
        self._sealer = sealer
        self._chat_id = chat_id
        self.rows: dict[UUID, Any] = {}
        self._has_all_near = False
        self._selected: dict[UUID, UUID] = {}
        self._opened: dict[UUID, Line] = {}

    async def load_near(self, session: AsyncSession, ids: Sequence[UUID]) -> None:
        """Read messages with all that their windows, and their neighbours' windows, can reach.

        One range of positions takes the place of a query for each step in the tree. Where messages
        lie far apart, or have very many siblings, it is not read to its end, and what is missing
        is read step by step.
        """
        found = await self._read(session, _NEAR, ids)
        self._has_all_near = len(found) < _MOST_NEAR

    async def load(self, session: AsyncSession, ids: Iterable[UUID]) -> set[UUID]:
        """Read messages; those of them that are there."""
        wanted = set(ids)
        missing = () if self._has_all_near else list(wanted - self.rows.keys())
        for part in split_chunks(missing):
            await self._read(session, _THEMSELVES, part)
        return wanted & self.rows.keys()

    async def load_above(self, session: AsyncSession, ids: set[UUID]) -> set[UUID]:
        """Read the `WINDOW` messages above each; their ids."""
        above: set[UUID] = set()
        level = ids
        for _ in range(WINDOW):
            parents = {self.rows[each].parent_id for each in level}
            level = await self.load(session, parents - {None})
            above |= level
        return above

    async def load_around(self, session: AsyncSession, ids: set[UUID]) -> None:
        """Read what stands in the windows of messages."""
        await self.load_above(session, ids)
        level = ids
        for _ in range(WINDOW):
            last = [each for each in level if each not in self._selected]
            for part in split_chunks(() if self._has_all_near else last):
                await self._read(session, _FOLLOWING, part)
            level = {self._selected[each] for each in level if each in self._selected}

    async def load_scenes(self, session: AsyncSession, ids: set[UUID]) -> dict[UUID, list[UUID]]:
        """Read the active messages of the scenes in which messages stand: their ids, in order."""
        scene_ids = {scene for each in ids if (scene := self.rows[each].scene_id) is not None}
        members: dict[UUID, list[UUID]] = defaultdict(list)
        for part in split_chunks(list(scene_ids)):
            found = await self._read(session, _SCENES, part)
            for row in sorted(found, key=lambda row: row.position):
                members[row.scene_id].append(row.id)
        return members

    async def _read(
        self, session: AsyncSession, query: Select[*tuple[Any, ...]], ids: Sequence[UUID]
    ) -> Sequence[Any]:
        values = {"chat_id": self._chat_id, "owner_id": self._sealer.user_id, "ids": ids}
        found = (await session.execute(query, values)).all()
        for row in found:
            self.rows[row.id] = row
            if row.is_selected and row.parent_id is not None:
                self._selected[row.parent_id] = row.id
        return found

    def source_row(self, message_id: UUID, scene: Sequence[UUID]) -> SourceRow:
        sizes = [len(self.rows[each].sealed_content) for each in (message_id, *scene)]
        beside = (*self._ids_before(message_id), *self._ids_after(message_id))
        return SourceRow(
            source_id=message_id,
            size=sum(sizes),
            size_beside=sum(len(self.rows[each].sealed_content) for each in beside),
            documents=partial(self._documents, message_id, scene),
        )

    def _documents(self, message_id: UUID, scene: Sequence[UUID]) -> list[Document]:
        """What is indexed of a message, and of the scene that those of `scene` make."""
        found: list[Document] = []
        row = self.rows[message_id]
        if row.status != "streaming":
            found += message_documents(
                self._line(message_id),
                before=[self._line(each) for each in self._ids_before(message_id)],
                after=[self._line(each) for each in self._ids_after(message_id)],
            )
        if scene:
            found.append(scene_document(row.scene_id, [self._line(each) for each in scene]))
        return found

    def _line(self, message_id: UUID) -> Line:
        """A message, open. Rows come in the order of the path: their windows share lines."""
        line = self._opened.get(message_id)
        if line is None:
            if len(self._opened) >= _LINES_KEPT:
                del self._opened[next(iter(self._opened))]
            line = self._opened[message_id] = self._open(message_id)
        return line

    def _open(self, message_id: UUID) -> Line:
        row = self.rows[message_id]
        return Line(
            id=row.id,
            container_id=self._chat_id,
            author=self._sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author),
            text=self._sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content),
            said_at=row.created_at,
            position=row.position,
            scene_id=row.scene_id,
            version=version_of(row.updated_at),
            audience=row.audience,
        )

    def _ids_before(self, message_id: UUID) -> list[UUID]:
        """The messages above one, as far as its window reaches, oldest first."""
        found: list[UUID] = []
        parent = self.rows[message_id].parent_id
        while parent is not None and parent in self.rows and len(found) < WINDOW:
            found.append(parent)
            parent = self.rows[parent].parent_id
        return found[::-1]

    def _ids_after(self, message_id: UUID) -> list[UUID]:
        """The messages that follow one where the path goes, or last went, on below it."""
        found: list[UUID] = []
        child = self._selected.get(message_id)
        while child is not None and len(found) < WINDOW:
            found.append(child)
            child = self._selected.get(child)
        return found
