"""What a copy of a chat takes along of its lorebooks."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import insert, literal, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.database.types import Id
from backend.lorebooks.models import LORE_STATE, ChatLorebook, LoreState


async def copy_lore(
    session: AsyncSession,
    identity: Identity,
    source_id: UUID,
    fork_id: UUID,
    copied: Mapping[UUID, UUID],
) -> None:
    """Copy a chat's links and switches, and what is sticky or cools down along the copied path.

    `copied` leads from messages to their copies.
    """
    sealer = identity.sealer
    links = select(literal(fork_id, Id()), ChatLorebook.lorebook_id, ChatLorebook.state).where(
        ChatLorebook.chat_id == source_id
    )
    await session.execute(
        insert(ChatLorebook).from_select(["chat_id", "lorebook_id", "state"], links)
    )
    states = await session.scalars(
        select(LoreState).where(LoreState.chat_id == source_id, LoreState.user_id == sealer.user_id)
    )
    for state in states.all():
        copy_id = copied.get(state.id)
        if copy_id is None:
            continue
        data = sealer.open_bytes(LORE_STATE, state.id, state.sealed_state)
        session.add(
            LoreState(
                id=copy_id,
                user_id=state.user_id,
                chat_id=fork_id,
                position=state.position,
                sealed_state=sealer.seal_bytes(LORE_STATE, copy_id, data),
            )
        )
