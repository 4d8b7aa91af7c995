"""What every turn of a campaign needs, kept unsealed between turns: entities, what is in view."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.events import UserSignedOut
from backend.audience import Viewpoint, is_known_to
from backend.campaigns.item_rows import read_state
from backend.campaigns.items import Entity, Item, Kind, Relation
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

AROUND_BYTES = 2_000_000
"""What entities and relations of one campaign take at most, sealed; where it is more, none are
kept."""

KEPT_BYTES = 16_000_000
"""What all that is kept takes at most, sealed: campaigns that were not read lately go first."""

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
        CampaignItem.kind.in_(("entity", "relation", *IN_VIEW, *NOT_KEPT)),
    )
    .order_by(CampaignItem.id)
)


class KeptItem(NamedTuple):
    """An item with what its row says of it; `size` is that of its blob."""

    id: UUID
    campaign_id: UUID
    seq: int
    audience: str
    size: int
    item: Item


class NameCache(UserSignedOut):
    """The names of campaigns' entities, compiled; entities and relations; the items in view.

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
        size = sum(each.size for each in self._kept.values())
        while len(self._kept) > CAMPAIGNS_KEPT or (size > KEPT_BYTES and len(self._kept) > 1):
            size -= self._kept.popitem(last=False)[1].size
        return kept

    def user_signed_out(self, user_id: UUID) -> None:
        """Drop what is kept of a user."""
        for key in [key for key, kept in self._kept.items() if kept.user_id == user_id]:
            del self._kept[key]


class Names:
    """Entities' names and aliases at one version of a campaign, and its items in view.

    In view are its world, open threads, shown clocks, the open scene, echoes and players'
    characters; `around` are all its entities and relations; None where they are too many to be
    kept. `tied` are, by an entity, ids of those in `around` that name it: the people at a place,
    and relations from and to somebody. `past` are the kinds of which there may be one that no
    turn has in view: chapters, terms, scenes that are over. `size` is what is kept, sealed.
    """

    def __init__(self, user_id: UUID) -> None:
        self.user_id = user_id
        self.version = -1
        self.by_id: dict[UUID, tuple[str, ...]] = {}
        self.index = NameIndex([])
        self.in_view: Mapping[UUID, KeptItem] | None = {}
        self.around: Mapping[UUID, KeptItem] | None = {}
        self.tied: Mapping[UUID, frozenset[UUID]] = {}
        self.past: frozenset[Kind] = frozenset()
        self.around_size = 0
        self.size = 0

    def entities(
        self, ids: Iterable[UUID], viewpoint: Viewpoint
    ) -> tuple[dict[UUID, tuple[UUID, Item]], list[UUID]]:
        """The entities with some ids that a viewpoint may know, and the ids that are not kept."""
        found: dict[UUID, tuple[UUID, Item]] = {}
        unread: list[UUID] = []
        for item_id in ids:
            kept = self.around.get(item_id) if self.around else None
            if kept is None or not isinstance(kept.item, Entity):
                unread.append(item_id)
            elif is_known_to(viewpoint, kept.audience):
                found[item_id] = kept.campaign_id, kept.item
        return found, unread

    async def updated(self, session: AsyncSession, sealer: Sealer, campaign: Campaign) -> Names:
        """The same, with what changed since."""
        since = {"campaign_id": campaign.id, "version": self.version}
        by_id, past = dict(self.by_id), set(self.past)
        in_view, around = dict(self.in_view or {}), _Around(self)
        is_renamed = False
        rows = (await session.execute(_CHANGED, since)).all()
        async for row in unhurried(rows, lambda row: len(row.sealed_state)):
            in_view.pop(row.id, None)
            around.drop(row.id)
            if row.kind in NOT_KEPT or (row.kind == "scene" and not row.is_live):
                past.add(row.kind)
                continue
            state = read_state(sealer, row.id, row.sealed_state)
            item = item_of(row.kind, state) if row.exists else None
            if row.kind == "entity":
                before = by_id.pop(row.id, ())
                if item is not None:
                    by_id[row.id] = (state["name"], *state.get("aliases", []))
                is_renamed = is_renamed or by_id.get(row.id, ()) != before
            if item is None:
                continue
            kept = KeptItem(row.id, campaign.id, row.seq, row.audience, len(row.sealed_state), item)
            if row.kind in {"entity", "relation"}:
                around.put(kept)
            if row.subkind == "pc" if row.kind == "entity" else row.is_live and row.kind in IN_VIEW:
                in_view[row.id] = kept
        new = Names(self.user_id)
        new.version, new.by_id, new.past = campaign.version, by_id, frozenset(past)
        named = ((entity_id, name) for entity_id, names in by_id.items() for name in names)
        new.index = NameIndex(named) if is_renamed else self.index
        new.size = sum(each.size for each in in_view.values())
        if self.in_view is None or len(in_view) > MOST_IN_VIEW or new.size > VIEW_BYTES:
            new.in_view, new.size = None, 0
        else:
            new.in_view = in_view
        if self.around is None or around.size > AROUND_BYTES:
            new.around = None
        else:
            new.around, new.tied, new.around_size = around.items, around.tied, around.size
        new.size += new.around_size
        return new


class _Around:
    """Entities and relations of a campaign while they are brought up to date; see `Names`."""

    def __init__(self, names: Names) -> None:
        self.items = dict(names.around or {})
        self.tied = dict(names.tied)
        self.size = names.around_size

    def drop(self, item_id: UUID) -> None:
        old = self.items.pop(item_id, None)
        if old is None:
            return
        self.size -= old.size
        for end in _ends(old.item):
            self.tied[end] -= {item_id}

    def put(self, kept: KeptItem) -> None:
        self.items[kept.id] = kept
        self.size += kept.size
        for end in _ends(kept.item):
            self.tied[end] = self.tied.get(end, frozenset()) | {kept.id}


def _ends(item: Item) -> frozenset[UUID]:
    """Entities that an item is found by: where a person is, both ends of a relation."""
    if isinstance(item, Relation):
        return frozenset((item.from_id, item.to_id))
    if isinstance(item, Entity) and item.kind == "npc" and item.location_id is not None:
        return frozenset((item.location_id,))
    return frozenset()
