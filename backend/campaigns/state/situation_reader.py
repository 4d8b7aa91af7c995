"""Reads where a campaign's story is, for its prompts: what every turn asks, built once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import nlargest
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any
from uuid import UUID

from sqlalchemy import BindParameter, Select, bindparam, select, union_all

from backend.campaigns.ledger.changes import item_of
from backend.campaigns.ledger.items import (
    Chapter,
    Clock,
    Echo,
    Entity,
    Fact,
    Item,
    Relation,
    Scene,
    Term,
    Thread,
    World,
)
from backend.campaigns.ledger.records import open_campaign
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import CampaignItem
from backend.campaigns.play.echoes import MOST_COSTS, MOST_THREATS, EchoKind
from backend.campaigns.rules import rules_of
from backend.campaigns.scenes.chapters import KEPT_SCENES
from backend.campaigns.state.item_reader import MAX_HOT, CampaignReader, Condition
from backend.campaigns.state.party import is_called, is_scene_here, story_place
from backend.campaigns.state.snapshot import Names
from backend.campaigns.state.state_block import MAX_DETAILED, Form, Known, Placed, Situation, ranked
from backend.core.audience import GM, AudienceMarks, Viewpoint, filter_known_to, may_know
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import get_table

MAX_MENTIONED = 8
MAX_FACTS = 12

_HOT_KINDS = ("world", "thread", "clock", "scene")


class SituationReader(CampaignReader):
    """Reads the story's present moment, as a viewpoint may know it."""

    async def situation(self, names: Names, *, line: str, recent: Sequence[str]) -> Situation:
        """Return the story's present moment without facts and events: see `with_facts`.

        Args:
            names: The campaign's, of the version that is read.
            line: What the user says.
            recent: The last lines of the chat, the newest last.
        """
        fields = open_campaign(self.sealer, self.campaign)
        in_view = await self._in_view(names)
        world = next((item for *_, item in in_view if isinstance(item, World)), World())
        players = [
            Placed(id=item_id, entity=item)
            for item_id, _, item in in_view
            if isinstance(item, Entity)
        ]
        players.sort(key=lambda each: not is_called(each.entity, self.player))
        place = story_place(each.entity.location_id for each in players)
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
        # Players are named in nearly every reply: only the user's line asks for them.
        silent = {player.id for player in players}.difference(in_line)
        asked = [one for one in named if one not in silent][:MAX_MENTIONED]
        people, others = await self._around(names, place, scene.present if scene else (), asked)
        known = {each.id: each for each in (*players, *people, *others)}
        relations = await self._relations(names, [each.id for each in (*players, *people)])
        present = ranked(people, named=named, spoke=spoke, relations=relations)
        here = frozenset(each.id for each in (*players, *people))
        marks = AudienceMarks(
            partial(names.find_name, viewpoint=self.viewpoint),
            here if isinstance(self.viewpoint, UUID) else frozenset(),
        )
        places = self._place_names(
            names, marks, [*players, *(known[one] for one in asked if one in known)]
        )
        echoes = sorted(
            (each for each in in_view if isinstance(each[2], Echo)), key=lambda each: -each[1]
        )
        unresolved = {
            item_id: item
            for item_id, _, item in echoes[:MAX_HOT]
            if isinstance(item, Echo) and not item.resolved
        }
        in_play = {item_id: item for item_id, _, item in in_view if not isinstance(item, Echo)}
        in_play |= {one: placed.entity for one, placed in known.items()}
        rules = rules_of(self.campaign.rules)
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
            costs=_echo_lines(marks, unresolved.values(), "cost")[:MOST_COSTS],
            threats=_echo_lines(marks, unresolved.values(), "threat")[:MOST_THREATS],
            standing=(rules.precarity([each.entity for each in players], world) or {}).get(
                "lines", ()
            ),
            flags=world.flags if self.viewpoint == GM else {},
            named=[
                Known(id=one, entity=known[one].entity, place=places.get(one, ""))
                for one in asked
                if one in known
            ],
            player_lines=[
                marks.mark(rules.light_line(player.entity), player.entity.audience)
                for player in players[:2]
            ],
            in_play=in_play | unresolved,
            places={player.id: places.get(player.id, "") for player in players},
        )

    async def with_facts(self, names: Names, now: Situation, *, form: Form) -> Situation:
        """A situation with the facts about whom the last lines name.

        For a full block also with those about the players, who is near them, and the place.
        """
        about: list[UUID] = []
        if form == "full":
            about = [each.id for each in (*now.players, *now.present[:MAX_DETAILED])]
            about += [now.location.id] if now.location else []
        facts = await self._facts(names, [*about, *(each.id for each in now.named)])
        told = [fact for one in about for fact in facts.get(one, [])][:MAX_FACTS]
        here = (each.id for each in (*now.players, *now.present))
        threads = (one for one, item in now.in_play.items() if isinstance(item, Thread))
        return replace(
            now,
            facts=[fact_line(names, now.marks, fact, self.viewpoint) for _, fact in told],
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

    async def _in_view(self, names: Names) -> list[tuple[UUID, int, Item]]:
        """The items that every turn reads, the oldest first: (id, its last change, item)."""
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
        rows = await self.any_of(is_player, is_hot, is_hidden, limit=4 * MAX_HOT)
        rows += await self.of_kind("echo", limit=MAX_HOT, newest=True)
        return [(row.id, row.seq, item) for row, item in rows]

    async def _around(
        self, names: Names, place: UUID | None, in_scene: Sequence[UUID], asked: Sequence[UUID]
    ) -> tuple[list[Placed], list[Placed]]:
        """Who is in the scene, or else at its place; and the place, and entities asked for."""
        ids = [*in_scene, *asked, *([place] if place else [])]
        people: list[Placed] = []
        others: list[Placed] = []
        for each in await self._entities(names, ids, at=None if in_scene else place):
            is_at_place = place is not None and each.entity.location_id == place
            is_here = each.id in in_scene if in_scene else is_at_place
            (people if is_here and each.entity.kind == "npc" else others).append(each)
        return people, others

    async def _entities(
        self, names: Names, ids: Sequence[UUID], *, at: UUID | None = None
    ) -> list[Placed]:
        """Entities by their ids, and the people at a place, those changed last first."""
        if names.around is None:
            rows = await self._found(_AROUND, {"place": at, "ids": ids})
            return [
                Placed(id=row.id, entity=item) for row, item in rows if isinstance(item, Entity)
            ]
        people = names.tied.get(("entity", at), {}).values() if at else ()
        found = {each.id: each for each in nlargest(MAX_HOT, people, key=_seq)}
        found |= {one: names.around[one] for one in ids if one in names.around}
        return [
            Placed(id=each.id, entity=each.item)
            for each in sorted(found.values(), key=_seq, reverse=True)
            if isinstance(each.item, Entity) and may_know(self.viewpoint, each.audience)
        ]

    async def _found(
        self, query: Select[*tuple[Any, ...]], values: Mapping[str, Any] = MappingProxyType({})
    ) -> list[tuple[Any, Item]]:
        """Rows of a query that is built already, and their items."""
        if self.viewpoint != GM:
            query = query.where(filter_known_to(self.viewpoint, _ITEMS.c.audience))
        rows = (await self.session.execute(query, {"campaign": self.campaign.id, **values})).all()
        sized = iterate_in_slices(rows, lambda row: len(row.sealed_state))
        read = partial(read_state, self.sealer)
        return [(row, item_of(row.kind, read(row.id, row.sealed_state))) async for row in sized]

    def _place_names(
        self, names: Names, marks: AudienceMarks, entities: Sequence[Placed]
    ) -> dict[UUID, str]:
        """What the places are called where entities are, by entity."""
        return {
            each.id: marks.mark(name, names.find_audience(where), within=each.entity.audience)
            for each in entities
            if (where := each.entity.location_id) is not None
            and (name := names.find_name(where, self.viewpoint)) is not None
        }

    async def _facts(
        self, names: Names, about: Sequence[UUID]
    ) -> dict[UUID, list[tuple[UUID, Fact]]]:
        """Facts by the entity that they are about, each with its id, the newest last."""
        facts: dict[UUID, list[tuple[UUID, Fact]]] = {}
        if not about:
            return facts
        found = names.facts(about, self.viewpoint, limit=MAX_HOT)
        if found is None:
            rows = await self._found(_FACTS, {"ids": about})
            found = [(row.id, item) for row, item in rows if isinstance(item, Fact)]
        for fact_id, fact in found[::-1]:
            if fact.about_id is not None:
                facts.setdefault(fact.about_id, []).append((fact_id, fact))
        return facts

    async def _relations(self, names: Names, ids: Sequence[UUID]) -> list[Relation]:
        """Relations from and to entities, the oldest first."""
        if not ids:
            return []
        if names.around is None:
            rows = await self._found(_RELATIONS, {"ids": ids})
            rows.sort(key=lambda each: each[0].id)
            return [item for _, item in rows if isinstance(item, Relation)]
        tied = {
            each.id: each
            for one in ids
            for each in names.tied.get(("relation", one), {}).values()
            if isinstance(each.item, Relation) and may_know(self.viewpoint, each.audience)
        }
        latest = nlargest(MAX_HOT, tied.values(), key=_seq)
        latest.sort(key=lambda each: each.id.int)
        return [each.item for each in latest if isinstance(each.item, Relation)]

    async def chapters(self, limit: int) -> dict[UUID, Chapter]:
        """The last chapters by their ids, the newest first."""
        if not limit:
            return {}
        rows = await self._found(_CHAPTERS, {"limit": limit})
        return {row.id: item for row, item in rows if isinstance(item, Chapter)}

    async def closed_scenes(self, told: Collection[UUID] = ()) -> dict[UUID, Scene]:
        """The last scenes that are over and summed up by their ids, the older one first.

        `told` are those that chapters tell of.
        """
        rows = await self._found(_CLOSED_SCENES)
        scenes = [
            (row.id, item)
            for row, item in rows
            if isinstance(item, Scene) and row.id not in told and (item.summary or item.key_moments)
        ]
        return dict(scenes[:KEPT_SCENES][::-1])

    async def terms(self, limit: int) -> list[Term]:
        """Terms that a prompt may explain, the most used first."""
        if not limit:
            return []
        rows = await self._found(_TERMS, {"limit": limit})
        return [item for _, item in rows if isinstance(item, Term)]


def fact_line(names: Names, marks: AudienceMarks, fact: Fact, viewpoint: Viewpoint) -> str:
    """Return the text of a fact with its subject, unless it names it, and with its mark."""
    text, about = fact.text, fact.about_id
    subject = names.find_name(about, viewpoint) if about else None
    if about and subject and about not in names.index.find(text):
        named = marks.mark(subject, names.find_audience(about), within=fact.audience)
        text = f"{named}: {text}"
    return marks.mark(text, fact.audience)


def _echo_lines(marks: AudienceMarks, echoes: Iterable[Echo], kind: EchoKind) -> list[str]:
    return [marks.mark(each.text, each.audience) for each in echoes if each.kind == kind]


_seq = attrgetter("seq")


_ITEMS = get_table(CampaignItem)
_COLUMNS = (
    _ITEMS.c.id,
    _ITEMS.c.kind,
    _ITEMS.c.sealed_state,
)
_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_LATEST = _ITEMS.c.seq.desc()


def _own(*conditions: Condition, columns: Sequence[Any] = _COLUMNS) -> Select[*tuple[Any, ...]]:
    is_own = _ITEMS.c.campaign_id == bindparam("campaign"), _ITEMS.c.exists
    return select(*columns).where(*is_own, *conditions)


def _any(*queries: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """Each query has an index of its own: for an OR SQLite reads all items of the campaign."""
    return _own(_ITEMS.c.id.in_(union_all(*queries)))


# What every turn reads is built once, and of the table: building a statement, and what the ORM adds
# to it, cost more than running it.
_ENTITY, _RELATION = _ITEMS.c.kind == "entity", _ITEMS.c.kind == "relation"
_AROUND = _any(
    _own(_ENTITY, _ITEMS.c.id.in_(_IDS), columns=[_ITEMS.c.id]),
    select(
        _own(
            _ENTITY,
            _ITEMS.c.subkind == "npc",
            _ITEMS.c.place_id == bindparam("place"),
            columns=[_ITEMS.c.id],
        )
        .order_by(_LATEST)
        .limit(MAX_HOT)
        .subquery()
        .c.id
    ),
).order_by(_LATEST)
_RELATIONS = (
    _any(
        _own(_RELATION, _ITEMS.c.about_id.in_(_IDS), columns=[_ITEMS.c.id]),
        _own(_RELATION, _ITEMS.c.place_id.in_(_IDS), columns=[_ITEMS.c.id]),
    )
    .order_by(_LATEST)
    .limit(MAX_HOT)
)
_FACTS = (
    _own(_ITEMS.c.kind == "fact", _ITEMS.c.is_live, _ITEMS.c.about_id.in_(_IDS))
    .order_by(_LATEST)
    .limit(MAX_HOT)
)
_CLOSED_SCENES = (
    _own(_ITEMS.c.kind == "scene", ~_ITEMS.c.is_live)
    .order_by(_LATEST)
    # One of a chapter that was edited may be among them.
    .limit(2 * KEPT_SCENES)
)
_CHAPTERS = _own(_ITEMS.c.kind == "chapter").order_by(_ITEMS.c.id.desc()).limit(bindparam("limit"))
_TERMS = (
    _own(_ITEMS.c.kind == "term", _ITEMS.c.is_live)
    .order_by(_ITEMS.c.uses.desc(), _ITEMS.c.id)
    .limit(bindparam("limit"))
)
