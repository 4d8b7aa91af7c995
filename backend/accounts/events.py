"""Events of accounts. See `backend.core.events`."""

from __future__ import annotations

from typing import Protocol, runtime_checkable
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession


@runtime_checkable
class UserSignedOut(Protocol):
    """A user's key was removed from this process: sign-out, new password or deleted account."""

    def user_signed_out(self, user_id: UUID) -> None: ...


@runtime_checkable
class AccountDeleted(Protocol):
    """An account is deleted. The handler runs in the transaction that deletes its keys."""

    async def account_deleted(self, session: AsyncSession, user_id: UUID) -> None: ...


@runtime_checkable
class AccountClosed(Protocol):
    """The keys of an account were deleted. Its rows are still there, but no one can find them."""

    async def account_closed(self, user_id: UUID) -> None:
        """Delete the rows."""
        ...
