"""Loads unread messages, and the items of a campaign that their audience may know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, takewhile
from operator import attrgetter
from typing import Any, cast
from uuid import UUID

from sqlalchemy import ColumnElement, and_, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import State, build_state
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.store import get_audience, read_state
from backend.campaigns.models import Campaign, CampaignItem, CampaignMark
from backend.campaigns.names.roster import Member, NameIndex
from backend.campaigns.play.references import get_name
from backend.campaigns.rules.blades import POOL
from backend.campaigns.rules.protocol import AttributeType, RuleSystem, find_rules
from backend.campaigns.rules.state import PLAY, ROLL, ItemState
from backend.campaigns.state.knowledge import ItemScope, load_known_items
from backend.campaigns.state.listeners import (
    Listeners,
    WitnessFinder,
    find_listeners,
    read_group_marks,
)
from backend.campaigns.state.party import find_story_place, is_scene_here
from backend.campaigns.state.snapshot import SnapshotCache
from backend.campaigns.state.witnesses import find_item_audience
from backend.chats.members import filter_heard, load_group
from backend.chats.models import MESSAGE_AUTHOR, Chat, Message
from backend.core.audience import (
    Audience,
    AudienceMarks,
    encode_audience,
    filter_known_to,
    may_know,
)
from backend.core.cpu_pool import SEALED_FACTOR, iterate_in_slices
from backend.enrichment.cleaning import clip, to_one_line
from backend.enrichment.compaction.tools import UPDATERS, Updater
from backend.enrichment.reader import Reader
from backend.enrichment.story import Version, find_last_reply, is_readable, render_line
from backend.llm.answers import CHARACTERS_PER_TOKEN
from backend.vault.sealing import Sealer

MAX_LINES = 200
EARLIER_LINES = 4
EARLIER_CHARACTERS = 2_000

_IS_READ = select(CampaignMark.id).where(CampaignMark.id == Message.id).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageWindow:
    """Unread lines that the same people heard, and a few lines before them that they heard.

    `heard` is the audience of events, and `audience` that of items: with the entities that the
    listeners play. `since` is the time of the first line. `player_names` are the stored names of
    the user if the lines show the player character instead.
    """

    versions: Sequence[Version]
    positions: Sequence[int]
    earlier: Sequence[str]
    lines: Sequence[str]
    heard: str
    audience: str
    listeners: Listeners
    since: datetime
    player_names: frozenset[str] = frozenset()


async def read_window(session: AsyncSession, reader: Reader, chat: Chat) -> MessageWindow | None:
    """Read the next lines, of at most `stretch_tokens` stored tokens in total.

    They end with the last reply, and begin where the owner's consent begins. Returns None if there
    are none.
    """
    most, conditions = reader.stretch_tokens, await _where_unread(session, chat)
    query = select(Message).where(*conditions).order_by(Message.position)
    first = (await session.execute(query.limit(1))).scalar_one_or_none()
    if first is None:
        return None
    same = query.where(Message.audience == first.audience).limit(MAX_LINES)
    group = await load_group(session, chat.id)
    witnesses = WitnessFinder(group)
    heard = witnesses.find(first.position, first.audience)
    rows = [
        *takewhile(
            lambda row: witnesses.find(row.position, row.audience) == heard,
            await session.scalars(same),
        )
    ]
    fitting = sum(1 for total in accumulate(row.tokens for row in rows) if total <= most)
    rows = rows[: max(1, fitting)]
    listeners = await find_listeners(session, reader.sealer, chat, group, heard)
    audience = await find_item_audience(
        session, reader.sealer, chat, group, heard, said_to=first.audience
    )
    marks = await read_group_marks(session, reader.sealer, chat, group, heard)
    before = (
        select(Message)
        .where(
            is_readable(chat),
            Message.position < first.position,
            *(filter_heard(each, chat.id) for each in listeners),
        )
        .order_by(Message.position.desc())
        .limit(EARLIER_LINES)
    )
    if chat.chronicle_since is not None:
        before = before.where(Message.created_at >= chat.chronicle_since)
    earlier = (await session.scalars(before)).all()[::-1]
    return MessageWindow(
        versions=[(row.id, row.updated_at) for row in rows],
        positions=[row.position for row in rows],
        earlier=[render_line(reader, row, EARLIER_CHARACTERS, marks) for row in earlier],
        lines=[render_line(reader, row, most * CHARACTERS_PER_TOKEN) for row in rows],
        heard=heard,
        audience=audience,
        listeners=listeners,
        since=first.created_at,
        player_names=_find_player_names(reader, [*earlier, *rows]),
    )


def _find_player_names(reader: Reader, rows: Sequence[Message]) -> frozenset[str]:
    if reader.player is None:
        return frozenset()
    own = [row for row in rows if row.role == "user" and row.persona_id is None]
    return frozenset(reader.sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author) for row in own)


async def is_unread(session: AsyncSession, chat: Chat, window: MessageWindow) -> bool:
    """True if the lines are unchanged, on the active path, and read by no other compaction."""
    ids = [message_id for message_id, _ in window.versions]
    query = select(Message.id, Message.updated_at, Message.position, Message.audience).where(
        *await _where_unread(session, chat), Message.id.in_(ids)
    )
    rows = (await session.execute(query)).all()
    group = await load_group(session, chat.id)
    heard = {group.find_witnesses(row.position, row.audience) for row in rows}
    found: dict[UUID, datetime] = {row.id: row.updated_at for row in rows}
    return found == dict(window.versions) and heard == {window.heard}


async def count_uncompacted(session: AsyncSession, chat: Chat) -> int:
    """Count the messages that the next compaction would read."""
    query = select(func.count()).select_from(Message).where(*await _where_unread(session, chat))
    return await session.scalar(query) or 0


async def _where_unread(session: AsyncSession, chat: Chat) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for unread lines. A user's line is read together with its reply."""
    last = await find_last_reply(session, chat)
    conditions = is_readable(chat), ~_IS_READ, Message.position <= (-1 if last is None else last)
    if chat.chronicle_since is None:
        return conditions
    return *conditions, Message.created_at >= chat.chronicle_since


MAX_ENTITIES = 60
MAX_THREADS = 30
MAX_CLOCKS = 20
MAX_FACTS = 60
MAX_KNOWN = 2_000
"""Maximum items that are read: the latest changed ones. Entities that the text names come on top.
"""
MAX_NAMED = 200
MAX_LINE = 600
MAX_VALUE = 240
"""Maximum characters of an item and of one field in a prompt."""

_LETTERS: Mapping[Kind, str] = {
    "entity": "E",
    "thread": "T",
    "clock": "C",
    "fact": "F",
    "scene": "S",
}
_MAX_BY_KIND: Mapping[Kind, int] = {"thread": MAX_THREADS, "clock": MAX_CLOCKS}
_REFERENCES = {"location": "location_id", "giver": "giver_id", "present": "present"}
_HIDDEN = frozenset({PLAY, POOL, ROLL})

_COLUMNS = (CampaignItem.id, CampaignItem.kind, CampaignItem.sealed_state)
_IS_LIVE_SCENE = and_(CampaignItem.kind == "scene", CampaignItem.is_live)
_IS_LIVE_FACT = and_(CampaignItem.kind == "fact", CampaignItem.is_live)
_IS_CHANGEABLE = or_(CampaignItem.kind.in_(("world", "entity", "thread", "clock")), _IS_LIVE_SCENE)
_COMES_FIRST = or_(CampaignItem.kind == "world", CampaignItem.subkind == "pc", _IS_LIVE_SCENE)
_ORDER = (
    case((_COMES_FIRST, 0), else_=1),
    CampaignItem.version.desc(),
    CampaignItem.id.desc(),
)


@dataclass(frozen=True, slots=True)
class KnownWorld:
    """The latest items of a campaign at one version, at most `MAX_KNOWN`."""

    campaign_id: UUID
    version: int
    rules: RuleSystem[Any]
    items: Mapping[UUID, ItemState]

    @property
    def scene_id(self) -> UUID | None:
        """The open scene at the players' place; the latest one if there are several."""
        players = (state for state in self.entities.values() if state["kind"] == "pc")
        place: str | None = find_story_place(state.get("location_id") for state in players)
        found = (
            item_id
            for item_id, held in self.items.items()
            if held.kind == "scene" and is_scene_here(held.state.get("location_id"), place)
        )
        return max(found, default=None)

    @property
    def present(self) -> frozenset[UUID]:
        """The ids of the player characters and of everyone in the scene with them."""
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
        """The entities by id."""
        return {one: held.state for one, held in self.items.items() if held.kind == "entity"}

    @property
    def marks(self) -> AudienceMarks:
        """The labels of items with a limited audience."""
        return AudienceMarks(self._find_name)

    def _find_name(self, entity_id: UUID) -> str | None:
        held = self.items.get(entity_id)
        return get_name(held.state) if held else None

    def members(self) -> list[Member]:
        """The entities as members of a roster."""
        return [build_member(one, state) for one, state in self.entities.items()]


@dataclass(frozen=True, slots=True)
class ShownWorld:
    """The rendered items, and the references to them."""

    lines: Sequence[str]
    references: Mapping[str, UUID]


async def read_world(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    names: SnapshotCache,
    lines: Sequence[str],
    *,
    listeners: Listeners,
) -> KnownWorld:
    """Return the items of a campaign that all listeners know, in the state that they all know.

    In a campaign with more than `MAX_KNOWN` items, entities that `lines` name are found by `names`.
    """
    known = select(*_COLUMNS).where(
        CampaignItem.campaign_id == campaign.id,
        CampaignItem.exists,
        *(filter_known_to(each, CampaignItem.audience) for each in listeners),
    )
    rows = list(
        await session.execute(known.where(_IS_CHANGEABLE).order_by(*_ORDER).limit(MAX_KNOWN))
    )
    if len(rows) == MAX_KNOWN:
        index = (await names.read(session, sealer, campaign)).index
        named: dict[UUID, None] = {}
        async for line in iterate_in_slices(lines, lambda line: SEALED_FACTOR * len(line)):
            named |= dict.fromkeys(index.find(line))
        for row in rows:
            named.pop(row.id, None)
        wanted = CampaignItem.id.in_(list(named)[:MAX_NAMED])
        rows += await session.execute(known.where(wanted))
    rows.sort(key=attrgetter("id"))
    latest = known.where(_IS_LIVE_FACT).order_by(CampaignItem.seq.desc()).limit(500)
    facts = (await session.execute(latest)).all()
    items: dict[UUID, ItemState] = {}
    async for row in iterate_in_slices([*rows, *facts], lambda row: len(row.sealed_state)):
        items[row.id] = ItemState(row.kind, read_state(sealer, row.id, row.sealed_state))
    items = await _take_known(session, sealer, campaign, items, listeners)
    return KnownWorld(campaign.id, campaign.version, find_rules(campaign.rules), items)


async def _take_known(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    items: Mapping[UUID, ItemState],
    listeners: Listeners,
) -> dict[UUID, ItemState]:
    """Return items without the changes that one of the listeners did not hear."""
    known = await load_known_items(session, sealer, listeners, ItemScope(campaign_id=campaign.id))
    found: dict[UUID, ItemState] = {}
    for item_id, held in items.items():
        each = known.get(item_id)
        if item_id not in known:
            found[item_id] = held
        elif each is not None:
            found[item_id] = ItemState(each.kind, build_state(each.item))
    return found


async def refresh_world(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    known: KnownWorld,
    *,
    listeners: Listeners,
) -> KnownWorld:
    """Return a world as it is now. Only changed items are read, as the campaign may be locked."""
    changed = select(
        *_COLUMNS,
        CampaignItem.audience,
        and_(CampaignItem.exists, or_(_IS_CHANGEABLE, _IS_LIVE_FACT)).label("counts"),
    ).where(CampaignItem.campaign_id == campaign.id, CampaignItem.version > known.version)
    items = dict(known.items)
    rows = (await session.execute(changed)).all()
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        items.pop(row.id, None)
        if row.counts and all(may_know(each, row.audience) for each in listeners):
            items[row.id] = ItemState(row.kind, read_state(sealer, row.id, row.sealed_state))
    items = await _take_known(session, sealer, campaign, items, listeners)
    return KnownWorld(campaign.id, campaign.version, find_rules(campaign.rules), items)


def build_member(entity_id: UUID, state: State) -> Member:
    place, audience = state.get("location_id"), cast("Audience", state.get("audience", "public"))
    return Member(
        id=entity_id,
        kind=state["kind"],
        names=(state["name"], *state.get("aliases", ())),
        role=state.get("role", ""),
        place_id=UUID(place) if place else None,
        audience=encode_audience(audience),
    )


def render_world(known: KnownWorld, text: str) -> ShownWorld:
    """Render the items that matter for a text: present, named and open ones. CPU-bound."""
    entities, present = known.entities, known.present
    names = NameIndex(
        (one, name) for one, state in entities.items() for name in build_member(one, state).names
    )
    wanted = list(dict.fromkeys([*names.find(text), *sorted(present)]))[:MAX_ENTITIES]
    by_kind: dict[Kind, list[UUID]] = {"entity": wanted}
    for kind, most in _MAX_BY_KIND.items():
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
            lines.append(f"{reference} {_render_item(known, known.items[item_id])}")
    return ShownWorld(lines, references)


def list_attributes(known: KnownWorld) -> dict[str, dict[str, AttributeType]]:
    """Return the attributes that the model may change, by the kind of entity."""
    found: dict[str, dict[str, AttributeType]] = {}
    for state in known.entities.values():
        found.setdefault(state["kind"], {}).update(list_changeable(known.rules, state))
    return found


def list_changeable(rules: RuleSystem[Any], state: State) -> dict[str, AttributeType]:
    """Return the attributes of an entity that the model may change."""
    members = rules.changeable("entity", state)
    return {name: kind for name, kind in members.items() if name not in _HIDDEN}


def find_key(updater: Updater, field: str) -> str:
    """Return the key of an item's state that a tool's field sets."""
    return _REFERENCES.get(field, field) if field in updater.fields else f"attributes.{field}"


def _render_item(known: KnownWorld, held: ItemState) -> str:
    """Render an item in one line, with everything that a tool may change."""
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
        if (value := _render_value(known, state.get(find_key(updater, field))))
    ]
    if held.kind == "entity":
        attributes: State = state.get("attributes") or {}
        values += [
            f"{name}: {value}"
            for name in list_changeable(known.rules, state)
            if (value := _render_value(known, attributes.get(name)))
        ]
    about = _render_value(known, state.get("about_id"))
    head = f"{about}: {get_name(state)}" if about else f"{get_name(state) or 'The scene'} ({kind})"
    said = known.marks.mark("; ".join([head, *values]), get_audience(state))
    return clip(to_one_line(said), MAX_LINE)


def _render_value(known: KnownWorld, value: Any) -> str:
    if isinstance(value, list):
        listed = [_render_value(known, each) for each in cast("Sequence[Any]", value)]
        return clip(", ".join(each for each in listed if each), MAX_VALUE)
    if isinstance(value, dict):
        said = cast("State", value)
        return f"{said.get('text', '')} (done)" if said.get("done") else str(said.get("text", ""))
    if isinstance(value, str) and (named := _read_name(known, value)):
        return named
    return "" if value is None else clip(str(value), MAX_VALUE)


def _read_name(known: KnownWorld, value: str) -> str:
    try:
        held = known.items.get(UUID(value))
    except ValueError:
        return ""
    return get_name(held.state) if held else ""


def _is_open(state: State) -> bool:
    status: str = state.get("status", "open")
    return status == "open"
