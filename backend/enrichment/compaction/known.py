"""What an audience may know of a campaign: as a model reads it, and as calls are resolved in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast
from uuid import UUID

from sqlalchemy import and_, bindparam, case, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import State
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.store import audience_of, read_state
from backend.campaigns.models import Campaign, CampaignItem
from backend.campaigns.names.mentions import NameIndex
from backend.campaigns.names.roster import Member
from backend.campaigns.play.references import Held, called
from backend.campaigns.play.state import PLAY, POOL, ROLL
from backend.campaigns.rules import AttributeType, Rules, rules_of
from backend.campaigns.state.party import is_scene_here, story_place
from backend.campaigns.state.snapshot import NameCache
from backend.core.audience import (
    Audience,
    AudienceMarks,
    encode_audience,
    filter_known_to_all,
    may_all_know,
)
from backend.core.cpu_pool import SEALED_FACTOR, iterate_in_slices
from backend.enrichment.cleaning import clip, to_one_line
from backend.enrichment.compaction.tools import UPDATERS, Updater
from backend.vault.sealing import Sealer

MAX_ENTITIES = 60
MAX_THREADS = 30
MAX_CLOCKS = 20
MAX_FACTS = 60
MAX_KNOWN = 2_000
"""Items that are read: those that changed last. An entity that the text names is read, too."""
MAX_NAMED = 200
MAX_LINE = 600
MAX_VALUE = 240
"""Characters of an item, and of one of its fields, that are shown."""

_LETTERS: Mapping[Kind, str] = {
    "entity": "E",
    "thread": "T",
    "clock": "C",
    "fact": "F",
    "scene": "S",
}
_MOST: Mapping[Kind, int] = {"thread": MAX_THREADS, "clock": MAX_CLOCKS}
_REFERENCES = {"location": "location_id", "giver": "giver_id", "present": "present"}
_HIDDEN = frozenset({PLAY, POOL, ROLL})

_COLUMNS = (CampaignItem.id, CampaignItem.kind, CampaignItem.sealed_state)
_OF_CAMPAIGN = CampaignItem.campaign_id == bindparam("campaign"), CampaignItem.exists
_IS_LIVE_SCENE = and_(CampaignItem.kind == "scene", CampaignItem.is_live)
_IS_LIVE_FACT = and_(CampaignItem.kind == "fact", CampaignItem.is_live)
_IS_CHANGEABLE = or_(CampaignItem.kind.in_(("world", "entity", "thread", "clock")), _IS_LIVE_SCENE)
_COMES_FIRST = or_(CampaignItem.kind == "world", CampaignItem.subkind == "pc", _IS_LIVE_SCENE)
_ITEMS = (
    select(*_COLUMNS)
    .where(*_OF_CAMPAIGN, _IS_CHANGEABLE)
    .order_by(case((_COMES_FIRST, 0), else_=1), CampaignItem.version.desc(), CampaignItem.id.desc())
    .limit(bindparam("most"))
)
_NAMED = select(*_COLUMNS).where(
    *_OF_CAMPAIGN, CampaignItem.id.in_(bindparam("named", expanding=True))
)
_FACTS = (
    select(*_COLUMNS)
    .where(*_OF_CAMPAIGN, _IS_LIVE_FACT)
    .order_by(CampaignItem.seq.desc())
    .limit(500)
)
_CHANGED = select(
    *_COLUMNS,
    CampaignItem.audience,
    and_(CampaignItem.exists, or_(_IS_CHANGEABLE, _IS_LIVE_FACT)).label("counts"),
).where(
    CampaignItem.campaign_id == bindparam("campaign"),
    CampaignItem.version > bindparam("version"),
)


@dataclass(frozen=True, slots=True)
class KnownWorld:
    """The latest items of a campaign at one version, within `MAX_KNOWN`."""

    campaign_id: UUID
    version: int
    rules: Rules
    items: Mapping[UUID, Held]

    @property
    def scene_id(self) -> UUID | None:
        """The scene that goes on where the players are: of several the latest."""
        players = (state for state in self.entities.values() if state["kind"] == "pc")
        place: str | None = story_place(state.get("location_id") for state in players)
        found = (
            item_id
            for item_id, held in self.items.items()
            if held.kind == "scene" and is_scene_here(held.state.get("location_id"), place)
        )
        return max(found, default=None)

    @property
    def present(self) -> frozenset[UUID]:
        """Who is where the story is: the players' characters, and who is in the scene with them."""
        scene = self.items[self.scene_id].state if self.scene_id else {}
        inside = {UUID(str(each)) for each in scene.get("present") or ()}
        players = {one for one, state in self.entities.items() if state["kind"] == "pc"}
        places = {self.entities[one].get("location_id") for one in players}
        places |= {scene.get("location_id")}
        near = {
            one
            for one, state in self.entities.items()
            if state.get("location_id") and state["location_id"] in places
        }
        there = {UUID(each) for each in places if each}
        return frozenset((players | inside | near | there) & self.entities.keys())

    @property
    def entities(self) -> Mapping[UUID, State]:
        """Entities by their ids."""
        return {one: held.state for one, held in self.items.items() if held.kind == "entity"}

    @property
    def marks(self) -> AudienceMarks:
        """Marks for items with a limited audience."""
        return AudienceMarks(self._find_name)

    def _find_name(self, entity_id: UUID) -> str | None:
        held = self.items.get(entity_id)
        return called(held.state) if held else None

    def members(self) -> list[Member]:
        """The entities, for a roster."""
        return [member_of(one, state) for one, state in self.entities.items()]


@dataclass(frozen=True, slots=True)
class ShownWorld:
    """Items as a model reads them, and by which references it names them."""

    lines: Sequence[str]
    references: Mapping[str, UUID]


async def read_world(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    names: NameCache,
    lines: Sequence[str],
    *,
    audience: str,
) -> KnownWorld:
    """Return the items of a campaign that all may know who have this stored audience.

    In a campaign with more than `MAX_KNOWN` items, entities that `lines` name are found by `names`.
    """
    place, knows = {"campaign": campaign.id}, filter_known_to_all(audience, CampaignItem.audience)
    rows = list(await session.execute(_ITEMS.where(knows), {**place, "most": MAX_KNOWN}))
    if len(rows) == MAX_KNOWN:
        index = (await names.read(session, sealer, campaign)).index
        named: dict[UUID, None] = {}
        async for line in iterate_in_slices(lines, lambda line: SEALED_FACTOR * len(line)):
            named |= dict.fromkeys(index.find(line))
        for row in rows:
            named.pop(row.id, None)
        wanted = {**place, "named": list(named)[:MAX_NAMED]}
        rows += await session.execute(_NAMED.where(knows), wanted)
    rows.sort(key=attrgetter("id"))
    facts = (await session.execute(_FACTS.where(knows), place)).all()
    items: dict[UUID, Held] = {}
    async for row in iterate_in_slices([*rows, *facts], lambda row: len(row.sealed_state)):
        items[row.id] = Held(row.kind, read_state(sealer, row.id, row.sealed_state))
    return KnownWorld(campaign.id, campaign.version, rules_of(campaign.rules), items)


async def refresh_world(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, known: KnownWorld, *, audience: str
) -> KnownWorld:
    """Return a world as it is now. Only changed items are read, as the campaign may be locked."""
    since = {"campaign": campaign.id, "version": known.version}
    items = dict(known.items)
    rows = (await session.execute(_CHANGED, since)).all()
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        items.pop(row.id, None)
        if row.counts and may_all_know(audience, row.audience):
            items[row.id] = Held(row.kind, read_state(sealer, row.id, row.sealed_state))
    return KnownWorld(campaign.id, campaign.version, rules_of(campaign.rules), items)


def member_of(entity_id: UUID, state: State) -> Member:
    """An entity, for a roster."""
    place, audience = state.get("location_id"), cast("Audience", state.get("audience", "public"))
    return Member(
        id=entity_id,
        kind=state["kind"],
        names=(state["name"], *state.get("aliases", ())),
        role=state.get("role", ""),
        place_id=UUID(place) if place else None,
        audience=encode_audience(audience),
    )


def show(known: KnownWorld, text: str) -> ShownWorld:
    """What a model needs to read a text: who is near, or named in it, what is open. CPU-bound."""
    entities, present = known.entities, known.present
    names = NameIndex(
        (one, name) for one, state in entities.items() for name in member_of(one, state).names
    )
    wanted = list(dict.fromkeys([*names.find(text), *sorted(present)]))[:MAX_ENTITIES]
    by_kind: dict[Kind, list[UUID]] = {"entity": wanted}
    for kind, most in _MOST.items():
        ids = [one for one, held in known.items.items() if held.kind == kind]
        by_kind[kind] = [one for one in ids if _is_open(known.items[one].state)][-most:]
    by_kind["scene"] = [known.scene_id] if known.scene_id else []
    about = {str(each) for each in wanted}
    by_kind["fact"] = [
        one
        for one, held in known.items.items()
        if held.kind == "fact" and (held.state.get("about_id") or "") in {*about, ""}
    ][:MAX_FACTS]
    references: dict[str, UUID] = {}
    world = known.items[known.campaign_id].state
    lines = [f"Day {world.get('day', 1)}, {to_one_line(world.get('time_of_day', ''))}".rstrip(", ")]
    for kind, ids in by_kind.items():
        for number, item_id in enumerate(ids, start=1):
            reference = f"{_LETTERS[kind]}{number}"
            references[reference] = item_id
            lines.append(f"{reference} {_told(known, known.items[item_id])}")
    return ShownWorld(lines, references)


def attributes_of(known: KnownWorld) -> dict[str, dict[str, AttributeType]]:
    """The attributes of entities that a model may change by itself, by their kind."""
    found: dict[str, dict[str, AttributeType]] = {}
    for state in known.entities.values():
        found.setdefault(state["kind"], {}).update(changeable(known.rules, state))
    return found


def changeable(rules: Rules, state: State) -> dict[str, AttributeType]:
    """The attributes of an entity that a model may change by itself."""
    members = rules.changeable("entity", state)
    return {name: kind for name, kind in members.items() if name not in _HIDDEN}


def key_of(updater: Updater, field: str) -> str:
    """The member of an item's state that a field of a tool is."""
    return _REFERENCES.get(field, field) if field in updater.fields else f"attributes.{field}"


def _told(known: KnownWorld, held: Held) -> str:
    """An item in one line, with all of it that a tool may change."""
    state = held.state
    kind = state.get("kind", held.kind)
    updater = next(
        each
        for each in UPDATERS.values()
        if each.kind == held.kind and (not each.subkinds or kind in each.subkinds)
    )
    values = [
        f"{field}: {value}"
        for field in updater.fields
        if field not in {"name", "title", "text", "kind", "done"}
        if (value := _value(known, state.get(key_of(updater, field))))
    ]
    if held.kind == "entity":
        attributes: State = state.get("attributes") or {}
        values += [
            f"{name}: {value}"
            for name in changeable(known.rules, state)
            if (value := _value(known, attributes.get(name)))
        ]
    about = _value(known, state.get("about_id"))
    head = f"{about}: {called(state)}" if about else f"{called(state) or 'The scene'} ({kind})"
    said = known.marks.mark("; ".join([head, *values]), audience_of(state))
    return clip(to_one_line(said), MAX_LINE)


def _value(known: KnownWorld, value: Any) -> str:
    if isinstance(value, list):
        listed = [_value(known, each) for each in cast("Sequence[Any]", value)]
        return clip(", ".join(each for each in listed if each), MAX_VALUE)
    if isinstance(value, dict):  # an objective
        said = cast("State", value)
        return f"{said.get('text', '')} (done)" if said.get("done") else str(said.get("text", ""))
    if isinstance(value, str) and (named := _named(known, value)):
        return named
    return "" if value is None else clip(str(value), MAX_VALUE)


def _named(known: KnownWorld, value: str) -> str:
    """What an item is called whose id this is."""
    try:
        held = known.items.get(UUID(value))
    except ValueError:
        return ""
    return called(held.state) if held else ""


def _is_open(state: State) -> bool:
    status: str = state.get("status", "open")
    return status == "open"
