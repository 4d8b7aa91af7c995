"""The messages of chats as a source of memories."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import Select, and_, bindparam, exists, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.members import Group, filter_heard_anywhere, load_group
from backend.chats.models import (
    MESSAGE_AUTHOR,
    MESSAGE_CONTENT,
    Chat,
    Message,
)
from backend.core.audience import GM, PUBLIC, Viewpoint, Witness, filter_known_to
from backend.database.base import get_table, skip_index, split_chunks
from backend.database.types import Id
from backend.memory.index.protocol import Kind
from backend.memory.indexing.documents import (
    WINDOW,
    IndexDocument,
    IndexedMessage,
    build_message_documents,
)
from backend.memory.indexing.sources import (
    MemoryItem,
    SourceRow,
    SourceTable,
    TableSource,
    compute_version,
)
from backend.vault.sealing import Sealer

_MAX_OPEN_LINES = 64
"""Decrypted messages that are kept while documents are built, because windows overlap."""

_MAX_NEAR_ROWS = 300
"""Limit of the query for the neighbourhood of messages. An indexer's batch has 200 messages."""


class MessageSource(TableSource):
    """Messages of all branches. `recall` drops those that are not active.

    Messages that say who joins or leaves are not indexed. Windows end there, because the messages
    before and after are known to different characters. Removed messages are not indexed either, and
    windows skip them.
    """

    kind: Kind = "message"
    table = SourceTable(
        containers=get_table(Chat),
        rows=get_table(Message),
        container_id=get_table(Message).c.chat_id,
        order=(Message.position,),
        is_listed=get_table(Chat).c.is_ready,
        is_indexed=and_(
            Message.status != "streaming",
            Message.presence.is_(None),
            Message.removed_at.is_(None),
        ),
    )

    async def rows(
        self,
        session: AsyncSession,
        sealer: Sealer,
        container_id: UUID,
        source_ids: Sequence[UUID],
        *,
        neighbours: bool,
    ) -> list[SourceRow]:
        """Return messages with their windows, from the root down.

        With `neighbours`, also the messages above them with windows that contain them.
        """
        group = await load_group(session, container_id)
        excerpt = _ChatExcerpt(sealer, group)
        await excerpt.load_near(session, source_ids)
        wanted = await excerpt.load(session, source_ids)
        if neighbours:
            wanted |= await excerpt.load_above(session, wanted)
        await excerpt.load_around(session, wanted)
        ordered = sorted(wanted, key=lambda each: (excerpt.rows[each].position, each))
        return [excerpt.source_row(each) for each in ordered]

    async def recall(
        self,
        session: AsyncSession,
        sealer: Sealer,
        source_ids: Collection[UUID],
        *,
        viewpoint: Viewpoint = GM,
    ) -> dict[UUID, MemoryItem]:
        """Return messages of active paths that are visible and that the viewpoint may know."""
        query = _ACTIVE
        if viewpoint != GM:
            query = query.where(
                filter_heard_anywhere(viewpoint)
                if isinstance(viewpoint, Witness)
                else filter_known_to(viewpoint, _ROW.audience)
            )
        found: dict[UUID, MemoryItem] = {}
        for ids in split_chunks(list(source_ids)):
            values = {"ids": ids, "owner_id": sealer.user_id}
            rows = (await session.execute(query, values)).all()
            authors = sealer.open_many(
                MESSAGE_AUTHOR, ((row.id.bytes, row.sealed_author) for row in rows)
            )
            texts = sealer.open_many(
                MESSAGE_CONTENT, ((row.id.bytes, row.sealed_content) for row in rows)
            )
            for row, author, text in zip(rows, authors, texts, strict=True):
                found[row.id] = MemoryItem(
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


async def find_windows_below(session: AsyncSession, message_ids: Sequence[UUID]) -> list[UUID]:
    """Return the messages below these, on all branches, with windows that contain their texts."""
    found: list[UUID] = []
    level = message_ids
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
    _ROW.presence,
    _ROW.removed_at,
    _ROW.scene_id,
    _ROW.is_active,
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
_IN_CHAT_OWNED = select(*_COLUMNS).where(_IN_CHAT, _OWNED)
_BY_ID = _IN_CHAT_OWNED.where(_ROW.id.in_(_IDS))
_SELECTED_CHILDREN = _IN_CHAT_OWNED.where(_ROW.parent_id.in_(_IDS), _ROW.is_selected)
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
    .limit(_MAX_NEAR_ROWS)
)
_ACTIVE = select(
    _ROW.id,
    _ROW.chat_id,
    _ROW.position,
    _ROW.tokens,
    _ROW.created_at,
    _ROW.audience,
    _ROW.sealed_author,
    _ROW.sealed_content,
).where(
    _ROW.id.in_(_IDS),
    _OWNED,
    _ROW.is_active,
    ~_ROW.hidden,
    _ROW.status != "streaming",
    exists().where(Chat.id == _ROW.chat_id, Chat.is_ready),
)
"""The statements are built once because building them takes longer than executing them."""


class _ChatExcerpt:
    """Sealed messages of one chat with their place in the tree.

    The rows are plain, so a thread may use them after they were loaded.
    """

    def __init__(self, sealer: Sealer, group: Group) -> None:
        self._sealer = sealer
        self._group = group
        self._chat_id = group.chat_id
        self.rows: dict[UUID, Any] = {}
        self._has_all_near = False
        self._selected: dict[UUID, UUID] = {}
        self._opened: dict[UUID, IndexedMessage] = {}

    async def load_near(self, session: AsyncSession, ids: Sequence[UUID]) -> None:
        """Load messages with everything in their windows and in their neighbours' windows.

        It reads one range of positions instead of one query for each step in the tree. The range
        is cut off if messages are far apart or have many siblings. The rest is then read in steps.
        """
        found = await self._read(session, _NEAR, ids)
        self._has_all_near = len(found) < _MAX_NEAR_ROWS

    async def load(self, session: AsyncSession, ids: Iterable[UUID]) -> set[UUID]:
        """Load messages. Return the ids of those that exist."""
        wanted = set(ids)
        missing = () if self._has_all_near else list(wanted - self.rows.keys())
        for part in split_chunks(missing):
            await self._read(session, _BY_ID, part)
        return wanted & self.rows.keys()

    async def load_above(self, session: AsyncSession, ids: set[UUID]) -> set[UUID]:
        """Load the `WINDOW` messages above each. Return their ids."""
        above: set[UUID] = set()
        level = ids
        for _ in range(WINDOW):
            parents = {self.rows[each].parent_id for each in level}
            level = await self.load(session, parents - {None})
            above |= level
        return above

    async def load_around(self, session: AsyncSession, ids: set[UUID]) -> None:
        """Load the messages in the windows of messages."""
        await self.load_above(session, ids)
        level = ids
        for _ in range(WINDOW):
            last = [each for each in level if each not in self._selected]
            for part in split_chunks(() if self._has_all_near else last):
                await self._read(session, _SELECTED_CHILDREN, part)
            level = {self._selected[each] for each in level if each in self._selected}

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

    def source_row(self, message_id: UUID) -> SourceRow:
        neighbours = (*self._ids_before(message_id), *self._ids_after(message_id))
        return SourceRow(
            source_id=message_id,
            size=len(self.rows[message_id].sealed_content),
            size_beside=sum(len(self.rows[each].sealed_content) for each in neighbours),
            documents=partial(self._documents, message_id),
        )

    def _documents(self, message_id: UUID) -> list[IndexDocument]:
        row = self.rows[message_id]
        if row.status == "streaming" or row.presence is not None or row.removed_at is not None:
            return []
        return build_message_documents(
            self._line(message_id),
            before=[self._line(each) for each in self._ids_before(message_id)],
            after=[self._line(each) for each in self._ids_after(message_id)],
        )

    def _line(self, message_id: UUID) -> IndexedMessage:
        """Return a decrypted message. Windows overlap, so the last ones are kept."""
        line = self._opened.get(message_id)
        if line is None:
            if len(self._opened) >= _MAX_OPEN_LINES:
                del self._opened[next(iter(self._opened))]
            line = self._opened[message_id] = self._open(message_id)
        return line

    def _open(self, message_id: UUID) -> IndexedMessage:
        row = self.rows[message_id]
        return IndexedMessage(
            id=row.id,
            container_id=self._chat_id,
            author=self._sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author),
            text=self._sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content),
            said_at=row.created_at,
            position=row.position,
            scene_id=row.scene_id,
            version=compute_version(row.updated_at),
            audience=row.audience,
            witnesses=(
                self._group.find_witnesses(row.position, row.audience)
                if row.is_active
                else row.audience
            ),
        )

    def _ids_before(self, message_id: UUID) -> list[UUID]:
        """Return the messages above one in its window, oldest first."""
        found: list[UUID] = []
        parent = self.rows[message_id].parent_id
        while parent is not None and self._is_near(parent) and len(found) < WINDOW:
            if self.rows[parent].removed_at is None:
                found.append(parent)
            parent = self.rows[parent].parent_id
        return self._keep_shared(message_id, found[::-1])

    def _ids_after(self, message_id: UUID) -> list[UUID]:
        """Return the messages below one in its window, on the selected path."""
        found: list[UUID] = []
        child = self._selected.get(message_id)
        while child is not None and self._is_near(child) and len(found) < WINDOW:
            if self.rows[child].removed_at is None:
                found.append(child)
            child = self._selected.get(child)
        return self._keep_shared(message_id, found)

    def _keep_shared(self, message_id: UUID, neighbours: list[UUID]) -> list[UUID]:
        """Return the neighbours that the listeners of a message may know.

        Presence is known for the active path alone.
        """
        row = self.rows[message_id]
        if row.is_active or row.audience in {PUBLIC, GM} or not self._group.is_group:
            return neighbours
        return [each for each in neighbours if self.rows[each].audience == row.audience]

    def _is_near(self, message_id: UUID) -> bool:
        return message_id in self.rows and self.rows[message_id].presence is None
