"""Reads the current situation of a campaign's story for its prompts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    bindparam,
    case,
    func,
    or_,
    select,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from backend.campaigns.ledger.changes import build_item
from backend.campaigns.ledger.items import (
    Chapter,
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
from backend.campaigns.ledger.records import open_campaign
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import Campaign, CampaignItem
from backend.campaigns.play.table import MAX_COSTS, MAX_THREATS, EchoKind
from backend.campaigns.rules.protocol import find_rules
from backend.campaigns.scenes.chapters import MAX_LOOSE_SCENES
from backend.campaigns.state.knowledge import EVERYTHING, KnownItems
from backend.campaigns.state.party import find_story_place, has_name, is_scene_here
from backend.campaigns.state.snapshot import MAX_BLOCK_ITEMS, CampaignSnapshot
from backend.campaigns.state.state_block import (
    MAX_DETAILED,
    Feeling,
    Form,
    MentionedEntity,
    Situation,
    VisibleEntity,
    rank_people,
)
from backend.chats.members import NamedMembers
from backend.core.audience import (
    GM,
    AudienceMarks,
    Viewpoint,
    Witness,
    filter_known_to,
    may_know,
)
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import get_table
from backend.vault.sealing import Sealer

Condition = ColumnElement[bool] | InstrumentedAttribute[bool]
RowT = TypeVar("RowT", bound=Any)

MAX_ENTITIES = 500
"""Maximum number of entities in the state that users read."""


class CampaignReader:
    """Reads items that a viewpoint may know.

    The character named `player` leads the party. `members` are those of the chat. `known` are the
    items that differ from their rows for this viewpoint.
    """

    def __init__(
        self,
        session: AsyncSession,
        sealer: Sealer,
        campaign: Campaign,
        viewpoint: Viewpoint = GM,
        *,
        player: str = "",
        members: NamedMembers | None = None,
        known: KnownItems = EVERYTHING,
    ) -> None:
        self.session = session
        self.sealer = sealer
        self.campaign = campaign
        self.viewpoint: Viewpoint = viewpoint
        self.player = player
        self.members = members or NamedMembers()
        self.known = known

    @property
    def _own(self) -> tuple[Condition, ...]:
        return (
            CampaignItem.campaign_id == self.campaign.id,
            CampaignItem.exists,
            filter_known_to(self.viewpoint, CampaignItem.audience),
        )

    async def load_rows(
        self,
        *conditions: Condition,
        limit: int | None = None,
        newest: bool = False,
        rank: ColumnElement[int] | None = None,
    ) -> list[tuple[CampaignItem, Item]]:
        """Return items with their rows, ordered by rank, and then by age or last change."""
        order = CampaignItem.seq.desc() if newest else CampaignItem.id
        query = select(CampaignItem).where(*self._own, *conditions)
        return await self._load_opened(
            query.order_by(*([] if rank is None else [rank]), order).limit(limit)
        )

    async def load_any(
        self, *alternatives: Sequence[Condition], limit: int
    ) -> list[tuple[CampaignItem, Item]]:
        """Return the items that meet all conditions of one alternative, the oldest first.

        Above `limit`, the world, scenes, players' characters and last changed items are kept. Each
        alternative has an index; for an OR, SQLite would read all items of the campaign.
        """
        found = union_all(*(select(CampaignItem.id).where(*self._own, *x) for x in alternatives))
        query = select(CampaignItem).where(CampaignItem.id.in_(found))
        rank = case(
            (CampaignItem.kind.in_(("world", "scene")), 0),
            (CampaignItem.subkind == "pc", 1),
            else_=2,
        )
        rows = await self._load_opened(query.order_by(rank, CampaignItem.seq.desc()).limit(limit))
        return sorted(rows, key=lambda each: each[0].id)

    async def _load_opened(self, query: Select[CampaignItem]) -> list[tuple[CampaignItem, Item]]:
        rows = (await self.session.scalars(query)).all()
        sized = iterate_in_slices(rows, lambda row: len(row.sealed_state))
        return self._apply_known([(row, self._open(row)) async for row in sized])

    def _apply_known(self, rows: Sequence[tuple[RowT, Item]]) -> list[tuple[RowT, Item]]:
        """Return rows with their items as the viewpoint knows them, without unknown ones."""
        known = self.known
        return [
            (row, item if each is None else each.item)
            for row, item in rows
            for each in [known.get(row.id)]
            if each is not None or row.id not in known
        ]

    async def load_items(
        self, kind: Kind, *conditions: Condition, limit: int | None = None, newest: bool = False
    ) -> list[tuple[CampaignItem, Item]]:
        is_kind = CampaignItem.kind == kind
        return await self.load_rows(is_kind, *conditions, limit=limit, newest=newest)

    async def find_open_scene(self) -> tuple[CampaignItem, Scene] | None:
        """Return the open scene at the place of the story; of several, the last changed one."""
        place = await self._find_story_place()
        scenes = await self.load_items(
            "scene", CampaignItem.is_live, limit=MAX_BLOCK_ITEMS, newest=True
        )
        return next(
            (
                (row, item)
                for row, item in scenes
                if isinstance(item, Scene) and is_scene_here(item.location_id, place)
            ),
            None,
        )

    async def _find_story_place(self) -> UUID | None:
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

    async def load_nearest(self, scene: Scene | None) -> list[tuple[CampaignItem, Item]]:
        """Return `MAX_ENTITIES` entities: players', nearby, in the scene, then the last changed."""
        is_player = CampaignItem.subkind == "pc"
        place = await self._find_story_place() or (scene and scene.location_id)
        places = [place] if place else []
        present = [*places, *(scene.present if scene else [])]
        is_near = or_(CampaignItem.place_id.in_(places), CampaignItem.id.in_(present))
        rank = case((is_player, 0), (is_near, 1), else_=2)
        rows = await self.load_rows(
            CampaignItem.kind == "entity", limit=MAX_ENTITIES, newest=True, rank=rank
        )
        return sorted(rows, key=lambda each: each[0].id)

    async def load_known_ids(self, item_ids: Collection[UUID]) -> set[UUID]:
        query = select(CampaignItem.id).where(*self._own, CampaignItem.id.in_(item_ids))
        unknown = {each for each, known in self.known.items() if known is None}
        return set(await self.session.scalars(query)) - unknown

    async def count_live(self, *kinds: Kind) -> dict[Kind, int]:
        query = (
            select(CampaignItem.kind, func.count())
            .where(*self._own, CampaignItem.is_live, CampaignItem.kind.in_(kinds))
            .group_by(CampaignItem.kind)
        )
        found = dict.fromkeys(kinds, 0)
        for kind, count in await self.session.execute(query):
            found[kind] = count
        return found

    def _open(self, row: CampaignItem) -> Item:
        return build_item(row.kind, read_state(self.sealer, row.id, row.sealed_state))


MAX_MENTIONED = 8
MAX_FACTS = 12

_HOT_KINDS = ("world", "thread", "clock", "scene")


class SituationReader(CampaignReader):
    async def load_situation(
        self, names: CampaignSnapshot, *, line: str, recent: Sequence[str]
    ) -> Situation:
        """Return the current situation without facts and events: see `add_facts`."""
        fields = open_campaign(self.sealer, self.campaign)
        in_view = await self._load_view(names)
        world = next((item for *_, item in in_view if isinstance(item, World)), World())
        players = [
            VisibleEntity(id=item_id, entity=item)
            for item_id, _, item in in_view
            if isinstance(item, Entity)
        ]
        players.sort(key=lambda each: not has_name(each.entity, self.player))
        place = find_story_place(each.entity.location_id for each in players)
        _, scene_id, scene = max(
            (
                (seq, item_id, item)
                for item_id, seq, item in in_view
                if isinstance(item, Scene) and is_scene_here(item.location_id, place)
            ),
            key=itemgetter(0),
            default=(0, None, None),
        )
        place = place or (scene.location_id if scene else None)

        in_line = names.index.find(line)
        in_lines = [names.index.find(text) for text in recent[::-1]]
        named = list(dict.fromkeys([*in_line, *(in_lines[0] if in_lines else ())]))
        spoke = [one for each in in_lines for one in each]
        # Nearly every reply names players: only the user's message asks for facts about them.
        silent = {player.id for player in players}.difference(in_line)
        asked = [one for one in named if one not in silent][:MAX_MENTIONED]
        people, others = await self._load_around(
            names, place, scene.present if scene else (), asked
        )
        known = {each.id: each for each in (*players, *people, *others)}
        own = self._list_own(names)
        relations = await self._load_relations(
            names, [*(each.id for each in (*players, *people)), *own]
        )
        present = rank_people(people, named=named, spoke=spoke, relations=relations)
        marks = self._make_marks(names, [each.id for each in (*players, *people)])
        places = self._find_place_names(
            names, marks, [*players, *(known[one] for one in asked if one in known)]
        )
        echoes = sorted(
            (each for each in in_view if isinstance(each[2], Echo)), key=lambda each: -each[1]
        )
        unresolved = {
            item_id: item
            for item_id, _, item in echoes[:MAX_BLOCK_ITEMS]
            if isinstance(item, Echo) and not item.resolved
        }
        in_play = {item_id: item for item_id, _, item in in_view if not isinstance(item, Echo)}
        in_play |= {one: placed.entity for one, placed in known.items()}
        rules = find_rules(self.campaign.rules)
        return Situation(
            name=fields.name,
            city=fields.brief.city,
            setting=fields.brief.setting,
            day=world.day,
            time_of_day=world.time_of_day,
            scene_id=scene_id,
            stakes=marks.mark(scene.stakes, scene.audience) if scene else "",
            marks=marks,
            players=players,
            location=known.get(place) if place else None,
            present=present,
            relations=relations,
            threads=[item for *_, item in in_view if isinstance(item, Thread)],
            clocks=[item for *_, item in in_view if isinstance(item, Clock)],
            costs=_render_echoes(marks, unresolved.values(), "cost")[:MAX_COSTS],
            threats=_render_echoes(marks, unresolved.values(), "threat")[:MAX_THREATS],
            standing=(rules.precarity([each.entity for each in players], world) or {}).get(
                "lines", ()
            ),
            flags=world.flags if self.viewpoint == GM else {},
            named=[
                MentionedEntity(id=one, entity=known[one].entity, place=places.get(one, ""))
                for one in asked
                if one in known
            ],
            player_lines=[
                marks.mark(rules.light_line(player.entity), player.entity.audience)
                for player in players[:2]
            ],
            in_play=in_play | unresolved,
            feelings=self._find_feelings(
                names, relations, own, [each.id for each in (*players, *present)]
            ),
            places={player.id: places.get(player.id, "") for player in players},
        )

    def _list_own(self, names: CampaignSnapshot) -> list[UUID]:
        """Return the entities that the viewpoint plays, if it is a character."""
        if not isinstance(self.viewpoint, Witness):
            return []
        return sorted(each for each in self.viewpoint.ids if each in names.by_id)

    def _find_feelings(
        self,
        names: CampaignSnapshot,
        relations: Sequence[Relation],
        own: Sequence[UUID],
        here: Sequence[UUID],
    ) -> list[Feeling]:
        """Return the speaker's own relations to those who are there, in their order."""
        members = sorted({each for ids in self.members.present for each in ids})
        others = {each: place for place, each in enumerate(dict.fromkeys([*here, *members]))}
        found = [each for each in relations if each.from_id in own and each.to_id in others]
        found.sort(key=lambda each: (own.index(each.from_id), others[each.to_id]))
        return [
            Feeling(name, other, each.score, each.note, each.audience)
            for each in found
            if each.to_id not in own
            and (name := names.find_name(each.from_id, self.viewpoint))
            and (other := names.find_name(each.to_id, self.viewpoint))
        ]

    def _make_marks(self, names: CampaignSnapshot, here: Sequence[UUID]) -> AudienceMarks:
        """Return the marks for the prompt. Texts that all in the scene know have none."""
        members = self.members

        def find_name(each: UUID) -> str | None:
            return members.names.get(each) or names.find_name(each, self.viewpoint)

        if isinstance(self.viewpoint, str):
            return AudienceMarks(find_name)
        others = [
            frozenset({each}) for each in here if not any(each in one for one in members.present)
        ]
        return AudienceMarks(find_name, [*members.present, *others])

    async def add_facts(self, names: CampaignSnapshot, now: Situation, *, form: Form) -> Situation:
        """Add facts about mentioned entities; for a full block, also about people and place."""
        about: list[UUID] = []
        if form == "full":
            about = [each.id for each in (*now.players, *now.present[:MAX_DETAILED])]
            about += [now.location.id] if now.location else []
        facts = await self._load_facts(names, [*about, *(each.id for each in now.named)])
        told = [fact for one in about for fact in facts.get(one, [])][:MAX_FACTS]
        here = (each.id for each in (*now.players, *now.present))
        threads = (one for one, item in now.in_play.items() if isinstance(item, Thread))
        return replace(
            now,
            facts=[render_fact(names, now.marks, fact, self.viewpoint) for _, fact in told],
            named=[
                replace(
                    each,
                    facts=[
                        (one, now.marks.mark(fact.text, fact.audience, within=each.entity.audience))
                        for one, fact in facts.get(each.id, [])
                    ],
                )
                for each in now.named
            ],
            told=frozenset([*here, *about, *threads, *(fact_id for fact_id, _ in told)]),
        )

    async def _load_view(self, names: CampaignSnapshot) -> list[tuple[UUID, int, Item]]:
        """Return the items that every turn reads, the oldest first: (id, last change, item)."""
        if names.in_view is not None:
            return sorted(
                (
                    (each.id, each.seq, each.item)
                    for each in names.in_view.values()
                    if may_know(self.viewpoint, each.audience)
                ),
                key=lambda each: each[0].int,
            )
        is_player = CampaignItem.kind == "entity", CampaignItem.subkind == "pc"
        is_hot = CampaignItem.kind.in_(_HOT_KINDS), CampaignItem.is_live
        is_hidden = CampaignItem.kind == "clock", ~CampaignItem.is_live
        rows = await self.load_any(is_player, is_hot, is_hidden, limit=4 * MAX_BLOCK_ITEMS)
        rows += await self.load_items("echo", limit=MAX_BLOCK_ITEMS, newest=True)
        return [(row.id, row.seq, item) for row, item in rows]

    async def _load_around(
        self,
        names: CampaignSnapshot,
        place: UUID | None,
        in_scene: Sequence[UUID],
        asked: Sequence[UUID],
    ) -> tuple[list[VisibleEntity], list[VisibleEntity]]:
        """Return the people in the scene, or else at its place; the place; and requests."""
        ids = [*in_scene, *asked, *([place] if place else [])]
        people: list[VisibleEntity] = []
        others: list[VisibleEntity] = []
        for each in await self._load_entities(names, ids, at=None if in_scene else place):
            is_at_place = place is not None and each.entity.location_id == place
            is_here = each.id in in_scene if in_scene else is_at_place
            (people if is_here and each.entity.kind == "npc" else others).append(each)
        return people, others

    async def _load_entities(
        self, names: CampaignSnapshot, ids: Sequence[UUID], *, at: UUID | None = None
    ) -> list[VisibleEntity]:
        if names.around is None:
            rows = await self._load_prebuilt(_AROUND, {"place": at, "ids": ids})
            return [
                VisibleEntity(id=row.id, entity=item)
                for row, item in rows
                if isinstance(item, Entity)
            ]
        return [
            VisibleEntity(id=each.id, entity=each.item)
            for each in names.find_entities(ids, at, self.viewpoint)
            if isinstance(each.item, Entity)
        ]

    async def _load_prebuilt(
        self, query: Select[*tuple[Any, ...]], values: Mapping[str, Any] = MappingProxyType({})
    ) -> list[tuple[Any, Item]]:
        if self.viewpoint != GM:
            query = query.where(filter_known_to(self.viewpoint, _ITEMS.c.audience))
        rows = (await self.session.execute(query, {"campaign": self.campaign.id, **values})).all()
        sized = iterate_in_slices(rows, lambda row: len(row.sealed_state))
        read = partial(read_state, self.sealer)
        items = [(row, build_item(row.kind, read(row.id, row.sealed_state))) async for row in sized]
        return self._apply_known(items)

    def _find_place_names(
        self, names: CampaignSnapshot, marks: AudienceMarks, entities: Sequence[VisibleEntity]
    ) -> dict[UUID, str]:
        return {
            each.id: marks.mark(name, names.find_audience(where), within=each.entity.audience)
            for each in entities
            if (where := each.entity.location_id) is not None
            and (name := names.find_name(where, self.viewpoint)) is not None
        }

    async def _load_facts(
        self, names: CampaignSnapshot, about: Sequence[UUID]
    ) -> dict[UUID, list[tuple[UUID, Fact]]]:
        """Return facts by their entity, each with its id, the newest last."""
        facts: dict[UUID, list[tuple[UUID, Fact]]] = {}
        if not about:
            return facts
        found = names.find_facts(about, self.viewpoint, limit=MAX_BLOCK_ITEMS)
        if found is None:
            rows = await self._load_prebuilt(_FACTS, {"ids": about})
            found = [(row.id, item) for row, item in rows if isinstance(item, Fact)]
        for fact_id, fact in found[::-1]:
            if fact.about_id is not None:
                facts.setdefault(fact.about_id, []).append((fact_id, fact))
        return facts

    async def _load_relations(self, names: CampaignSnapshot, ids: Sequence[UUID]) -> list[Relation]:
        if not ids:
            return []
        if names.around is None:
            rows = await self._load_prebuilt(_RELATIONS, {"ids": ids})
            rows.sort(key=lambda each: each[0].id)
            return [item for _, item in rows if isinstance(item, Relation)]
        return names.find_relations(ids, self.viewpoint)

    async def load_chapters(self, limit: int) -> dict[UUID, Chapter]:
        """Return the last chapters by id, the newest first."""
        if not limit:
            return {}
        rows = await self._load_prebuilt(_CHAPTERS, {"limit": limit})
        return {row.id: item for row, item in rows if isinstance(item, Chapter)}

    async def load_closed_scenes(self, told: Collection[UUID] = ()) -> dict[UUID, Scene]:
        """Return the last closed scenes with a summary, oldest first. Chapters cover `told`."""
        rows = await self._load_prebuilt(_CLOSED_SCENES)
        scenes = [
            (row.id, item)
            for row, item in rows
            if isinstance(item, Scene) and item.status == "closed"
            if row.id not in told and (item.summary or item.key_moments)
        ]
        return dict(scenes[:MAX_LOOSE_SCENES][::-1])

    async def load_terms(self, limit: int) -> list[Term]:
        """Return the terms that a prompt may explain, the most used first."""
        if not limit:
            return []
        rows = await self._load_prebuilt(_TERMS, {"limit": limit})
        return [item for _, item in rows if isinstance(item, Term)]


def render_fact(
    names: CampaignSnapshot, marks: AudienceMarks, fact: Fact, viewpoint: Viewpoint
) -> str:
    """Return the text of a fact with its audience mark, and its subject if the text omits it."""
    text, about = fact.text, fact.about_id
    subject = names.find_name(about, viewpoint) if about else None
    if about and subject and about not in names.index.find(text):
        named = marks.mark(subject, names.find_audience(about), within=fact.audience)
        text = f"{named}: {text}"
    return marks.mark(text, fact.audience)


def _render_echoes(marks: AudienceMarks, echoes: Iterable[Echo], kind: EchoKind) -> list[str]:
    return [marks.mark(each.text, each.audience) for each in echoes if each.kind == kind]


_ITEMS = get_table(CampaignItem)
_COLUMNS = (_ITEMS.c.id, _ITEMS.c.kind, _ITEMS.c.sealed_state)
_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_LATEST = _ITEMS.c.seq.desc()


def _select_own(
    *conditions: Condition, columns: Sequence[Any] = _COLUMNS
) -> Select[*tuple[Any, ...]]:
    is_own = _ITEMS.c.campaign_id == bindparam("campaign"), _ITEMS.c.exists
    return select(*columns).where(*is_own, *conditions)


def _union_all(*queries: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """Combine indexed queries, because for an OR, SQLite would read all items of the campaign."""
    return _select_own(_ITEMS.c.id.in_(union_all(*queries)))


# Every turn reads these: they are built once, and from the table, because building a statement
# and the ORM's work take longer than running it.
_ENTITY, _RELATION = _ITEMS.c.kind == "entity", _ITEMS.c.kind == "relation"
_AROUND = _union_all(
    _select_own(_ENTITY, _ITEMS.c.id.in_(_IDS), columns=[_ITEMS.c.id]),
    select(
        _select_own(
            _ENTITY,
            _ITEMS.c.subkind == "npc",
            _ITEMS.c.place_id == bindparam("place"),
            columns=[_ITEMS.c.id],
        )
        .order_by(_LATEST)
        .limit(MAX_BLOCK_ITEMS)
        .subquery()
        .c.id
    ),
).order_by(_LATEST)
_RELATIONS = (
    _union_all(
        _select_own(_RELATION, _ITEMS.c.about_id.in_(_IDS), columns=[_ITEMS.c.id]),
        _select_own(_RELATION, _ITEMS.c.place_id.in_(_IDS), columns=[_ITEMS.c.id]),
    )
    .order_by(_LATEST)
    .limit(MAX_BLOCK_ITEMS)
)
_FACTS = (
    _select_own(_ITEMS.c.kind == "fact", _ITEMS.c.is_live, _ITEMS.c.about_id.in_(_IDS))
    .order_by(_LATEST)
    .limit(MAX_BLOCK_ITEMS)
)
_CLOSED_SCENES = (
    _select_own(_ITEMS.c.kind == "scene", ~_ITEMS.c.is_live)
    .order_by(_LATEST)
    # It may contain a scene of a chapter that was edited.
    .limit(2 * MAX_LOOSE_SCENES)
)
_CHAPTERS = (
    _select_own(_ITEMS.c.kind == "chapter").order_by(_ITEMS.c.id.desc()).limit(bindparam("limit"))
)
_TERMS = (
    _select_own(_ITEMS.c.kind == "term", _ITEMS.c.is_live)
    .order_by(_ITEMS.c.uses.desc(), _ITEMS.c.id)
    .limit(bindparam("limit"))
)
