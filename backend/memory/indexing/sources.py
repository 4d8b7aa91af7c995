"""Sources: how memory reads the rows that it indexes.

Memory is a layer below the packages whose rows it indexes. Each of them implements `Source` for its
own rows, and the container passes the sources in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, Protocol
from uuid import UUID

from sqlalchemy import ColumnElement, Result, Table, func, select, true
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from backend.core.audience import GM, PUBLIC, Viewpoint
from backend.core.cpu_pool import iterate_in_slices
from backend.memory.index.protocol import Kind, Payload
from backend.memory.indexing.documents import IndexDocument
from backend.vault.sealing import Sealer

POINT_FORMAT = 2
"""Increase it if points get other fields or terms: the nightly comparison then rebuilds them."""


class OriginMessage(NamedTuple):
    """A message that a row was made from. `position` is its depth in the tree of its chat."""

    message_id: UUID
    chat_id: UUID
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItem:
    """A row that memory found, with its text.

    Attributes:
        title: The name of the row, or the author of a message.
        position: The depth of a message in its tree; for an event, that of its first message.
        chat_id: The chat of a message, or the only chat of an event's messages.
        is_past: True if it is about something that is over.
        story_time: The story's own time, as the text gives it; empty if it gives none.
        tokens: A stored count of the tokens of the text; 0 if there is none.
        origins: The messages that an event or a fact was made from.
        audience: Who may know it, in the format of the column.
        is_authoritative: True for a current fact, and for an event that a user wrote or changed.
            The messages that it was made from may say something else.
    """

    kind: Kind
    source_id: UUID
    container_id: UUID
    title: str
    text: str
    said_at: datetime | None = None
    position: int = 0
    chat_id: UUID | None = None
    is_past: bool = False
    story_time: str = ""
    tokens: int = 0
    origins: Sequence[OriginMessage] = ()
    audience: str = PUBLIC
    is_authoritative: bool = False

    @property
    def last_position(self) -> int:
        """The depth of its last message."""
        return max((each.position for each in self.origins), default=self.position)

    @property
    def line(self) -> str:
        """The text after its title, unless the text begins with the title itself."""
        is_named = not self.title or self.text.startswith(f"{self.title}:")
        return self.text if is_named else f"{self.title}: {self.text}"

    @classmethod
    def unread(cls, payload: Payload) -> MemoryItem:
        """Return the item of a point, without title and text."""
        return cls(
            kind=payload.kind,
            source_id=payload.source_id,
            container_id=payload.container_id,
            title="",
            text="",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """A row that was read and is still sealed.

    Attributes:
        size: Bytes of the row that are decrypted for its documents.
        size_beside: Bytes of its neighbours that are decrypted as well.
        documents: Decrypts the row and builds its documents. It is CPU-bound and needs no database.
            Call it in a thread, for one row after the other in the order of the rows.
    """

    source_id: UUID
    size: int
    size_beside: int = 0
    documents: Callable[[], list[IndexDocument]]


def split_by_size(rows: Sequence[SourceRow], most: int) -> Iterator[Sequence[SourceRow]]:
    """Yield `rows` in order, in slices of at most `most` bytes or of one row."""
    start = size = 0
    for index, row in enumerate(rows):
        if index > start and size + row.size > most:
            yield rows[start:index]
            start, size = index, 0
        size += row.size
    if start < len(rows):
        yield rows[start:]


def compute_version(changed_at: datetime) -> int:
    """Return the version of a row: microseconds since 1970 plus `POINT_FORMAT`.

    It differs after each change of the row's text or of the fields of its points.
    """
    return int(changed_at.timestamp() * 1_000_000) + POINT_FORMAT


async def collect_versions(rows: Result[UUID, datetime]) -> dict[UUID, int]:
    """Return the versions of rows, given as (id, changed at), in their order by id."""
    return {
        row_id: compute_version(changed_at) async for row_id, changed_at in iterate_in_slices(rows)
    }


class Source(Protocol):
    """Rows of one kind. No method commits. Rows of other users are treated as missing."""

    @property
    def kind(self) -> Kind: ...

    async def containers(self, session: AsyncSession, *, owner_id: UUID) -> list[UUID]:
        """Return the ids of all the user's chats, lorebooks, chronicles or campaigns."""
        ...

    async def count(
        self,
        session: AsyncSession,
        *,
        owner_id: UUID,
        container_ids: Sequence[UUID] | None = None,
    ) -> int:
        """Count the user's rows that should be indexed, in all or in some containers."""
        ...

    async def inventory(
        self, session: AsyncSession, container_id: UUID, *, owner_id: UUID
    ) -> dict[UUID, int] | None:
        """Return the versions of a container's rows that should be indexed, in their order, by id.

        None if there is no such container. It decrypts nothing, so it needs no key.
        """
        ...

    async def rows(
        self,
        session: AsyncSession,
        sealer: Sealer,
        container_id: UUID,
        source_ids: Sequence[UUID],
        *,
        neighbours: bool,
    ) -> list[SourceRow]:
        """Read some hundred rows. Deleted ones are missing in the result.

        With `neighbours`, also other rows whose points contain text of these rows.
        """
        ...

    async def recall(
        self,
        session: AsyncSession,
        sealer: Sealer,
        source_ids: Collection[UUID],
        *,
        viewpoint: Viewpoint = GM,
    ) -> dict[UUID, MemoryItem]:
        """Return the sealer's rows that are active and that the viewpoint may know, by id."""
        ...


_ALL_ROWS = true()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """The tables from which a `TableSource` lists containers and rows.

    Both have the columns `id` and `user_id`, and rows have `updated_at`.

    Attributes:
        container_id: The column of rows with the id of their container.
        order: The order of an inventory.
        is_indexed: The condition for rows that should be indexed.
        is_listed: The condition for containers.
        is_counted: The condition of `count`. It may be wider, so that an index alone answers it.
    """

    containers: Table
    rows: Table
    container_id: ColumnElement[UUID]
    order: Sequence[ColumnElement[Any] | InstrumentedAttribute[Any]]
    is_listed: ColumnElement[bool] = _ALL_ROWS
    is_indexed: ColumnElement[bool] = _ALL_ROWS
    is_counted: ColumnElement[bool] = _ALL_ROWS


class TableSource:
    """The part of a `Source` that is the same for all tables: it lists and counts rows."""

    table: ClassVar[SourceTable]

    async def containers(self, session: AsyncSession, *, owner_id: UUID) -> list[UUID]:
        columns = self.table.containers.c
        query = select(columns.id).where(columns.user_id == owner_id, self.table.is_listed)
        return list(await session.scalars(query))

    async def count(
        self,
        session: AsyncSession,
        *,
        owner_id: UUID,
        container_ids: Sequence[UUID] | None = None,
    ) -> int:
        table = self.table
        query = select(func.count()).where(table.rows.c.user_id == owner_id, table.is_counted)
        if container_ids is not None:
            query = query.where(table.container_id.in_(container_ids))
        return await session.scalar(query) or 0

    async def inventory(
        self, session: AsyncSession, container_id: UUID, *, owner_id: UUID
    ) -> dict[UUID, int] | None:
        table, containers, rows = self.table, self.table.containers.c, self.table.rows.c
        owned = select(containers.id).where(
            containers.id == container_id, containers.user_id == owner_id, table.is_listed
        )
        if await session.scalar(owned) is None:
            return None
        found = await session.execute(
            select(rows.id, rows.updated_at)
            .where(table.container_id == container_id, table.is_indexed)
            .order_by(*table.order)
        )
        return await collect_versions(found)
