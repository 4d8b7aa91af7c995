"""Whether this process has the root key that the database is under."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import InstanceKey
from backend.vault.root import RootKeyError, RootKeys


async def refuse_older_root(session: AsyncSession, root_keys: RootKeys) -> None:
    """Raise `RootKeyError` where the root key was rotated after this process read it.

    To be asked at the beginning of a transaction that wraps something under the root key: what a
    server that was not restarted wraps under the old key could never be opened again once that key
    is dropped. Its lock lets the rotation wait for such a transaction, or the other way round.
    """
    query = select(InstanceKey.root_version).with_for_update(read=True)
    version = await session.scalar(query)
    if version is not None and version > root_keys.current:
        raise RootKeyError("The root key was rotated. Restart this server with the new one.")
