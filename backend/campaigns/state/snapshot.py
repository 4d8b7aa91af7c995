"""Unsealed items of campaigns that turns need, cached between turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from heapq import nlargest
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.events import UserSignedOut
from backend.campaigns.ledger.changes import State, build_item, build_state
from backend.campaigns.ledger.items import Entity, Fact, Item, Kind, Relation
from backend.campaigns.ledger.store import build_columns, read_state
from backend.campaigns.models import Campaign, CampaignItem
from backend.campaigns.names.roster import NameIndex
from backend.campaigns.state.knowledge import (
    EVERYTHING,
    ItemScope,
    KnownItems,
    has_absences,
    is_recalled,
    load_known_items,
)
from backend.chats.members import END
from backend.chats.models import Chat
from backend.core.audience import PUBLIC, Viewpoint, Witness, may_know
from backend.core.cpu_pool import iterate_in_slices
from backend.vault.sealing import Sealer

MAX_CAMPAIGNS = 64

MAX_BLOCK_ITEMS = 100
"""Maximum number of items of one kind that are read for one block."""

MAX_ITEMS_IN_VIEW = 400
"""Maximum number of cached items in view; with more, none are cached."""

MAX_VIEW_BYTES = 500_000
"""Maximum size of the items in view, sealed."""

MAX_SURROUNDINGS_BYTES = 6_000_000
"""Maximum size of a campaign's entities, relations and facts, sealed.

Larger ones are not cached.
"""

MAX_CACHE_BYTES = 24_000_000
"""Maximum size of the cache, sealed. The least recently used campaigns are evicted first."""

IN_VIEW: tuple[Kind, ...] = ("world", "thread", "clock", "scene", "echo")
AROUND: frozenset[Kind] = frozenset(("entity", "relation", "fact"))
NOT_KEPT: tuple[Kind, ...] = ("chapter", "term")
"""Kinds that are not cached, only their existence."""

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
        CampaignItem.kind.in_((*sorted(AROUND), *IN_VIEW, *NOT_KEPT)),
    )
    .order_by(CampaignItem.id)
)


_PLAYER_PLACES = select(CampaignItem.place_id).where(
    CampaignItem.campaign_id == bindparam("campaign"),
    CampaignItem.kind == "entity",
    CampaignItem.subkind == "pc",
    CampaignItem.exists,
)

MAX_DERIVED = 16
"""Maximum number of characters with their own version of a snapshot."""

Tie = tuple[Kind, UUID]
"""The key of an index of items: their kind, and an entity that they refer to."""


class SnapshotItem(NamedTuple):
    """An item with columns of its row; `size` is the length of its sealed state."""

    id: UUID
    campaign_id: UUID
    seq: int
    audience: str
    size: int
    item: Item


_seq = attrgetter("seq")


class SnapshotCache(UserSignedOut):
    """A cache of campaign snapshots.

    A snapshot is updated to the version of the campaign's row in the turn's own database view, so
    that changes by other processes are seen.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[UUID, CampaignSnapshot] = OrderedDict()
        self._sign_outs = 0

    async def load(
        self, session: AsyncSession, sealer: Sealer, campaign: Campaign
    ) -> CampaignSnapshot:
        """Return the snapshot of the version that `session` sees."""
        sign_outs = self._sign_outs
        names = await self.read(session, sealer, campaign)
        if sign_outs == self._sign_outs:  # otherwise the user may have signed out
            self._keep(campaign.id, names)
        return names

    async def read(
        self,
        session: AsyncSession,
        sealer: Sealer,
        campaign: Campaign,
        *,
        known: CampaignSnapshot | None = None,
    ) -> CampaignSnapshot:
        """Return the snapshot without caching it, because a job's user may not be signed in here.

        Only changes since `known`, or since the cached version, are read.
        """
        names = known or self._kept.get(campaign.id)
        if names is None or names.version > campaign.version:
            names = CampaignSnapshot(sealer.user_id)
        if names.version < campaign.version:
            names = await names.update(session, sealer, campaign)
        return names

    def _keep(self, campaign_id: UUID, names: CampaignSnapshot) -> None:
        """Cache a snapshot, unless a later version was cached while this one was read."""
        kept = self._kept.get(campaign_id)
        if kept is None or kept.version <= names.version:
            self._kept[campaign_id] = names
        self._kept.move_to_end(campaign_id)
        size = sum(each.size for each in self._kept.values())
        while len(self._kept) > MAX_CAMPAIGNS or (size > MAX_CACHE_BYTES and len(self._kept) > 1):
            size -= self._kept.popitem(last=False)[1].size

    def user_signed_out(self, user_id: UUID) -> None:
        self._sign_outs += 1
        for key in [key for key, kept in self._kept.items() if kept.user_id == user_id]:
            del self._kept[key]


class PlayedEntities:
    """Finds the people of a campaign that a card plays in chats.

    `names` are their names, and may be those of other entities as well. `cards` has the people,
    each with the card that it is linked to.
    """

    def __init__(
        self, names: Mapping[UUID, tuple[str, ...]], cards: dict[UUID, UUID | None]
    ) -> None:
        self.cards = cards
        self._names = names

    @cached_property
    def _by_card(self) -> Mapping[UUID | str, Sequence[UUID]]:
        """The people by their card, and those without one by each of their names."""
        found: dict[UUID | str, list[UUID]] = {}
        for entity_id, card in self.cards.items():
            names = {each.casefold() for each in self._names.get(entity_id, ())}
            for key in [card] if card else names:
                found.setdefault(key, []).append(entity_id)
        return found

    def find(self, character_id: UUID, name: str) -> Sequence[UUID]:
        """Return the people that a card plays: those linked to it, else those named like it."""
        return self._by_card.get(character_id) or self._by_card.get(name.casefold(), ())


class CampaignSnapshot:
    """Names of entities at one version of a campaign, and its items in view.

    In view are the world, open threads, clocks, the open scene, echoes and players' characters.
    `around` are all entities, relations and facts in force; None if they are too large to cache.
    `tied` maps entities to items that refer to them. `past` are the kinds that are never in view.
    `known` are the items that differ from their rows, if the snapshot is a character's.
    """

    def __init__(self, user_id: UUID) -> None:
        self.user_id = user_id
        self.version = -1
        self.by_id: dict[UUID, tuple[str, ...]] = {}
        self.audiences: dict[UUID, str] = {}
        self.index = NameIndex([])
        self.played = PlayedEntities({}, {})
        self.in_view: Mapping[UUID, SnapshotItem] | None = {}
        self.around: Mapping[UUID, SnapshotItem] | None = {}
        self.tied: Mapping[Tie, Mapping[UUID, SnapshotItem]] = {}
        self.past: frozenset[Kind] = frozenset()
        self.known: KnownItems = EVERYTHING
        self.around_size = 0
        self.size = 0
        self._states: dict[UUID, tuple[Item, State]] = {}
        self._derived: dict[Any, CampaignSnapshot] = {}

    def find_audience(self, entity_id: UUID) -> str:
        return self.audiences.get(entity_id, PUBLIC)

    def find_name(self, entity_id: UUID, viewpoint: Viewpoint) -> str | None:
        """Return the name of an entity; None if there is none that the viewpoint may know."""
        names = self.by_id.get(entity_id)
        return names[0] if names and may_know(viewpoint, self.find_audience(entity_id)) else None

    def get_states(self, items: Mapping[UUID, Item]) -> dict[UUID, State]:
        """Return the states of items. The last ones are reused, because most items recur."""
        known = self._states
        self._states = {
            item_id: kept
            if (kept := known.get(item_id)) is not None and kept[0] is item
            else (item, build_state(item))
            for item_id, item in items.items()
        }
        return {item_id: state for item_id, (_, state) in self._states.items()}

    async def limit_to(
        self,
        session: AsyncSession,
        sealer: Sealer,
        campaign_id: UUID,
        viewpoint: Viewpoint,
        chat: Chat | None,
    ) -> CampaignSnapshot:
        """Return the snapshot for a character of a chat that did not hear all changes."""
        if not isinstance(viewpoint, Witness) or not has_absences(viewpoint):
            return self
        key = viewpoint.ids, tuple((each, *ranges) for each, ranges in viewpoint.absences.items())
        found = self._derived.get(key)
        if found is None:
            is_here = chat is not None and not viewpoint.was_absent(chat.id, END - 1)
            rows = await session.scalars(_PLAYER_PLACES, {"campaign": campaign_id})
            places = frozenset(each for each in rows if each and is_here)
            scope = ItemScope(campaign_id=campaign_id, places=places)
            known = await load_known_items(session, sealer, [viewpoint], scope)
            found = self.with_known(known) if known else self
            if len(self._derived) >= MAX_DERIVED:
                self._derived.clear()
            self._derived[key] = found
        return found

    def with_known(self, known: KnownItems) -> CampaignSnapshot:
        """Return a snapshot in which some items are as a character knows them."""
        around, in_view = _Surroundings(self), dict(self.in_view or {})
        by_id = dict(self.by_id)
        for item_id, each in known.items():
            around.drop(item_id)
            in_view.pop(item_id, None)
            by_id.pop(item_id, None)
            if each is None:
                continue
            item, columns = each.item, build_columns(each.item)
            is_live, subkind = columns["is_live"], columns.get("subkind", "")
            kept = SnapshotItem(item_id, each.campaign_id, each.seq, PUBLIC, 0, item)
            if isinstance(item, Entity):
                by_id[item_id] = (item.name, *item.aliases)
            if each.kind in AROUND and (each.kind != "fact" or is_live):
                around.put(kept)
            if _is_in_view(each.kind, subkind, is_live=is_live):
                in_view[item_id] = kept
        new = CampaignSnapshot(self.user_id)
        new.version, new.by_id, new.past = self.version, by_id, self.past
        new.audiences, new.known = self.audiences, known
        named = ((entity_id, name) for entity_id, names in by_id.items() for name in names)
        new.index = self.index if by_id == self.by_id else NameIndex(named)
        new.in_view = None if self.in_view is None else in_view
        if self.around is None:
            new.around = None
        else:
            new.around, new.tied, new.around_size = around.items, around.tied, around.size
        return new

    def find_items(
        self, ids: Iterable[UUID], viewpoint: Viewpoint
    ) -> tuple[dict[UUID, tuple[UUID, Item]], list[UUID]]:
        """Return the items of `around` that a viewpoint may know, and the ids that are missing."""
        found: dict[UUID, tuple[UUID, Item]] = {}
        unread: list[UUID] = []
        for item_id in ids:
            kept = self.around.get(item_id) if self.around else None
            if kept is None and item_id in self.known:
                known = self.known[item_id]
                if known is not None and is_recalled(known.item):
                    found[item_id] = known.campaign_id, known.item
            elif kept is None:
                unread.append(item_id)
            elif may_know(viewpoint, kept.audience):
                found[item_id] = kept.campaign_id, kept.item
        return found, unread

    def find_facts(
        self, about: Sequence[UUID], viewpoint: Viewpoint, *, limit: int
    ) -> list[tuple[UUID, Fact]] | None:
        """Return the facts in force about some entities that a viewpoint may know, latest first.

        None if not all of the entities are cached, because the others may have facts, too.
        """
        if self.around is None or not all(one in self.around for one in about):
            return None
        known = (
            (kept.seq, kept.id, kept.item)
            for one in dict.fromkeys(about)
            for kept in self.tied.get(("fact", one), {}).values()
            if isinstance(kept.item, Fact) and may_know(viewpoint, kept.audience)
        )
        latest = nlargest(limit, known, key=itemgetter(0))
        return [(item_id, item) for _, item_id, item in latest]

    def find_entities(
        self, ids: Iterable[UUID], at: UUID | None, viewpoint: Viewpoint
    ) -> list[SnapshotItem]:
        """Return entities by id, and the people at a place, the last changed first."""
        around = self.around or {}
        people = self.tied.get(("entity", at), {}).values() if at else ()
        found = {each.id: each for each in nlargest(MAX_BLOCK_ITEMS, people, key=_seq)}
        found |= {one: around[one] for one in ids if one in around}
        known = (each for each in found.values() if may_know(viewpoint, each.audience))
        return sorted(known, key=_seq, reverse=True)

    def find_relations(self, ids: Iterable[UUID], viewpoint: Viewpoint) -> list[Relation]:
        found = {
            each.id: each
            for one in ids
            for each in self.tied.get(("relation", one), {}).values()
            if may_know(viewpoint, each.audience)
        }
        latest = nlargest(MAX_BLOCK_ITEMS, found.values(), key=_seq)
        latest.sort(key=lambda each: each.id.int)
        return [each.item for each in latest if isinstance(each.item, Relation)]

    async def update(
        self, session: AsyncSession, sealer: Sealer, campaign: Campaign
    ) -> CampaignSnapshot:
        since = {"campaign_id": campaign.id, "version": self.version}
        entities, past = _EntityNames(self), set(self.past)
        in_view, around = dict(self.in_view or {}), _Surroundings(self)
        rows = (await session.execute(_CHANGED, since)).all()
        async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
            in_view.pop(row.id, None)
            around.drop(row.id)
            if row.kind in NOT_KEPT or (row.kind == "scene" and not row.is_live):
                past.add(row.kind)
                continue
            state = read_state(sealer, row.id, row.sealed_state)
            item = build_item(row.kind, state) if row.exists else None
            if row.kind == "entity":
                entities.put(row, item if isinstance(item, Entity) else None)
            if item is None:
                continue
            kept = SnapshotItem(
                row.id, campaign.id, row.seq, row.audience, len(row.sealed_state), item
            )
            if row.kind in AROUND and (row.kind != "fact" or row.is_live):
                around.put(kept)
            if _is_in_view(row.kind, row.subkind, is_live=row.is_live):
                in_view[row.id] = kept
        new = CampaignSnapshot(self.user_id)
        new.version, new.past = campaign.version, frozenset(past)
        new.by_id, new.played, new.index = entities.by_id, entities.played, entities.index
        new.audiences = entities.audiences
        new._states = self._states
        new.size = sum(each.size for each in in_view.values())
        if self.in_view is None or len(in_view) > MAX_ITEMS_IN_VIEW or new.size > MAX_VIEW_BYTES:
            new.in_view, new.size = None, 0
        else:
            new.in_view = in_view
        if self.around is None or around.size > MAX_SURROUNDINGS_BYTES:
            new.around = None
        else:
            new.around, new.tied, new.around_size = around.items, around.tied, around.size
        new.size += new.around_size
        return new


def _is_in_view(kind: Kind, subkind: str, *, is_live: bool) -> bool:
    if kind == "entity":
        return subkind == "pc"
    # Hidden clocks, too: the game master may tick them.
    return kind in IN_VIEW and (is_live or kind == "clock")


class _EntityNames:
    """The names and cards of entities during an update. Copied before the first change."""

    def __init__(self, names: CampaignSnapshot) -> None:
        self.by_id = names.by_id
        self.audiences = names.audiences
        self._before = names
        self._cards = names.played.cards
        self._is_renamed = False

    def put(self, row: Any, entity: Entity | None) -> None:
        if self.by_id is self._before.by_id:
            self.by_id, self._cards = dict(self.by_id), dict(self._cards)
            self.audiences = dict(self.audiences)
        before = self.by_id.pop(row.id, ())
        self._cards.pop(row.id, None)
        self.audiences[row.id] = row.audience
        if entity is not None:
            self.by_id[row.id] = (entity.name, *entity.aliases)
            if entity.kind in {"pc", "npc"}:
                self._cards[row.id] = entity.character_id
        self._is_renamed = self._is_renamed or self.by_id.get(row.id, ()) != before

    @property
    def played(self) -> PlayedEntities:
        if self.by_id is self._before.by_id:
            return self._before.played
        return PlayedEntities(self.by_id, self._cards)

    @property
    def index(self) -> NameIndex:
        if not self._is_renamed:
            return self._before.index
        return NameIndex(
            (entity_id, name) for entity_id, names in self.by_id.items() for name in names
        )


class _Surroundings:
    """The items of `around` during an update, copied before the first change for other turns."""

    def __init__(self, names: CampaignSnapshot) -> None:
        self.items: Mapping[UUID, SnapshotItem] = names.around or {}
        self.tied = names.tied
        self.size = names.around_size
        self._items: dict[UUID, SnapshotItem] | None = None
        self._tied: dict[Tie, Mapping[UUID, SnapshotItem]] = {}
        self._own: dict[Tie, dict[UUID, SnapshotItem]] = {}

    def drop(self, item_id: UUID) -> None:
        if item_id not in self.items:
            return
        old = self._copy().pop(item_id)
        self.size -= old.size
        for tie in _list_ties(old.item):
            self._find_ties(tie).pop(item_id, None)

    def put(self, kept: SnapshotItem) -> None:
        self._copy()[kept.id] = kept
        self.size += kept.size
        for tie in _list_ties(kept.item):
            self._find_ties(tie)[kept.id] = kept

    def _copy(self) -> dict[UUID, SnapshotItem]:
        if self._items is None:
            self.items = self._items = dict(self.items)
            self.tied = self._tied = dict(self.tied)
        return self._items

    def _find_ties(self, tie: Tie) -> dict[UUID, SnapshotItem]:
        if tie not in self._own:
            self._tied[tie] = self._own[tie] = dict(self._tied.get(tie, {}))
        return self._own[tie]


def _list_ties(item: Item) -> list[Tie]:
    """Return the keys of an item: a person's place, both ends of a relation, a fact's subject."""
    match item:
        case Relation():
            return [("relation", item.from_id), ("relation", item.to_id)]
        case Fact() if item.about_id is not None:
            return [("fact", item.about_id)]
        case Entity() if item.kind == "npc" and item.location_id is not None:
            return [("entity", item.location_id)]
        case _:
            return []
