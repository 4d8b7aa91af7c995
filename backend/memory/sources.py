"""What the index remembers, and where the truth about it stands: one source for each kind of row.

Memory stands below the rooms whose rows it remembers. Each of them implements `Source` for its own
rows, and the application hands the sources in.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.memory.documents import Document
from backend.memory.index.protocol import Kind
from backend.vault.sealing import Sealer


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A row as it stands in SQL: `version` changes whenever its text does."""

    source_id: UUID
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A memory that counts, with its text: what a prompt or a person gets to see of it.

    Attributes:
        kind: What it is.
        source_id: The row.
        container_id: The lorebook, chat or chronicle.
        title: What it is called, or who says it.
        text: All of it.
        said_at: When, where there is a time.
        position: Of a message, its depth in the tree; of an event, that of its first message.
        chat_id: A message's chat; that of an event's messages, where they are all of one.
        tokens: What the text takes by a count that was stored with it; 0 where there is none.
    """

    kind: Kind
    source_id: UUID
    container_id: UUID
    title: str
    text: str
    said_at: datetime | None = None
    position: int = 0
    chat_id: UUID | None = None
    tokens: int = 0


class Source(Protocol):
    """Rows of one kind. Nothing here commits; what is someone else's does not exist."""

    @property
    def kind(self) -> Kind:
        """What its points are."""
        ...

    async def containers(self, session: AsyncSession, *, owner_id: UUID) -> list[UUID]:
        """Every chat, lorebook or chronicle of a user's."""
        ...

    async def inventory(
        self, session: AsyncSession, container_id: UUID, *, owner_id: UUID
    ) -> list[Stored] | None:
        """Every row of a container that ought to be indexed; None when there is no such container.

        Opens no text, so it needs no key.
        """
        ...

    async def documents(
        self,
        session: AsyncSession,
        sealer: Sealer,
        container_id: UUID,
        source_ids: Sequence[UUID],
        *,
        neighbours: bool,
    ) -> list[Document]:
        """What is to be indexed of some hundred rows; those that are gone are not in it.

        With `neighbours` also of other rows whose points hold something of theirs.
        """
        ...

    async def recall(
        self, session: AsyncSession, sealer: Sealer, source_ids: Collection[UUID]
    ) -> dict[UUID, Recalled]:
        """Rows by id, those alone that count at this moment. The owner is the sealer's."""
        ...


def version_of(changed_at: datetime) -> int:
    """A row's version from when its text last changed: microseconds since 1970."""
    return int(changed_at.timestamp() * 1_000_000)
