"""Reads what a viewpoint may know of a campaign: its present moment, and items of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from sqlalchemy import ColumnElement, Select, case, func, or_, select, union_all
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from backend.audience import GM, Viewpoint, known_to
from backend.campaigns.context import MAX_DETAILED, Known, Placed, Situation, ranked
from backend.campaigns.item_rows import read_state
from backend.campaigns.items import (
    Clock,
    Echo,
    Entity,
    Fact,
    Item,
    Kind,
    Relation,
    Scene,
    Term,
    Thread,
    World,
)
from backend.campaigns.ledger import item_of
from backend.campaigns.models import Campaign, CampaignItem
from backend.campaigns.name_cache import Names
from backend.campaigns.records import open_campaign
from backend.campaigns.rules import rules_of
from backend.cpu_pool import unhurried
from backend.vault.sealing import Sealer

Condition = ColumnElement[bool] | InstrumentedAttribute[bool]

MAX_HOT = 100
"""Items of one kind that are read for one block."""

MAX_ENTITIES = 500
"""Entities of the state as its user reads it."""

MAX_MENTIONED = 8
MAX_FACTS = 12

CLOSED_SCENES = 2
"""Closed scenes that a prompt tells of."""

_HOT_KINDS = ("world", "thread", "clock", "scene")


class CampaignReader:
    """Reads the items of a campaign that a viewpoint may know of."""

    def __init__(
        self,
        session: AsyncSession,
        sealer: Sealer,
        campaign: Campaign,
        viewpoint: Viewpoint = GM,
    ) -> None:
        self.session = session
        self.sealer = sealer
        self.campaign = campaign
        self.viewpoint: Viewpoint = viewpoint
        self._own = (
            CampaignItem.campaign_id == campaign.id,
            CampaignItem.exists,
            known_to(viewpoint, CampaignItem.audience),
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
        sized = unhurried(rows, lambda row: len(row.sealed_state))
        return [(row, self._open(row)) async for row in sized]

    async def of_kind(
        self, kind: Kind, *conditions: Condition, limit: int | None = None, newest: bool = False
    ) -> list[tuple[CampaignItem, Item]]:
        """Items of one kind with their rows."""
        is_kind = CampaignItem.kind == kind
        return await self.rows(is_kind, *conditions, limit=limit, newest=newest)

    async def nearest(self, scene: Scene | None) -> list[tuple[CampaignItem, Item]]:
        """Players' characters, who is in the scene or at its place, then what changed last.

        `MAX_ENTITIES` at most, the oldest first.
        """
        is_player = CampaignItem.subkind == "pc"
        first = (
            select(CampaignItem.place_id)
            .where(
                CampaignItem.campaign_id == self.campaign.id,
                CampaignItem.kind == "entity",
                CampaignItem.exists,
                is_player,
                CampaignItem.place_id.is_not(None),
            )
            .order_by(CampaignItem.id)
            .limit(1)
        )
        place = (scene and scene.location_id) or await self.session.scalar(first)
        places = [place] if place else []
        present = [*places, *(scene.present if scene else [])]
        is_near = or_(CampaignItem.place_id.in_(places), CampaignItem.id.in_(present))
        rank = case((is_player, 0), (is_near, 1), else_=2)
        rows = await self.rows(
            CampaignItem.kind == "entity", limit=MAX_ENTITIES, newest=True, rank=rank
        )
        return sorted(rows, key=lambda each: each[0].id)

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

    async def closed_scenes(self) -> list[Scene]:
        """The last scenes that are over and summed up, the older one first."""
        rows = await self.of_kind("scene", ~CampaignItem.is_live, limit=CLOSED_SCENES, newest=True)
        scenes = [item for _, item in rows[::-1] if isinstance(item, Scene)]
        return [scene for scene in scenes if scene.summary or scene.key_moments]

    async def terms(self, limit: int) -> list[Term]:
        """Terms that a prompt may explain, the most used first."""
        if not limit:
            return []
        query = (
            select(CampaignItem.id, CampaignItem.sealed_state)
            .where(
                *self._own,
                CampaignItem.kind == "term",
                CampaignItem.is_live,
            )
            .order_by(CampaignItem.uses.desc(), CampaignItem.id)
            .limit(limit)
        )
        rows = await self.session.execute(query)
        read = partial(read_state, self.sealer)
        items = [item_of("term", read(row.id, row.sealed_state)) for row in rows]
        return [item for item in items if isinstance(item, Term)]

    async def situation(
        self, names: Names, *, line: str, recent: Sequence[str], events: Sequence[tuple[int, str]]
    ) -> Situation:
        """The story's present moment.

        Args:
            names: The campaign's, of the version that is read.
            line: What the user says.
            recent: The last lines of the chat, the newest last.
            events: Of the chronicle, each with its day, the newest last.
        """
        fields = open_campaign(self.sealer, self.campaign)
        is_player = CampaignItem.kind == "entity", CampaignItem.subkind == "pc"
        is_hot = CampaignItem.kind.in_(_HOT_KINDS), CampaignItem.is_live
        hot = await self.any_of(is_player, is_hot, limit=4 * MAX_HOT)
        world = next((item for _, item in hot if isinstance(item, World)), World())
        _, scene_id, scene = max(
            ((row.seq, row.id, item) for row, item in hot if isinstance(item, Scene)),
            key=lambda each: each[0],
            default=(0, None, None),
        )
        players = [_placed(row, item) for row, item in hot if isinstance(item, Entity)]
        place = scene.location_id if scene else None
        place = place or next((p.entity.location_id for p in players if p.entity.location_id), None)

        in_line = names.index.find(line)
        in_lines = [names.index.find(text) for text in recent[::-1]]
        named = list(dict.fromkeys([*in_line, *(in_lines[0] if in_lines else ())]))
        spoke = [one for each in in_lines for one in each]
        in_scene = CampaignItem.id.in_(scene.present) if scene and scene.present else None
        is_here = CampaignItem.place_id == place if in_scene is None else in_scene
        people = [
            _placed(row, item)
            for row, item in await self.of_kind(
                "entity", CampaignItem.subkind == "npc", is_here, limit=MAX_HOT, newest=True
            )
            if isinstance(item, Entity)
        ]
        here = {each.id: each for each in (*players, *people)}
        # Players are named in nearly every reply: only the user's line asks for them.
        silent = {player.id for player in players}.difference(in_line)
        asked = [one for one in named if one not in silent][:MAX_MENTIONED]
        elsewhere = [one for one in asked if one not in here]
        known = here | await self._entities([*elsewhere, *([place] if place else [])])
        relations = await self._relations(list(here))
        present = ranked(people, named=named, spoke=spoke, relations=relations)
        nearest = [*(each.id for each in (*players, *present[:MAX_DETAILED]))]
        about = [*nearest, *([place] if place else [])]
        facts = await self._facts([*about, *asked])
        told = [fact for one in about for fact in facts.get(one, [])][:MAX_FACTS]
        places = await self._place_names(
            names, [*players, *(known[one] for one in asked if one in known)]
        )

        echoes, rules = await self._echoes(), rules_of(self.campaign.rules)
        in_play: dict[UUID, Item] = {row.id: item for row, item in hot}
        in_play |= {one: placed.entity for one, placed in known.items()}
        return Situation(
            name=fields.name,
            city=fields.brief.city,
            setting=fields.brief.setting,
            day=world.day,
            time_of_day=world.time_of_day,
            scene_id=scene_id,
            stakes=scene.stakes if scene else "",
            players=players,
            location=known.get(place) if place else None,
            present=present,
            relations=relations,
            threads=[item for _, item in hot if isinstance(item, Thread)],
            clocks=[item for _, item in hot if isinstance(item, Clock)],
            events=[text for day, text in events if day == world.day],
            echoes=[echo.text for echo in echoes.values()],
            facts=[text for _, text in told],
            named=[
                Known(
                    id=one,
                    entity=known[one].entity,
                    facts=facts.get(one, []),
                    place=places.get(one, ""),
                )
                for one in asked
                if one in known
            ],
            player_lines=[rules.light_line(player.entity) for player in players[:2]],
            in_play=in_play | echoes,
            told=frozenset([*here, *about, *(fact_id for fact_id, _ in told)]),
            places={player.id: places.get(player.id, "") for player in players},
        )

    async def _entities(self, ids: Sequence[UUID]) -> dict[UUID, Placed]:
        if not ids:
            return {}
        rows = await self.of_kind("entity", CampaignItem.id.in_(ids))
        return {row.id: _placed(row, item) for row, item in rows if isinstance(item, Entity)}

    async def _place_names(self, names: Names, entities: Sequence[Placed]) -> dict[UUID, str]:
        """What the places are called where entities are, by entity."""
        places = {
            each.id: where for each in entities if (where := each.entity.location_id) is not None
        }
        hidden: set[UUID] = set()
        if self.viewpoint != GM:
            hidden = set(places.values()) - (await self._entities(list(places.values()))).keys()
        return {
            one: names.by_id[where][0]
            for one, where in places.items()
            if where in names.by_id and where not in hidden
        }

    async def _facts(self, about: Sequence[UUID]) -> dict[UUID, list[tuple[UUID, str]]]:
        """Facts by the entity that they are about, each with its id, the newest last."""
        rows = await self.of_kind(
            "fact",
            CampaignItem.is_live,
            CampaignItem.about_id.in_(about),
            limit=MAX_HOT,
            newest=True,
        )
        facts: dict[UUID, list[tuple[UUID, str]]] = {}
        for row, item in rows[::-1]:
            if isinstance(item, Fact) and item.about_id is not None:
                facts.setdefault(item.about_id, []).append((row.id, item.text))
        return facts

    async def _relations(self, ids: Sequence[UUID]) -> list[Relation]:
        """Relations from and to entities."""
        is_relation = CampaignItem.kind == "relation"
        rows = await self.any_of(
            (CampaignItem.about_id.in_(ids), is_relation),
            (CampaignItem.place_id.in_(ids), is_relation),
            limit=MAX_HOT,
        )
        return [item for _, item in rows if isinstance(item, Relation)]

    async def _echoes(self) -> dict[UUID, Echo]:
        """Costs and threats that are not resolved, the newest first."""
        rows = await self.of_kind("echo", limit=MAX_HOT, newest=True)
        return {row.id: item for row, item in rows if isinstance(item, Echo) and not item.resolved}


def _placed(row: CampaignItem, entity: Entity) -> Placed:
    return Placed(id=row.id, entity=entity)
