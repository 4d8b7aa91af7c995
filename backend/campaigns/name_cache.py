"""What every turn of a campaign needs, kept unsealed between turns: names, and what is in view."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.events import UserSignedOut
from backend.campaigns.item_rows import read_state
from backend.campaigns.items import Item, Kind
from backend.campaigns.ledger import item_of
from backend.campaigns.mentions import NameIndex
from backend.campaigns.models import Campaign, CampaignItem
from backend.cpu_pool import unhurried
from backend.vault.sealing import Sealer

CAMPAIGNS_KEPT = 64

MOST_IN_VIEW = 400
"""Items in view of one campaign that are kept; where there are more, none are."""

VIEW_BYTES = 500_000
"""What they take at most, sealed."""

IN_VIEW: tuple[Kind, ...] = ("world", "thread", "clock", "scene", "echo")
NOT_KEPT: tuple[Kind, ...] = ("chapter", "term")
"""Kinds of which only whether there is one is kept."""

_CHANGED = (
    select(
        CampaignItem.id,
        CampaignItem.kind,
        CampaignItem.subkind,
        CampaignItem.seq,
        CampaignItem.audience,
        CampaignItem.exists,
        CampaignItem.is_live,
        CampaignItem.sealed_state,
    )
    .where(
        CampaignItem.campaign_id == bindparam("campaign_id"),
        CampaignItem.version > bindparam("version"),
        CampaignItem.kind.in_(("entity", *IN_VIEW, *NOT_KEPT)),
    )
    .order_by(CampaignItem.id)
)


class ItemInView(NamedTuple):
    """An item that every turn reads, with what its row says of it; `size` is that of its blob."""

    id: UUID
    seq: int
    audience: str
    size: int
    item: Item


class NameCache(UserSignedOut):
    """The names of campaigns' entities, compiled, and the items in view.

    What changed since is read and put in: which version it is of says the campaign's row, in the
    view of the database that a turn reads in, so no process sees what another has changed too late.
    """

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
    """Entities' names and aliases at one version of a campaign, and its items in view.

    In view are its world, open threads, shown clocks, the open scene, echoes and players'
    characters; None where they are too many to be kept. `past` are the kinds of which there may be
    one that no turn has in view: chapters, terms, scenes that are over.
    """

    def __init__(self, user_id: UUID) -> None:
        self.user_id = user_id
        self.version = -1
        self.by_id: dict[UUID, tuple[str, ...]] = {}
        self.index = NameIndex([])
        self.in_view: Mapping[UUID, ItemInView] | None = {}
        self.past: frozenset[Kind] = frozenset()

    async def updated(self, session: AsyncSession, sealer: Sealer, campaign: Campaign) -> Names:
        """The same, with what changed since."""
        since = {"campaign_id": campaign.id, "version": self.version}
        by_id, in_view, past = dict(self.by_id), dict(self.in_view or {}), set(self.past)
        rows = (await session.execute(_CHANGED, since)).all()
        async for row in unhurried(rows, lambda row: len(row.sealed_state)):
            if row.kind in NOT_KEPT or (row.kind == "scene" and not row.is_live):
                past.add(row.kind)
                in_view.pop(row.id, None)
                continue
            state = read_state(sealer, row.id, row.sealed_state)
            if row.kind == "entity":
                by_id.pop(row.id, None)
                if row.exists:
                    by_id[row.id] = (state["name"], *state.get("aliases", []))
            in_view.pop(row.id, None)
            if row.exists and (row.subkind == "pc" if row.kind == "entity" else row.is_live):
                item, size = item_of(row.kind, state), len(row.sealed_state)
                in_view[row.id] = ItemInView(row.id, row.seq, row.audience, size, item)
        new = Names(self.user_id)
        new.version, new.by_id, new.past = campaign.version, by_id, frozenset(past)
        same = by_id == self.by_id
        new.index = (
            self.index
            if same
            else NameIndex(
                (entity_id, name) for entity_id, names in by_id.items() for name in names
            )
        )
        size = sum(each.size for each in in_view.values())
        is_small = len(in_view) <= MOST_IN_VIEW and size <= VIEW_BYTES
        new.in_view = in_view if self.in_view is not None and is_small else None
        return new
