"""Entities, facts, threads, finished scenes and chapters of campaigns as memories."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, and_, bindparam, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import build_item
from backend.campaigns.ledger.items import INDEXED, Chapter, Entity, Fact, Item, Scene
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import Campaign, CampaignChange, CampaignItem, ChangeSource
from backend.campaigns.state.knowledge import (
    EVERYTHING,
    ItemScope,
    KnownItems,
    has_absences,
    is_recalled,
    load_known_items,
)
from backend.campaigns.state.snapshot import CampaignSnapshot
from backend.campaigns.state.viewpoints import join_lines, list_names, render_item, render_title
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
from backend.memory.indexing.documents import IndexDocument, build_item_documents
from backend.memory.indexing.sources import (
    MemoryItem,
    OriginMessage,
    SourceRow,
    SourceTable,
    TableSource,
    compute_version,
)
from backend.vault.sealing import Sealer

KIND: Kind = "campaign"

MAX_FACTS_PER_ENTITY = 5
"""Facts that are added to the text of an entity."""

MAX_FACTS = 100
"""Facts that are read for all entities together, newest first."""

MAX_ORIGINS = 400
"""Messages that are read for all facts together, those of the latest changes."""


def _is_indexed() -> ColumnElement[bool]:
    """Return the condition for items that memory may find: existing ones that are not stale."""
    return and_(
        _ITEMS.c.exists,
        ~_ITEMS.c.is_stale,
        _ITEMS.c.kind.in_(INDEXED),
        or_(_ITEMS.c.kind != "fact", _ITEMS.c.is_live),
        or_(_ITEMS.c.kind != "scene", ~_ITEMS.c.is_live),
    )


# The statements are built once and select from the table: the ORM takes longer than the query.
_ITEMS = get_table(CampaignItem)
_IS_OWN = skip_index(_ITEMS.c.user_id) == bindparam("owner")
_IS_LISTED = exists().where(Campaign.id == _ITEMS.c.campaign_id, Campaign.deleted_at.is_(None))
_READ = select(_ITEMS.c.id, _ITEMS.c.campaign_id, _ITEMS.c.kind, _ITEMS.c.sealed_state).where(
    _ITEMS.c.id.in_(bindparam("ids", expanding=True)), _IS_OWN, _IS_LISTED, _is_indexed()
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
        _is_indexed(),
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
    _IS_LISTED,
    _is_indexed(),
)
_ORIGINS = (
    select(
        CampaignChange.item_id, ChangeSource.message_id, ChangeSource.chat_id, ChangeSource.position
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


class CampaignSource(TableSource):
    """Items of campaigns. A fact is active until another one supersedes it.

    Entities and facts come from the campaigns `kept` in memory, so that a prompt shows one version.
    """

    kind: Kind = KIND
    table = SourceTable(
        containers=get_table(Campaign),
        rows=_ITEMS,
        container_id=_ITEMS.c.campaign_id,
        order=(_ITEMS.c.id,),
        is_listed=get_table(Campaign).c.deleted_at.is_(None),
        is_indexed=_is_indexed(),
        is_counted=_is_indexed(),
    )

    def __init__(
        self, kept: CampaignSnapshot | None = None, marks: AudienceMarks = NAMELESS_MARKS
    ) -> None:
        self._kept = kept
        self._marks = marks

    async def rows(
        self,
        session: AsyncSession,
        sealer: Sealer,
        container_id: UUID,
        source_ids: Sequence[UUID],
        *,
        neighbours: bool,  # noqa: ARG002  # an item has no neighbours
    ) -> list[SourceRow]:
        asked = {"ids": source_ids, "campaign": container_id, "owner": sealer.user_id}
        return [
            SourceRow(
                source_id=row.id,
                size=len(row.sealed_state),
                documents=partial(_build_documents, sealer, row),
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
    ) -> dict[UUID, MemoryItem]:
        """Return active items that the viewpoint may know.

        The text of an entity includes its place and the last facts about it that are not among
        the items themselves. A fact has the messages that it was made from.
        """
        kept, marks = self._kept, self._marks
        found = await read_items(session, sealer, source_ids, viewpoint, kept)
        entities = [each for each, (_, item) in found.items() if isinstance(item, Entity)]
        facts = await _load_facts(session, sealer, entities, viewpoint, exclude=found, kept=kept)
        items = await build_memory_items(
            session, sealer, found, viewpoint, facts=facts, kept=kept, marks=marks
        )
        origins = await find_origins(
            session, sealer, [each for each, (_, item) in found.items() if isinstance(item, Fact)]
        )
        return {
            each: replace(item, origins=origins[each]) if each in origins else item
            for each, item in items.items()
        }


async def build_memory_items(
    session: AsyncSession,
    sealer: Sealer,
    found: Mapping[UUID, tuple[UUID, Item]],
    viewpoint: Viewpoint,
    *,
    facts: Mapping[UUID, Sequence[Fact]] = MappingProxyType({}),
    kept: CampaignSnapshot | None = None,
    marks: AudienceMarks = NAMELESS_MARKS,
) -> dict[UUID, MemoryItem]:
    def recall(item_id: UUID, campaign_id: UUID, item: Item) -> MemoryItem:
        audience = encode_audience(getattr(item, "audience", PUBLIC))
        names = {
            each: marks.mark(entity.name, entity.audience, within=audience)
            for each in _list_named(item)
            if (entity := entities.get(each)) is not None
        }
        own = [
            marks.mark(fact.text, fact.audience, within=audience) for fact in facts.get(item_id, [])
        ]
        return MemoryItem(
            kind=KIND,
            source_id=item_id,
            container_id=campaign_id,
            title=render_title(item, names),
            text=join_lines([render_item(item, names), *own]),
            is_past=isinstance(item, Scene | Chapter),
            audience=audience,
            is_authoritative=isinstance(item, Fact),
        )

    wanted = [each for _, item in found.values() for each in _list_named(item)]
    named = await read_items(session, sealer, wanted, viewpoint, kept)
    entities = {each: item for each, (_, item) in named.items() if isinstance(item, Entity)}
    return {item_id: recall(item_id, *each) for item_id, each in found.items()}


def _list_named(item: Item) -> list[UUID]:
    """Return the entity that an item names: the subject of a fact or the place of an entity."""
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
    kept: CampaignSnapshot | None = None,
) -> dict[UUID, tuple[UUID, Item]]:
    """Return active items that the viewpoint may know, with their campaigns, by id."""
    found: dict[UUID, tuple[UUID, Item]] = {}
    wanted = list(dict.fromkeys(item_ids))
    if kept is not None:
        found, wanted = kept.find_items(wanted, viewpoint)
    for ids in split_chunks(wanted):
        asked = {"ids": ids, "owner": sealer.user_id}
        rows = (await session.execute(_apply_viewpoint(_READ, viewpoint), asked)).all()
        known = await _load_known(session, sealer, viewpoint, [row.id for row in rows])
        for row in rows:
            if row.id not in known:
                found[row.id] = row.campaign_id, _open(sealer, row)
            elif (each := known[row.id]) is not None and is_recalled(each.item):
                found[row.id] = row.campaign_id, each.item
    return found


async def _load_known(
    session: AsyncSession, sealer: Sealer, viewpoint: Viewpoint, item_ids: Sequence[UUID]
) -> KnownItems:
    """Return those of some items that a viewpoint knows in another state."""
    if not item_ids or not has_absences(viewpoint):
        return EVERYTHING
    return await load_known_items(session, sealer, [viewpoint], ItemScope(item_ids=item_ids))


async def _load_facts(
    session: AsyncSession,
    sealer: Sealer,
    entity_ids: Sequence[UUID],
    viewpoint: Viewpoint,
    *,
    exclude: Collection[UUID],
    kept: CampaignSnapshot | None,
) -> dict[UUID, list[Fact]]:
    """Return the last active facts about each entity, the newest last."""
    facts: dict[UUID, list[Fact]] = {}
    if not entity_ids:
        return facts

    found = kept.find_facts(entity_ids, viewpoint, limit=MAX_FACTS) if kept else None
    if found is None:
        asked = {"ids": entity_ids, "owner": sealer.user_id}
        rows = (await session.execute(_apply_viewpoint(_FACTS, viewpoint), asked)).all()
        known = await _load_known(session, sealer, viewpoint, [row.id for row in rows])
        items = ((row.id, _open(sealer, row)) for row in rows if row.id not in known)
        found = [(each, item) for each, item in items if isinstance(item, Fact)]
    for fact_id, fact in found:
        if fact.about_id is None or fact_id in exclude:
            continue
        own = facts.setdefault(fact.about_id, [])
        if len(own) < MAX_FACTS_PER_ENTITY:
            own.insert(0, fact)
    return facts


async def find_origins(
    session: AsyncSession, sealer: Sealer, item_ids: Sequence[UUID]
) -> dict[UUID, list[OriginMessage]]:
    """Return the messages of active paths that created or changed items, the latest first."""
    found: dict[UUID, list[OriginMessage]] = {}
    if item_ids:
        asked = {"ids": item_ids, "owner": sealer.user_id}
        for item_id, message_id, chat_id, position in await session.execute(_ORIGINS, asked):
            found.setdefault(item_id, []).append(OriginMessage(message_id, chat_id, position))
    return found


def _apply_viewpoint(
    query: Select[*tuple[Any, ...]], viewpoint: Viewpoint
) -> Select[*tuple[Any, ...]]:
    if viewpoint == GM:
        return query
    return query.where(filter_known_to(viewpoint, _ITEMS.c.audience))


def _open(sealer: Sealer, row: Any) -> Item:
    return build_item(row.kind, read_state(sealer, row.id, row.sealed_state))


def _build_documents(sealer: Sealer, row: Any) -> list[IndexDocument]:
    item = _open(sealer, row)
    return build_item_documents(
        row.id,
        row.campaign_id,
        names=list_names(item),
        content=render_item(item),
        version=compute_version(row.updated_at),
        audience=row.audience,
    )
