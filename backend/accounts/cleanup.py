"""Deletions that a crash left half done."""

from __future__ import annotations

from sqlalchemy import delete, exists, select

from backend.accounts.models import KeySlot, User
from backend.database.engine import Database
from backend.logs import get_logger

log = get_logger(__name__)


async def finish_deletions(database: Database) -> None:
    """Delete every account that has no password any more.

    An account loses its keys in one transaction and its rows in a second; what changes a password
    never leaves it without one. So nobody can open such an account, but its name is still taken,
    and it may count as an administrator.
    """
    is_without_keys = ~exists().where(KeySlot.user_id == User.id, KeySlot.kind == "password")
    async with database.read() as session:
        half_deleted = list(await session.scalars(select(User.id).where(is_without_keys)))
    for user_id in half_deleted:
        async with database.write() as session:
            await session.execute(delete(User).where(User.id == user_id, is_without_keys))
        log.info("account.deletion_finished", user_id=user_id)
