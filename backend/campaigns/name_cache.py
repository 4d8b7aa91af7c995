"""The names of campaigns' entities, kept compiled between turns."""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.events import UserSignedOut
from backend.campaigns.item_rows import read_state
from backend.campaigns.mentions import NameIndex
from backend.campaigns.models import Campaign, CampaignItem
from backend.cpu_pool import unhurried
from backend.vault.sealing import Sealer

CAMPAIGNS_KEPT = 64


class NameCache(UserSignedOut):
    """The names of campaigns' entities, compiled; what changed since is read and put in."""

    def __init__(self) -> None:
        self._kept: OrderedDict[UUID, Names] = OrderedDict()

    async def names(self, session: AsyncSession, sealer: Sealer, campaign: Campaign) -> Names:
        """The names as of the version that `session` sees."""
        kept = self._kept.pop(campaign.id, None)
        if kept is None or kept.version > campaign.version:
            kept = Names(sealer.user_id)
        if kept.version < campaign.version:
            kept = await kept.updated(session, sealer, campaign)
        self._kept[campaign.id] = kept
        while len(self._kept) > CAMPAIGNS_KEPT:
            self._kept.popitem(last=False)
        return kept

    def user_signed_out(self, user_id: UUID) -> None:
        """Drop what is kept of a user."""
        for key in [key for key, kept in self._kept.items() if kept.user_id == user_id]:
            del self._kept[key]


class Names:
    """Entities' names and aliases at one version of a campaign."""

    def __init__(self, user_id: UUID) -> None:
        self.user_id = user_id
        self.version = -1
        self.by_id: dict[UUID, tuple[str, ...]] = {}
        self.index = NameIndex([])

    async def updated(self, session: AsyncSession, sealer: Sealer, campaign: Campaign) -> Names:
        """The same, with what changed since."""
        query = select(CampaignItem.id, CampaignItem.exists, CampaignItem.sealed_state).where(
            CampaignItem.campaign_id == campaign.id,
            CampaignItem.kind == "entity",
            CampaignItem.version > self.version,
        )
        by_id = dict(self.by_id)
        rows = (await session.execute(query)).all()
        async for row in unhurried(rows, lambda row: len(row.sealed_state)):
            state = read_state(sealer, row.id, row.sealed_state)
            by_id.pop(row.id, None)
            if row.exists:
                by_id[row.id] = (state["name"], *state.get("aliases", []))
        new = Names(self.user_id)
        new.version, new.by_id = campaign.version, by_id
        same = by_id == self.by_id
        new.index = (
            self.index
            if same
            else NameIndex(
                (entity_id, name) for entity_id, names in by_id.items() for name in names
            )
        )
        return new
