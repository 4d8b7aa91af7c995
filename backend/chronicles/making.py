"""Making a chronicle, within the caller's transaction."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.chronicles.events import ChronicleFields
from backend.chronicles.limits import check_chronicles
from backend.chronicles.models import Chronicle
from backend.chronicles.records import sealed_chronicle
from backend.chronicles.repository import count_chronicles
from backend.database.base import new_id

UNNAMED = "Chronicle"
"""What a chronicle is called that is named by nobody."""


async def make_chronicle(
    session: AsyncSession, identity: Identity, fields: ChronicleFields
) -> Chronicle:
    """Make a chronicle without events. Raises `ChronicleFullError`."""
    check_chronicles(await count_chronicles(session, owner_id=identity.user_id))
    chronicle_id = new_id()
    row = Chronicle(
        id=chronicle_id,
        user_id=identity.user_id,
        sealed_chronicle=sealed_chronicle(identity.sealer, chronicle_id, fields),
    )
    session.add(row)
    await session.flush()
    return row
