"""Events of characters, handled in the same transaction. See `backend.core.events`."""

from __future__ import annotations

from typing import Protocol, runtime_checkable
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity


@runtime_checkable
class CharacterCopied(Protocol):
    """A character was copied."""

    async def character_copied(
        self, session: AsyncSession, identity: Identity, source_id: UUID, copy_id: UUID
    ) -> None:
        """Copy the data that belongs to the character."""
        ...
