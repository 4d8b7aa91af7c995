"""How the index hears of lorebooks that change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity

KIND: Final = "lore"


class IndexOutbox(Protocol):
    """Is told, in the transaction that changes something, what the index has to follow."""

    async def changed(
        self,
        session: AsyncSession,
        identity: Identity,
        /,
        *,
        kind: Literal["lore"],
        container_id: UUID,
        source_ids: Sequence[UUID] | None,
    ) -> UUID | None:
        """Note that rows of a container were made, changed or deleted; None is all of them.

        Also called for a container that is deleted as a whole. Returns the job that brings the
        index up to date, None where there is nothing to bring.
        """
        ...


class NoIndex:
    """An outbox for where there is no index."""

    async def changed(
        self,
        session: AsyncSession,  # noqa: ARG002  # the protocol's
        identity: Identity,  # noqa: ARG002  # the protocol's
        /,
        *,
        kind: Literal["lore"],  # noqa: ARG002  # the protocol's
        container_id: UUID,  # noqa: ARG002  # the protocol's
        source_ids: Sequence[UUID] | None,  # noqa: ARG002  # the protocol's
    ) -> UUID | None:
        """Nothing to note."""
        return None
