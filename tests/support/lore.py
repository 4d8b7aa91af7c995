"""What tests of lorebooks look into."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.lorebooks.entries import BookFields, LoreEntry
from backend.lorebooks.links import load_book, open_sealed
from backend.vault.sealing import Sealer


async def opened_book(
    session: AsyncSession, sealer: Sealer, book_id: UUID
) -> tuple[BookFields, list[tuple[UUID, int, LoreEntry]]]:
    """A book as it is stored: what it says of itself, and (id, place, entry) in order."""
    return open_sealed(sealer, await load_book(session, book_id, owner_id=sealer.user_id))
