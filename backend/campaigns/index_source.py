"""Campaigns as a source of memories: entities, facts and threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.audience import GM, Viewpoint, known_to
from backend.campaigns.item_rows import read_state
from backend.campaigns.items import INDEXED, Entity, Fact, Item, Thread
from backend.campaigns.ledger import item_of
from backend.campaigns.models import Campaign, CampaignItem
from backend.database.base import chunks, unindexed
from backend.memory.documents import Document, item_documents
from backend.memory.index.protocol import Kind
from backend.memory.sources import Recalled, SourceRow, inventory_of, version_of
from backend.vault.sealing import Sealer

KIND: Kind = "campaign"

FACTS_TOLD = 5
"""Facts that an entity which is found brings along."""

MAX_FACTS = 100
"""Facts that are read for all entities which are found."""

_COLUMNS = (
    CampaignItem.id,
    CampaignItem.campaign_id,
    CampaignItem.kind,
    CampaignItem.audience,
    CampaignItem.updated_at,
    CampaignItem.sealed_state,
)


class CampaignSource:
    """What is found of a user's campaigns; a fact while nothing supersedes it."""

    kind: Kind = KIND

    async def containers(self, session: AsyncSession, *, owner_id: UUID) -> list[UUID]:
        """A user's campaigns."""
        return list(await session.scalars(select(Campaign.id).where(Campaign.user_id == owner_id)))

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
        query = select(*_COLUMNS).where(
            CampaignItem.id.in_(source_ids),
            unindexed(CampaignItem.campaign_id) == container_id,
            unindexed(CampaignItem.user_id) == sealer.user_id,
            _counts(),
        )
        return [
            SourceRow(
                source_id=row.id,
                size=len(row.sealed_state),
                documents=partial(_documents, sealer, row),
            )
            for row in await session.execute(query)
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

        An entity comes with where it is, and the last facts about it that are not found themselves.
        """
        found = await _read(session, sealer, source_ids, viewpoint)
        items = [item for _, item in found.values()]
        about = [item.about_id for item in items if isinstance(item, Fact) and item.about_id]
        places = [
            item.location_id for item in items if isinstance(item, Entity) and item.location_id
        ]
        named = await _read(session, sealer, [*about, *places], viewpoint)
        names = {each: item.name for each, (_, item) in named.items() if isinstance(item, Entity)}
        entities = {
            each: campaign_id
            for each, (campaign_id, item) in found.items()
            if isinstance(item, Entity)
        }
        facts = await _facts_about(session, sealer, entities, viewpoint, besides=found)
        return {
            item_id: Recalled(
                kind=KIND,
                source_id=item_id,
                container_id=campaign_id,
                title=_title(item, names),
                text=_lines([told(item, names), *facts.get(item_id, [])]),
            )
            for item_id, (campaign_id, item) in found.items()
        }


def told(item: Item, names: Mapping[UUID, str] = MappingProxyType({})) -> str:
    """What an item says, but for its name: a line for each field of an entity that has a text.

    `names` are those of places; where an entity is goes unsaid without.
    """
    match item:
        case Fact():
            return item.text
        case Thread():
            steps = [step.text for step in item.objectives]
            next_step = f"Next: {item.next_step}" if item.next_step else ""
            return _lines(
                [f"{item.kind.capitalize()}, {item.status}", item.summary, next_step, *steps]
            )
        case Entity():
            name = names.get(item.location_id) if item.location_id else None
            place = f"at {name}" if name else ""
            head = ", ".join(
                filter(None, [item.kind, item.role, item.status, item.disposition, place])
            )
            wants = f"Wants: {item.wants}" if item.wants else ""
            voice = f"Voice: {'; '.join(item.voice)}" if item.voice else ""
            return _lines(
                [head, item.description, item.personality, voice, wants, *_attributes(item)]
            )
        case _:
            return ""


def _counts() -> ColumnElement[bool]:
    """The condition that an item may be found. One that is to be folded again may not."""
    return and_(
        CampaignItem.exists,
        ~CampaignItem.is_stale,
        CampaignItem.kind.in_(INDEXED),
        or_(CampaignItem.kind != "fact", CampaignItem.is_live),
    )


async def _read(
    session: AsyncSession, sealer: Sealer, item_ids: Iterable[UUID], viewpoint: Viewpoint
) -> dict[UUID, tuple[UUID, Item]]:
    """Items with their campaigns, by id."""
    found: dict[UUID, tuple[UUID, Item]] = {}
    for ids in chunks(list(dict.fromkeys(item_ids))):
        query = select(*_COLUMNS).where(
            CampaignItem.id.in_(ids),
            unindexed(CampaignItem.user_id) == sealer.user_id,
            _counts(),
            known_to(viewpoint, CampaignItem.audience),
        )
        for row in await session.execute(query):
            found[row.id] = row.campaign_id, _open(sealer, row)
    return found


async def _facts_about(
    session: AsyncSession,
    sealer: Sealer,
    entities: Mapping[UUID, UUID],
    viewpoint: Viewpoint,
    *,
    besides: Collection[UUID],
) -> dict[UUID, list[str]]:
    """The last facts that count about each of some entities, given with their campaigns."""
    query = (
        select(*_COLUMNS)
        .where(
            CampaignItem.campaign_id.in_(set(entities.values())),
            CampaignItem.about_id.in_(entities),
            CampaignItem.user_id == sealer.user_id,
            CampaignItem.kind == "fact",
            _counts(),
            known_to(viewpoint, CampaignItem.audience),
        )
        .order_by(CampaignItem.seq.desc())
        .limit(MAX_FACTS)
    )
    facts: dict[UUID, list[str]] = {}
    if not entities:
        return facts
    for row in await session.execute(query):
        fact = _open(sealer, row)
        if row.id in besides or not isinstance(fact, Fact) or fact.about_id is None:
            continue
        own = facts.setdefault(fact.about_id, [])
        if len(own) < FACTS_TOLD:
            own.insert(0, fact.text)
    return facts


def _open(sealer: Sealer, row: Any) -> Item:
    return item_of(row.kind, read_state(sealer, row.id, row.sealed_state))


def _documents(sealer: Sealer, row: Any) -> list[Document]:
    item = _open(sealer, row)
    return item_documents(
        row.id,
        row.campaign_id,
        names=_names(item),
        content=told(item),
        version=version_of(row.updated_at),
        audience=row.audience,
    )


def _names(item: Item) -> list[str]:
    match item:
        case Entity():
            return [item.name, *item.aliases]
        case Thread():
            return [item.title]
        case _:
            return []


def _title(item: Item, names: dict[UUID, str]) -> str:
    if isinstance(item, Fact):
        return names.get(item.about_id, "") if item.about_id else ""
    return next(iter(_names(item)), "")


def _attributes(entity: Entity) -> list[str]:
    """Attributes in words; numbers say nothing that somebody looks for."""
    lines: list[str] = []
    for name, value in entity.attributes.items():
        values: list[Any] = value if isinstance(value, list) else [value]
        if words := [each for each in values if isinstance(each, str) and each.strip()]:
            lines.append(f"{name}: {', '.join(words)}")
    return lines


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(text for text in texts if text.strip())
