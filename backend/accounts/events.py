"""What happens to accounts; see `backend.core.events`."""

from __future__ import annotations

from typing import Protocol, runtime_checkable
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession


@runtime_checkable
class UserSignedOut(Protocol):
    """A user's key left this process: at sign-out, at a new password, at the account's end."""

    def user_signed_out(self, user_id: UUID) -> None:
        """Drop what is kept of the user in the clear."""
        ...


@runtime_checkable
class AccountDeleted(Protocol):
    """An account goes, in the transaction that ends its keys."""

    async def account_deleted(self, session: AsyncSession, user_id: UUID) -> None:
        """See to what no foreign key takes along."""
        ...
