"""Campaigns as a source of memories: entities, facts, threads, scenes that are over, chapters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import item_of
from backend.campaigns.ledger.items import INDEXED, Chapter, Entity, Fact, Item, Scene
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import Campaign, CampaignChange, CampaignItem, ChangeSource
from backend.campaigns.state.known_states import joined_lines, names_of, title_of, told
from backend.campaigns.state.snapshot import Names
from backend.core.audience import (
    GM,
    NAMELESS_MARKS,
    PUBLIC,
    AudienceMarks,
    Viewpoint,
    encode_audience,
    filter_known_to,
)
from backend.database.base import get_table, skip_index, split_chunks
from backend.memory.index.protocol import Kind
from backend.memory.indexing.documents import Document, item_documents
from backend.memory.indexing.sources import (
    Origin,
    Recalled,
    SourceRow,
    count_of,
    inventory_of,
    version_of,
)
from backend.vault.sealing import Sealer

KIND: Kind = "campaign"

FACTS_TOLD = 5
"""Facts that an entity which is found brings along."""

MAX_FACTS = 100
"""Facts that are read for all entities which are found."""

MAX_ORIGINS = 400
"""Lines that are read of all facts which are found, those of the latest changes."""


def _counts() -> ColumnElement[bool]:
    """The condition that an item may be found. One that is to be folded again may not."""
    return and_(
        _ITEMS.c.exists,
        ~_ITEMS.c.is_stale,
        _ITEMS.c.kind.in_(INDEXED),
        or_(_ITEMS.c.kind != "fact", _ITEMS.c.is_live),
        or_(_ITEMS.c.kind != "scene", ~_ITEMS.c.is_live),
    )


# Built once, and of the table: what the ORM adds to a statement of rows takes longer than the rows.
_ITEMS = get_table(CampaignItem)
_IS_OWN = skip_index(_ITEMS.c.user_id) == bindparam("owner")
_READ = select(_ITEMS.c.id, _ITEMS.c.campaign_id, _ITEMS.c.kind, _ITEMS.c.sealed_state).where(
    _ITEMS.c.id.in_(bindparam("ids", expanding=True)), _IS_OWN, _counts()
)
_FACTS = (
    select(_ITEMS.c.id, _ITEMS.c.kind, _ITEMS.c.sealed_state)
    .where(
        _ITEMS.c.campaign_id.in_(
            select(_ITEMS.c.campaign_id).where(_ITEMS.c.id.in_(bindparam("ids", expanding=True)))
        ),
        _ITEMS.c.about_id.in_(bindparam("ids", expanding=True)),
        _ITEMS.c.kind == "fact",
        _IS_OWN,
        _counts(),
    )
    .order_by(_ITEMS.c.seq.desc())
    .limit(MAX_FACTS)
)
_ROWS = select(
    _ITEMS.c.id,
    _ITEMS.c.campaign_id,
    _ITEMS.c.kind,
    _ITEMS.c.audience,
    _ITEMS.c.updated_at,
    _ITEMS.c.sealed_state,
).where(
    _ITEMS.c.id.in_(bindparam("ids", expanding=True)),
    skip_index(_ITEMS.c.campaign_id) == bindparam("campaign"),
    _IS_OWN,
    _counts(),
)
_ORIGINS = (
    select(
        CampaignChange.item_id,
        ChangeSource.message_id,
        ChangeSource.chat_id,
        ChangeSource.position,
    )
    .join(ChangeSource, ChangeSource.change_id == CampaignChange.id)
    .where(
        CampaignChange.item_id.in_(bindparam("ids", expanding=True)),
        skip_index(CampaignChange.user_id) == bindparam("owner"),
        CampaignChange.is_on_path,
        ~CampaignChange.is_undone,
    )
    .order_by(CampaignChange.seq.desc())
    .limit(MAX_ORIGINS)
)


class CampaignSource:
    """A user's campaigns, as search finds them. A fact counts until another one supersedes it.

    Entities and facts are taken from what is `kept` of a campaign, as they were at that version, so
    that a prompt tells of one version of it; from the database where they are not. `marks` say who
    knows what an item brings along, its place and facts about it.
    """

    kind: Kind = KIND

    def __init__(self, kept: Names | None = None, marks: AudienceMarks = NAMELESS_MARKS) -> None:
        self._kept = kept
        self._marks = marks

    async def containers(self, session: AsyncSession, *, owner_id: UUID) -> list[UUID]:
        """A user's campaigns."""
        return list(await session.scalars(select(Campaign.id).where(Campaign.user_id == owner_id)))

    async def count(
        self,
        session: AsyncSession,
        *,
        owner_id: UUID,
        container_ids: Sequence[UUID] | None = None,
    ) -> int:
        """See `Source`."""
        owned = select(func.count()).where(CampaignItem.user_id == owner_id, _counts())
        return await count_of(session, owned, CampaignItem.campaign_id, container_ids)

    async def inventory(
        self, session: AsyncSession, container_id: UUID, *, owner_id: UUID
    ) -> dict[UUID, int] | None:
        """A campaign's items that count; None when there is no such campaign."""
        owned = Campaign.id == container_id, Campaign.user_id == owner_id
        if await session.scalar(select(Campaign.id).where(*owned)) is None:
            return None
        rows = await session.execute(
            select(CampaignItem.id, CampaignItem.updated_at)
            .where(CampaignItem.campaign_id == container_id, _counts())
            .order_by(CampaignItem.id)
        )
        return await inventory_of(rows)

    async def rows(
        self,
        session: AsyncSession,
        sealer: Sealer,
        container_id: UUID,
        source_ids: Sequence[UUID],
        *,
        neighbours: bool,  # noqa: ARG002  # items stand by themselves
    ) -> list[SourceRow]:
        """Items that count."""
        asked = {"ids": source_ids, "campaign": container_id, "owner": sealer.user_id}
        return [
            SourceRow(
                source_id=row.id,
                size=len(row.sealed_state),
                documents=partial(_documents, sealer, row),
            )
            for row in await session.execute(_ROWS, asked)
        ]

    async def recall(
        self,
        session: AsyncSession,
        sealer: Sealer,
        source_ids: Collection[UUID],
        *,
        viewpoint: Viewpoint = GM,
    ) -> dict[UUID, Recalled]:
        """Items that count now, folded, and that the viewpoint may know.

        An entity comes with where it is, and the last facts about it that are not found themselves;
        a fact with the lines that it was made from.
        """
        kept, marks = self._kept, self._marks
        found = await read_items(session, sealer, source_ids, viewpoint, kept)
        entities = [each for each, (_, item) in found.items() if isinstance(item, Entity)]
        facts = await _facts_about(session, sealer, entities, viewpoint, besides=found, kept=kept)
        items = await recalled(
            session, sealer, found, viewpoint, facts=facts, kept=kept, marks=marks
        )
        origins = await find_origins(
            session, sealer, [each for each, (_, item) in found.items() if isinstance(item, Fact)]
        )
        return {
            each: replace(item, origins=origins[each]) if each in origins else item
            for each, item in items.items()
        }


async def recalled(
    session: AsyncSession,
    sealer: Sealer,
    found: Mapping[UUID, tuple[UUID, Item]],
    viewpoint: Viewpoint,
    *,
    facts: Mapping[UUID, Sequence[Fact]] = MappingProxyType({}),
    kept: Names | None = None,
    marks: AudienceMarks = NAMELESS_MARKS,
) -> dict[UUID, Recalled]:
    """Items, given with their campaigns, as memories: with where they are, and with `facts`."""

    def recall(item_id: UUID, campaign_id: UUID, item: Item) -> Recalled:
        audience = encode_audience(getattr(item, "audience", PUBLIC))
        names = {
            each: marks.mark(entity.name, entity.audience, within=audience)
            for each in _list_named(item)
            if (entity := entities.get(each)) is not None
        }
        own = [
            marks.mark(fact.text, fact.audience, within=audience) for fact in facts.get(item_id, [])
        ]
        return Recalled(
            kind=KIND,
            source_id=item_id,
            container_id=campaign_id,
            title=title_of(item, names),
            text=joined_lines([told(item, names), *own]),
            is_past=isinstance(item, Scene | Chapter),
            audience=audience,
        )

    wanted = [each for _, item in found.values() for each in _list_named(item)]
    named = await read_items(session, sealer, wanted, viewpoint, kept)
    entities = {each: item for each, (_, item) in named.items() if isinstance(item, Entity)}
    return {item_id: recall(item_id, *each) for item_id, each in found.items()}


def _list_named(item: Item) -> list[UUID]:
    """The entity that an item names: a fact's subject, an entity's place."""
    match item:
        case Fact(about_id=UUID() as about):
            return [about]
        case Entity(location_id=UUID() as place):
            return [place]
        case _:
            return []


async def read_items(
    session: AsyncSession,
    sealer: Sealer,
    item_ids: Iterable[UUID],
    viewpoint: Viewpoint,
    kept: Names | None = None,
) -> dict[UUID, tuple[UUID, Item]]:
    """Items that count and that the viewpoint may know, with their campaigns, by id.

    Entities and facts are taken from what is `kept` of a campaign, where they are.
    """
    found: dict[UUID, tuple[UUID, Item]] = {}
    wanted = list(dict.fromkeys(item_ids))
    if kept is not None:
        found, wanted = kept.items(wanted, viewpoint)
    for ids in split_chunks(wanted):
        asked = {"ids": ids, "owner": sealer.user_id}
        for row in await session.execute(_known(_READ, viewpoint), asked):
            found[row.id] = row.campaign_id, _open(sealer, row)
    return found


async def _facts_about(
    session: AsyncSession,
    sealer: Sealer,
    entity_ids: Sequence[UUID],
    viewpoint: Viewpoint,
    *,
    besides: Collection[UUID],
    kept: Names | None,
) -> dict[UUID, list[Fact]]:
    """The last facts that count about each of some entities, the newest last."""
    facts: dict[UUID, list[Fact]] = {}
    if not entity_ids:
        return facts

    found = kept.facts(entity_ids, viewpoint, limit=MAX_FACTS) if kept else None
    if found is None:
        asked = {"ids": entity_ids, "owner": sealer.user_id}
        rows = await session.execute(_known(_FACTS, viewpoint), asked)
        items = ((row.id, _open(sealer, row)) for row in rows)
        found = [(each, item) for each, item in items if isinstance(item, Fact)]
    for fact_id, fact in found:
        if fact.about_id is None or fact_id in besides:
            continue
        own = facts.setdefault(fact.about_id, [])
        if len(own) < FACTS_TOLD:
            own.insert(0, fact)
    return facts


async def find_origins(
    session: AsyncSession, sealer: Sealer, item_ids: Sequence[UUID]
) -> dict[UUID, list[Origin]]:
    """Return the lines that made or changed some items, on active paths; the latest first."""
    found: dict[UUID, list[Origin]] = {}
    if item_ids:
        asked = {"ids": item_ids, "owner": sealer.user_id}
        for item_id, message_id, chat_id, position in await session.execute(_ORIGINS, asked):
            found.setdefault(item_id, []).append(Origin(message_id, chat_id, position))
    return found


def _known(query: Select[*tuple[Any, ...]], viewpoint: Viewpoint) -> Select[*tuple[Any, ...]]:
    if viewpoint == GM:
        return query
    return query.where(filter_known_to(viewpoint, _ITEMS.c.audience))


def _open(sealer: Sealer, row: Any) -> Item:
    return item_of(row.kind, read_state(sealer, row.id, row.sealed_state))


def _documents(sealer: Sealer, row: Any) -> list[Document]:
    item = _open(sealer, row)
    return item_documents(
        row.id,
        row.campaign_id,
        names=names_of(item),
        content=told(item),
        version=version_of(row.updated_at),
        audience=row.audience,
    )
