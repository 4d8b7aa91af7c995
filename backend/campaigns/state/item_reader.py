"""Reads items of a campaign that a viewpoint may know."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from sqlalchemy import ColumnElement, Select, case, func, or_, select, union_all
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from backend.campaigns.ledger.changes import item_of
from backend.campaigns.ledger.items import Item, Kind, Scene
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import Campaign, CampaignItem
from backend.campaigns.state.party import is_scene_here
from backend.core.audience import GM, Viewpoint, filter_known_to
from backend.core.cpu_pool import iterate_in_slices
from backend.vault.sealing import Sealer

Condition = ColumnElement[bool] | InstrumentedAttribute[bool]

MAX_HOT = 100
"""Items of one kind that are read for one block."""

MAX_ENTITIES = 500
"""Entities of the state as its user reads it."""


class CampaignReader:
    """Reads the items of a campaign that a viewpoint may know of.

    `player` is the persona's name. The player's character of that name leads the party.
    """

    def __init__(
        self,
        session: AsyncSession,
        sealer: Sealer,
        campaign: Campaign,
        viewpoint: Viewpoint = GM,
        *,
        player: str = "",
    ) -> None:
        self.session = session
        self.sealer = sealer
        self.campaign = campaign
        self.viewpoint: Viewpoint = viewpoint
        self.player = player

    @property
    def _own(self) -> tuple[Condition, ...]:
        return (
            CampaignItem.campaign_id == self.campaign.id,
            CampaignItem.exists,
            filter_known_to(self.viewpoint, CampaignItem.audience),
        )

    async def rows(
        self,
        *conditions: Condition,
        limit: int | None = None,
        newest: bool = False,
        rank: ColumnElement[int] | None = None,
    ) -> list[tuple[CampaignItem, Item]]:
        """Items with their rows: of the lowest rank, and then the oldest, or those changed last."""
        order = CampaignItem.seq.desc() if newest else CampaignItem.id
        query = select(CampaignItem).where(*self._own, *conditions)
        return await self._opened(
            query.order_by(*([] if rank is None else [rank]), order).limit(limit)
        )

    async def any_of(
        self, *alternatives: Sequence[Condition], limit: int
    ) -> list[tuple[CampaignItem, Item]]:
        """Items that meet all conditions of one alternative, the oldest first.

        Of more than `limit` those that changed last stay, the world, scenes and players' characters
        before others. Each alternative has an index of its own: for an OR SQLite reads all items of
        the campaign.
        """
        found = union_all(*(select(CampaignItem.id).where(*self._own, *x) for x in alternatives))
        query = select(CampaignItem).where(CampaignItem.id.in_(found))
        rank = case(
            (CampaignItem.kind.in_(("world", "scene")), 0),
            (CampaignItem.subkind == "pc", 1),
            else_=2,
        )
        rows = await self._opened(query.order_by(rank, CampaignItem.seq.desc()).limit(limit))
        return sorted(rows, key=lambda each: each[0].id)

    async def _opened(self, query: Select[CampaignItem]) -> list[tuple[CampaignItem, Item]]:
        rows = (await self.session.scalars(query)).all()
        sized = iterate_in_slices(rows, lambda row: len(row.sealed_state))
        return [(row, self._open(row)) async for row in sized]

    async def of_kind(
        self, kind: Kind, *conditions: Condition, limit: int | None = None, newest: bool = False
    ) -> list[tuple[CampaignItem, Item]]:
        """Items of one kind with their rows."""
        is_kind = CampaignItem.kind == kind
        return await self.rows(is_kind, *conditions, limit=limit, newest=newest)

    async def open_scene(self) -> tuple[CampaignItem, Scene] | None:
        """Return the scene that goes on where the story is; of several, the one changed last."""
        place = await self._story_place()
        scenes = await self.of_kind("scene", CampaignItem.is_live, limit=MAX_HOT, newest=True)
        return next(
            (
                (row, item)
                for row, item in scenes
                if isinstance(item, Scene) and is_scene_here(item.location_id, place)
            ),
            None,
        )

    async def _story_place(self) -> UUID | None:
        first = (
            select(CampaignItem.place_id)
            .where(
                *self._own,
                CampaignItem.kind == "entity",
                CampaignItem.subkind == "pc",
                CampaignItem.place_id.is_not(None),
            )
            .order_by(CampaignItem.id)
            .limit(1)
        )
        place: UUID | None = await self.session.scalar(first)
        return place

    async def nearest(self, scene: Scene | None) -> list[tuple[CampaignItem, Item]]:
        """Return players' characters, who is with them or in the scene, then what changed last.

        `MAX_ENTITIES` at most, the oldest first.
        """
        is_player = CampaignItem.subkind == "pc"
        place = await self._story_place() or (scene and scene.location_id)
        places = [place] if place else []
        present = [*places, *(scene.present if scene else [])]
        is_near = or_(CampaignItem.place_id.in_(places), CampaignItem.id.in_(present))
        rank = case((is_player, 0), (is_near, 1), else_=2)
        rows = await self.rows(
            CampaignItem.kind == "entity", limit=MAX_ENTITIES, newest=True, rank=rank
        )
        return sorted(rows, key=lambda each: each[0].id)

    async def known_ids(self, item_ids: Collection[UUID]) -> set[UUID]:
        """Return the ids of items that exist and that the viewpoint may know."""
        query = select(CampaignItem.id).where(*self._own, CampaignItem.id.in_(item_ids))
        return set(await self.session.scalars(query))

    async def counts(self, *kinds: Kind) -> dict[Kind, int]:
        """How many items of some kinds matter now."""
        query = (
            select(CampaignItem.kind, func.count())
            .where(
                *self._own,
                CampaignItem.is_live,
                CampaignItem.kind.in_(kinds),
            )
            .group_by(CampaignItem.kind)
        )
        found = dict.fromkeys(kinds, 0)
        for kind, count in await self.session.execute(query):
            found[kind] = count
        return found

    def _open(self, row: CampaignItem) -> Item:
        return item_of(row.kind, read_state(self.sealer, row.id, row.sealed_state))
