"""Player characters of a campaign, and the one that its user is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.audience import PUBLIC
from backend.campaigns.item_rows import read_state
from backend.campaigns.models import CampaignItem
from backend.campaigns.reader import Condition
from backend.vault.sealing import Sealer


class Player(NamedTuple):
    """The character that the user is. `audience` is as its column holds it."""

    id: UUID
    name: str
    audience: str


async def find_player(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID | None
) -> Player | None:
    """Return the only player character of a campaign; None if there are none or several.

    A user without a persona is this character.
    """
    if campaign_id is None:
        return None
    query = select(CampaignItem.id, CampaignItem.audience, CampaignItem.sealed_state).where(
        *match_players(campaign_id), CampaignItem.user_id == sealer.user_id
    )
    rows = (await session.execute(query.limit(2))).all()
    if len(rows) != 1:
        return None
    [row] = rows
    return Player(row.id, read_state(sealer, row.id, row.sealed_state)["name"], row.audience)


async def find_player_name(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID | None
) -> str | None:
    """Return the name of `find_player` if everyone may know it."""
    player = await find_player(session, sealer, campaign_id)
    return player.name if player and player.audience == PUBLIC else None


def match_players(campaign_id: UUID | None) -> Sequence[Condition]:
    """Return the conditions for the player characters of a campaign."""
    return (
        CampaignItem.campaign_id == campaign_id,
        CampaignItem.kind == "entity",
        CampaignItem.subkind == "pc",
        CampaignItem.exists,
    )
