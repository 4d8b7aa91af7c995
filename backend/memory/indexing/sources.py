"""What the index remembers, and where the truth about it stands: one source for each kind of row.

Memory is a layer below the packages whose rows it remembers. Each of them implements `Source` for
its own rows, and the container passes the sources in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from sqlalchemy import Result, Select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from backend.core.audience import GM, PUBLIC, Viewpoint
from backend.core.cpu_pool import iterate_in_slices
from backend.memory.index.protocol import Kind, Payload
from backend.memory.indexing.documents import Document
from backend.vault.sealing import Sealer

POINT_FORMAT = 1
"""Raised when points say more than before: the nightly comparison makes them again."""


class Origin(NamedTuple):
    """A line that a row was made from. `position` is its depth in its chat's tree."""

    message_id: UUID
    chat_id: UUID
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A memory that counts, with its text: what a prompt or a person gets to see of it.

    Attributes:
        title: What it is called, or who says it.
        position: Of a message, its depth in the tree; of an event, that of its first message.
        chat_id: A message's chat; that of an event's messages, where they are all of one.
        is_past: Whether it tells of what is over, not of how things are.
        story_time: The story's own time, which the text gives; empty if it gives none.
        tokens: What the text takes by a count that was stored with it; 0 where there is none.
        origins: The lines that an event or a fact was made from.
        audience: Who may know it, as a column holds it.
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
    origins: Sequence[Origin] = ()
    audience: str = PUBLIC

    @property
    def line(self) -> str:
        """The text after its title, unless the text begins with the title itself."""
        is_named = not self.title or self.text.startswith(f"{self.title}:")
        return self.text if is_named else f"{self.title}: {self.text}"

    @classmethod
    def unread(cls, payload: Payload) -> Recalled:
        """A memory as the index has it, without its text."""
        return cls(
            kind=payload.kind,
            source_id=payload.source_id,
            container_id=payload.container_id,
            title="",
            text="",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """A row that was read, still sealed.

    Attributes:
        size: Bytes of the row that are opened for its documents.
        size_beside: Bytes of its neighbours that are opened for them, too.
        documents: Opens it and makes what is indexed of it. CPU-bound, without the database: to be
            called in a thread, for one row after the other in the order they came in.
    """

    source_id: UUID
    size: int
    size_beside: int = 0
    documents: Callable[[], list[Document]]


def slices(rows: Sequence[SourceRow], most: int) -> Iterator[Sequence[SourceRow]]:
    """`rows` in order, so many at a time that they have at most `most` bytes, or one row."""
    start = size = 0
    for index, row in enumerate(rows):
        if index > start and size + row.size > most:
            yield rows[start:index]
            start, size = index, 0
        size += row.size
    if start < len(rows):
        yield rows[start:]


async def count_of(
    session: AsyncSession,
    owned: Select[int],
    container: InstrumentedAttribute[UUID],
    container_ids: Sequence[UUID] | None,
) -> int:
    """What a count of a user's rows comes to, in all or in some containers."""
    query = owned if container_ids is None else owned.where(container.in_(container_ids))
    return await session.scalar(query) or 0


class Source(Protocol):
    """Rows of one kind. Nothing here commits; what is someone else's does not exist."""

    @property
    def kind(self) -> Kind:
        """What its points are."""
        ...

    async def containers(self, session: AsyncSession, *, owner_id: UUID) -> list[UUID]:
        """Every chat, lorebook, chronicle or campaign of a user's."""
        ...

    async def count(
        self,
        session: AsyncSession,
        *,
        owner_id: UUID,
        container_ids: Sequence[UUID] | None = None,
    ) -> int:
        """How many rows of a user's ought to be indexed, in all or in some containers."""
        ...

    async def inventory(
        self, session: AsyncSession, container_id: UUID, *, owner_id: UUID
    ) -> dict[UUID, int] | None:
        """Versions of the rows of a container that ought to be indexed, in their order, by id.

        None when there is no such container. Opens no text, so it needs no key.
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
        """Some hundred rows; those that are gone are not in it.

        With `neighbours` also other rows whose points hold something of theirs.
        """
        ...

    async def recall(
        self,
        session: AsyncSession,
        sealer: Sealer,
        source_ids: Collection[UUID],
        *,
        viewpoint: Viewpoint = GM,
    ) -> dict[UUID, Recalled]:
        """Rows by id: those that count at this moment, and that the viewpoint may know.

        The owner is the sealer's.
        """
        ...


async def inventory_of(rows: Result[UUID, datetime]) -> dict[UUID, int]:
    """An inventory from rows of (id, changed at), in their order."""
    return {row_id: version_of(changed_at) async for row_id, changed_at in iterate_in_slices(rows)}


def version_of(changed_at: datetime) -> int:
    """A row's version, which changes whenever its text does, or what points say of it.

    Microseconds since 1970, and `POINT_FORMAT`.
    """
    return int(changed_at.timestamp() * 1_000_000) + POINT_FORMAT
