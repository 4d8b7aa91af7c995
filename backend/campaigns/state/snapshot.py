"""What turns of a campaign need, kept unsealed between turns: entities, facts, what is in view."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.events import UserSignedOut
from backend.campaigns.ledger.changes import State, item_of, state_of
from backend.campaigns.ledger.items import Entity, Fact, Item, Kind, Relation
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import Campaign, CampaignItem
from backend.campaigns.names.mentions import NameIndex
from backend.core.audience import PUBLIC, Viewpoint, may_know
from backend.core.cpu_pool import iterate_in_slices
from backend.vault.sealing import Sealer

CAMPAIGNS_KEPT = 64

MOST_IN_VIEW = 400
"""Items in view of one campaign that are kept; where there are more, none are."""

VIEW_BYTES = 500_000
"""What they take at most, sealed."""

AROUND_BYTES = 6_000_000
"""What entities, relations and facts of one campaign take at most, sealed; where it is more, none
are kept."""

KEPT_BYTES = 24_000_000
"""What all that is kept takes at most, sealed: campaigns that were not read lately go first."""

IN_VIEW: tuple[Kind, ...] = ("world", "thread", "clock", "scene", "echo")
AROUND: frozenset[Kind] = frozenset(("entity", "relation", "fact"))
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
        CampaignItem.kind.in_((*sorted(AROUND), *IN_VIEW, *NOT_KEPT)),
    )
    .order_by(CampaignItem.id)
)


Tie = tuple[Kind, UUID]
"""What items are found by: their kind, and an entity that they name."""


class KeptItem(NamedTuple):
    """An item with what its row says of it; `size` is that of its blob."""

    id: UUID
    campaign_id: UUID
    seq: int
    audience: str
    size: int
    item: Item


class NameCache(UserSignedOut):
    """The names of campaigns' entities, compiled; what is around them; the items in view.

    What changed since is read and put in: which version it is of says the campaign's row, in the
    view of the database that a turn reads in, so no process sees what another has changed too late.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[UUID, Names] = OrderedDict()
        self._sign_outs = 0

    async def names(self, session: AsyncSession, sealer: Sealer, campaign: Campaign) -> Names:
        """The names as of the version that `session` sees."""
        sign_outs = self._sign_outs
        names = await self.read(session, sealer, campaign)
        if sign_outs == self._sign_outs:  # else it may be this user who has signed out
            self._keep(campaign.id, names)
        return names

    async def read(
        self,
        session: AsyncSession,
        sealer: Sealer,
        campaign: Campaign,
        *,
        known: Names | None = None,
    ) -> Names:
        """Return the same names without keeping them: the user of a job may not be signed in here.

        Only changes since `known`, or since what is kept, are read.
        """
        names = known or self._kept.get(campaign.id)
        if names is None or names.version > campaign.version:
            names = Names(sealer.user_id)
        if names.version < campaign.version:
            names = await names.updated(session, sealer, campaign)
        return names

    def _keep(self, campaign_id: UUID, names: Names) -> None:
        """Keep names, unless those of a later version were kept while they were read."""
        kept = self._kept.get(campaign_id)
        if kept is None or kept.version <= names.version:
            self._kept[campaign_id] = names
        self._kept.move_to_end(campaign_id)
        size = sum(each.size for each in self._kept.values())
        while len(self._kept) > CAMPAIGNS_KEPT or (size > KEPT_BYTES and len(self._kept) > 1):
            size -= self._kept.popitem(last=False)[1].size

    def user_signed_out(self, user_id: UUID) -> None:
        """Drop what is kept of a user."""
        self._sign_outs += 1
        for key in [key for key, kept in self._kept.items() if kept.user_id == user_id]:
            del self._kept[key]


class Names:
    """Entities' names and aliases at one version of a campaign, and its items in view.

    `audiences` are the entities', as columns hold them.
    In view are its world, open threads, clocks, the open scene, echoes and players'
    characters; `around` are all its entities, relations and facts in force; None where they are
    too many to be kept. `tied` are those in `around` by an entity that they name: the people at a
    place, relations from and to somebody, facts about it. `past` are the kinds of which there
    may be one that no turn has in view: chapters, terms, scenes that are over. `size` is what is
    kept, sealed.
    """

    def __init__(self, user_id: UUID) -> None:
        self.user_id = user_id
        self.version = -1
        self.by_id: dict[UUID, tuple[str, ...]] = {}
        self.audiences: Mapping[UUID, str] = {}
        self.index = NameIndex([])
        self.in_view: Mapping[UUID, KeptItem] | None = {}
        self.around: Mapping[UUID, KeptItem] | None = {}
        self.tied: Mapping[Tie, Mapping[UUID, KeptItem]] = {}
        self.past: frozenset[Kind] = frozenset()
        self.around_size = 0
        self.size = 0
        self._states: dict[UUID, tuple[Item, State]] = {}

    def find_audience(self, entity_id: UUID) -> str:
        """Return who may know an entity, as its column holds it."""
        return self.audiences.get(entity_id, PUBLIC)

    def find_name(self, entity_id: UUID, viewpoint: Viewpoint) -> str | None:
        """Return the name of an entity; None if there is none that the viewpoint may know."""
        names = self.by_id.get(entity_id)
        return names[0] if names and may_know(viewpoint, self.find_audience(entity_id)) else None

    def states(self, items: Mapping[UUID, Item]) -> dict[UUID, State]:
        """The states of items. Those of the last call are kept: most come back turn after turn."""
        known = self._states
        self._states = {
            item_id: kept
            if (kept := known.get(item_id)) is not None and kept[0] is item
            else (item, state_of(item))
            for item_id, item in items.items()
        }
        return {item_id: state for item_id, (_, state) in self._states.items()}

    def items(
        self, ids: Iterable[UUID], viewpoint: Viewpoint
    ) -> tuple[dict[UUID, tuple[UUID, Item]], list[UUID]]:
        """What of some ids is around and a viewpoint may know, and the ids that are not kept."""
        found: dict[UUID, tuple[UUID, Item]] = {}
        unread: list[UUID] = []
        for item_id in ids:
            kept = self.around.get(item_id) if self.around else None
            if kept is None:
                unread.append(item_id)
            elif may_know(viewpoint, kept.audience):
                found[item_id] = kept.campaign_id, kept.item
        return found, unread

    def facts(
        self, about: Sequence[UUID], viewpoint: Viewpoint, *, limit: int
    ) -> list[tuple[UUID, Fact]] | None:
        """Facts in force about some entities, as a viewpoint may know them, the latest first.

        None where not all of those entities are around, and so may have others.
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

    async def updated(self, session: AsyncSession, sealer: Sealer, campaign: Campaign) -> Names:
        """The same, with what changed since."""
        since = {"campaign_id": campaign.id, "version": self.version}
        by_id, audiences, past = self.by_id, dict[UUID, str](), set(self.past)
        in_view, around = dict(self.in_view or {}), _Around(self)
        is_renamed = False
        rows = (await session.execute(_CHANGED, since)).all()
        async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
            in_view.pop(row.id, None)
            around.drop(row.id)
            if row.kind in NOT_KEPT or (row.kind == "scene" and not row.is_live):
                past.add(row.kind)
                continue
            state = read_state(sealer, row.id, row.sealed_state)
            item = item_of(row.kind, state) if row.exists else None
            if row.kind == "entity":
                by_id = dict(by_id) if by_id is self.by_id else by_id
                before = by_id.pop(row.id, ())
                audiences[row.id] = row.audience
                if item is not None:
                    by_id[row.id] = (state["name"], *state.get("aliases", []))
                is_renamed = is_renamed or by_id.get(row.id, ()) != before
            if item is None:
                continue
            kept = KeptItem(row.id, campaign.id, row.seq, row.audience, len(row.sealed_state), item)
            if row.kind in AROUND and (row.kind != "fact" or row.is_live):
                around.put(kept)
            if _is_in_view(row):
                in_view[row.id] = kept
        new = Names(self.user_id)
        new.version, new.by_id, new.past = campaign.version, by_id, frozenset(past)
        new.audiences = {**self.audiences, **audiences} if audiences else self.audiences
        new._states = self._states
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


def _is_in_view(row: Any) -> bool:
    if row.kind == "entity":
        return bool(row.subkind == "pc")
    # Hidden clocks, too: the game master may tick them.
    return row.kind in IN_VIEW and (row.is_live or row.kind == "clock")


class _Around:
    """What is around a campaign's entities while it is brought up to date; see `Names`.

    Turns still read what was there: it is copied before the first change, which most turns have
    none of.
    """

    def __init__(self, names: Names) -> None:
        self.items: Mapping[UUID, KeptItem] = names.around or {}
        self.tied = names.tied
        self.size = names.around_size
        self._items: dict[UUID, KeptItem] | None = None
        self._tied: dict[Tie, Mapping[UUID, KeptItem]] = {}
        self._own: dict[Tie, dict[UUID, KeptItem]] = {}

    def drop(self, item_id: UUID) -> None:
        if item_id not in self.items:
            return
        old = self._changing().pop(item_id)
        self.size -= old.size
        for tie in _ties(old.item):
            self._tied_by(tie).pop(item_id, None)

    def put(self, kept: KeptItem) -> None:
        self._changing()[kept.id] = kept
        self.size += kept.size
        for tie in _ties(kept.item):
            self._tied_by(tie)[kept.id] = kept

    def _changing(self) -> dict[UUID, KeptItem]:
        if self._items is None:
            self.items = self._items = dict(self.items)
            self.tied = self._tied = dict(self.tied)
        return self._items

    def _tied_by(self, tie: Tie) -> dict[UUID, KeptItem]:
        if tie not in self._own:
            self._tied[tie] = self._own[tie] = dict(self._tied.get(tie, {}))
        return self._own[tie]


def _ties(item: Item) -> list[Tie]:
    """What an item is found by: a person's place, both ends of a relation, a fact's subject."""
    match item:
        case Relation():
            return [("relation", item.from_id), ("relation", item.to_id)]
        case Fact() if item.about_id is not None:
            return [("fact", item.about_id)]
        case Entity() if item.kind == "npc" and item.location_id is not None:
            return [("entity", item.location_id)]
        case _:
            return []
