"""What characters need from lorebooks: those that are embedded in cards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.settings import LoreMode
from backend.vault.sealing import Sealer


class CardLorebook(msgspec.Struct, kw_only=True):
    """The lorebook that a card's book became."""

    id: UUID
    name: str
    entry_count: int
    mode: LoreMode | None = None


@dataclass(frozen=True, slots=True)
class ReadyBook:
    """A card's book, read and sealed: all that is left is to store it.

    Attributes:
        summary: What it will be.
        shown: The book as its card will show it.
        warnings: Sentences about what had to be bent or left out.
        store: Stores it for its character, in the place of the book that it may have.
    """

    summary: CardLorebook
    shown: dict[str, Any]
    warnings: Sequence[str]
    store: Callable[[AsyncSession, Identity], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StoredBook:
    """A card's book as it is kept, still sealed.

    `open` is CPU-bound and gives the book as its card shows it (`character_book`).
    """

    id: UUID
    open: Callable[[], dict[str, Any]]


class CardBooks(Protocol):
    """Keeps the books of cards as lorebooks of their own, and gives them back."""

    def prepare(
        self,
        sealer: Sealer,
        book: dict[str, Any],
        *,
        character_id: UUID,
        name: str,
        replaced: UUID | None,
    ) -> ReadyBook:
        """Read a card's book. CPU-bound, no database.

        Args:
            sealer: The owner's.
            book: The card's `character_book`, of any shape.
            character_id: The character that it is for.
            name: What it is called where it has no name: the character's.
            replaced: The lorebook in whose place it comes, if there is one.

        Raises:
            CardLimitError: Too many entries, or one that is too long.
        """
        ...

    def shown(self, book: dict[str, Any], *, name: str) -> dict[str, Any]:
        """A card's book as it is shown once it is stored. CPU-bound; raises as `prepare` does."""
        ...

    async def find(
        self, session: AsyncSession, identity: Identity, character_id: UUID
    ) -> StoredBook | None:
        """The book of a character's card."""
        ...

    async def drop(self, session: AsyncSession, identity: Identity, character_id: UUID) -> None:
        """Delete the book of a character's card, if it has one."""
        ...
