"""The ledger of a campaign beside the stored state of its items."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

from sqlalchemy import exists, select

from backend.campaigns.ledger.changes import Operations, fold
from backend.campaigns.ledger.store import read_operations, read_state
from backend.campaigns.models import CampaignChange, CampaignItem, ChangeSource
from backend.chats.models import Message
from tests.support.server import Running


async def check_fold(
    server: Running, identity: Any, campaign_id: str
) -> list[tuple[CampaignChange, Operations]]:
    """Raise unless every item's state is a fresh fold of the changes that count; return those."""
    sealer = identity.sealer
    on_path = exists().where(
        ChangeSource.change_id == CampaignChange.id,
        ChangeSource.message_id == Message.id,
        Message.is_active,
    )
    sourced = exists().where(ChangeSource.change_id == CampaignChange.id)
    async with server.parts.database.read() as session:
        rows = (
            await session.execute(
                select(CampaignChange, on_path.label("told"), sourced.label("sourced"))
                .where(CampaignChange.campaign_id == UUID(campaign_id))
                .order_by(CampaignChange.seq)
            )
        ).all()
        items = list(
            await session.scalars(
                select(CampaignItem).where(CampaignItem.campaign_id == UUID(campaign_id))
            )
        )
    counting: list[tuple[CampaignChange, Operations]] = []
    by_item: defaultdict[UUID, list[Operations]] = defaultdict(list)
    for change, told, is_sourced in rows:
        assert change.is_on_path == (told or not is_sourced)
        if change.is_on_path and not change.is_undone:
            operations = read_operations(sealer, change.id, change.sealed_operations)
            by_item[change.item_id].append(operations)
            counting.append((change, operations))
    for item in items:
        state = read_state(sealer, item.id, item.sealed_state)
        assert state == fold(item.kind, by_item[item.id])
    return counting
