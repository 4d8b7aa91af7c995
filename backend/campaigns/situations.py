"""Where a campaign's story is now: read for the state block of a prompt, and for its user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from backend.accounts.identity import Identity
from backend.campaigns import ledger_store
from backend.campaigns.context import (
    Form,
    Placed,
    Shown,
    Situation,
    choose_form,
    full_block,
    light_line,
    ranked,
)
from backend.campaigns.items import Clock, Echo, Entity, Fact, Item, Kind, Relation, Scene, Thread
from backend.campaigns.ledger import item_of
from backend.campaigns.models import Campaign, CampaignItem
from backend.campaigns.name_cache import NameCache, Names
from backend.campaigns.records import open_campaign, reading, view_item
from backend.campaigns.rules import rules_of
from backend.campaigns.schemas import ContextView, StateView
from backend.chats import repository as chats
from backend.chats.models import Chat
from backend.chronicles.reading import current_events
from backend.database.engine import Database
from backend.generation.tokens import get_tokenizer
from backend.vault.sealing import Sealer

Condition = ColumnElement[bool] | InstrumentedAttribute[bool]

EVERYTHING = "gm"
"""The speaker who may know all: the game master."""

RECENT_EVENTS = 40
MAX_HOT = 100
"""Items of one kind that are read for one block."""

MAX_MENTIONED = 8
MAX_FACTS = 12


class SituationService:
    """Reads where a campaign's story is."""

    def __init__(self, database: Database, names: NameCache) -> None:
        self._database = database
        self._names = names

    async def state(self, identity: Identity, campaign_id: UUID) -> StateView:
        """Raises `CampaignNotFoundError`."""
        async with reading(self._database, identity, campaign_id) as (session, campaign):
            reader = _Reader(session, identity.sealer, campaign, EVERYTHING)
            world = await reader.world()
            scene = await reader.scene()
            entities = await reader.rows("entity")
            threads = await reader.rows("thread", CampaignItem.is_live)
            clocks = await reader.rows("clock", CampaignItem.is_live)
            echoes = await reader.rows("echo")
        players = [item for _, item in entities if isinstance(item, Entity) and item.kind == "pc"]
        return StateView(
            version=campaign.version,
            day=world.day,
            time_of_day=world.time_of_day,
            flags=world.flags,
            scene=view_item(*scene) if scene else None,
            entities=[view_item(*each) for each in entities],
            threads=[view_item(*each) for each in threads],
            clocks=[view_item(*each) for each in clocks],
            echoes=[view_item(*each) for each in echoes[::-1]],
            precarity=rules_of(campaign.rules).precarity(players),
        )

    async def context(
        self, identity: Identity, campaign_id: UUID, *, chat_id: UUID | None, text: str
    ) -> ContextView:
        """Both forms, and which of them a turn would get.

        Raises `CampaignNotFoundError`, `ChatNotFoundError`.
        """
        async with reading(self._database, identity, campaign_id) as (session, campaign):
            chat = (
                await chats.get_chat(session, chat_id, owner_id=identity.user_id)
                if chat_id
                else None
            )
            block = await self.block(session, identity.sealer, campaign, chat, text)
        count = get_tokenizer("o200k_base").count
        return ContextView(
            form=block.form,
            why=block.why,
            full=block.full,
            light=block.light,
            tokens={"full": count(block.full), "light": count(block.light)},
        )

    async def block(
        self,
        session: AsyncSession,
        sealer: Sealer,
        campaign: Campaign,
        chat: Chat | None,
        text: str,
        *,
        speaker: UUID | str = EVERYTHING,
        spoke: Sequence[UUID] = (),
    ) -> Block:
        """The state block of a turn, in both forms.

        Args:
            session: Where to read.
            sealer: The owner's.
            campaign: Whose situation it is.
            chat: The session that it is for; none is a chat that begins.
            text: The user's line and the last reply: who is named there comes first.
            speaker: Whose knowledge it may hold: `gm`, `public`, or an entity.
            spoke: Entities that spoke lately, the last one first.
        """
        reader = _Reader(session, sealer, campaign, speaker)
        names = await self._names.names(session, sealer, campaign)
        situation = await reader.situation(names, text, spoke=spoke, chat=chat)
        now = shown(campaign, situation)
        form, why = choose_form(text, None, now, first=chat is None or chat.leaf_id is None)
        return Block(
            form=form,
            why=why,
            full=full_block(situation),
            light=light_line(situation),
            shown=now,
        )


class Block(msgspec.Struct, kw_only=True, frozen=True):
    """A state block in both forms, and what it says of the moment."""

    form: Form
    why: str
    full: str
    light: str
    shown: Shown

    @property
    def text(self) -> str:
        """What the turn gets."""
        return self.full if self.form == "full" else self.light


class _Reader:
    """Reads the items that one speaker may know of."""

    def __init__(
        self, session: AsyncSession, sealer: Sealer, campaign: Campaign, speaker: UUID | str
    ) -> None:
        self._session = session
        self._sealer = sealer
        self._campaign = campaign
        self._visible = _visible_to(speaker)

    async def rows(
        self,
        kind: Kind,
        *conditions: Condition,
        limit: int | None = None,
        newest: bool = False,
    ) -> list[tuple[CampaignItem, Item]]:
        order = CampaignItem.seq.desc() if newest else CampaignItem.id
        query = (
            select(CampaignItem)
            .where(
                CampaignItem.campaign_id == self._campaign.id,
                CampaignItem.kind == kind,
                CampaignItem.exists,
                *self._visible,
                *conditions,
            )
            .order_by(order)
            .limit(limit)
        )
        return [(row, self._open(row)) for row in await self._session.scalars(query)]

    def _open(self, row: CampaignItem) -> Item:
        return item_of(row.kind, ledger_store.read_state(self._sealer, row.id, row.sealed_state))

    async def world(self) -> Any:
        row = await self._session.get_one(CampaignItem, self._campaign.id)
        return self._open(row)

    async def scene(self) -> tuple[CampaignItem, Scene] | None:
        rows = await self.rows("scene", CampaignItem.is_live, limit=1, newest=True)
        return (rows[0][0], rows[0][1]) if rows and isinstance(rows[0][1], Scene) else None

    async def placed(self, *conditions: Condition, limit: int = MAX_HOT) -> list[Placed]:
        rows = await self.rows("entity", *conditions, limit=limit)
        return [Placed(id=row.id, entity=item) for row, item in rows if isinstance(item, Entity)]

    async def facts_about(self, ids: Sequence[UUID]) -> dict[UUID, list[str]]:
        rows = await self.rows(
            "fact", CampaignItem.is_live, CampaignItem.about_id.in_(ids), limit=MAX_HOT
        )
        found: dict[UUID, list[str]] = {}
        for _, fact in rows:
            if isinstance(fact, Fact) and fact.about_id is not None:
                found.setdefault(fact.about_id, []).append(fact.text)
        return found

    async def situation(
        self, names: Names, text: str, *, spoke: Sequence[UUID], chat: Chat | None
    ) -> Situation:
        fields = open_campaign(self._sealer, self._campaign)
        world = await self.world()
        found = await self.scene()
        scene_id, scene = (found[0].id, found[1]) if found else (None, None)
        named = names.index.find(text)
        players = await self.placed(CampaignItem.subkind == "pc")
        place = scene.location_id if scene and scene.location_id else None
        place = place or next((p.entity.location_id for p in players if p.entity.location_id), None)
        is_here = CampaignItem.place_id == place if place else CampaignItem.id.in_([])
        if scene and scene.present:
            is_here = CampaignItem.id.in_(scene.present)
        people = await self.placed(CampaignItem.subkind == "npc", is_here)
        known = [*(player.id for player in players), *(person.id for person in people)]
        relations = await self._relations(known)
        others = [one for one in named if one not in known and one != place][:MAX_MENTIONED]
        elsewhere = {
            each.id: each
            for each in await self.placed(
                CampaignItem.id.in_([*others, *([place] if place else [])])
            )
        }
        facts = await self.facts_about([*known, *elsewhere])
        location = elsewhere.pop(place, None) if place else None
        here = [*known, *([place] if place else [])]
        return Situation(
            name=fields.name,
            city=fields.brief.city,
            setting=fields.brief.setting,
            day=world.day,
            time_of_day=world.time_of_day,
            scene_id=scene_id,
            stakes=scene.stakes if scene else "",
            players=players,
            location=location,
            present=ranked(people, named=named, spoke=spoke, relations=relations),
            relations=relations,
            threads=[
                item
                for _, item in await self.rows("thread", CampaignItem.is_live, limit=MAX_HOT)
                if isinstance(item, Thread)
            ],
            clocks=[
                item
                for _, item in await self.rows("clock", CampaignItem.is_live, limit=MAX_HOT)
                if isinstance(item, Clock)
            ],
            events=await self._events(world.day, chat),
            echoes=[
                item.text
                for _, item in await self.rows("echo", limit=MAX_HOT, newest=True)
                if isinstance(item, Echo) and not item.resolved
            ],
            facts=[fact for one in here for fact in facts.get(one, [])][:MAX_FACTS],
            mentioned=[(elsewhere[one], facts.get(one, [])) for one in others if one in elsewhere],
            known_names={one: spelled[0] for one, spelled in names.by_id.items()},
        )

    async def _relations(self, ids: Sequence[UUID]) -> list[Relation]:
        either = or_(CampaignItem.about_id.in_(ids), CampaignItem.place_id.in_(ids))
        rows = await self.rows("relation", either, limit=MAX_HOT)
        return [item for _, item in rows if isinstance(item, Relation)]

    async def _events(self, day: int, chat: Chat | None) -> list[str]:
        chronicle = (chat.chronicle_id if chat else None) or self._campaign.chronicle_id
        if chronicle is None:
            return []
        events = await current_events(self._session, self._sealer, chronicle, limit=RECENT_EVENTS)
        return [each.fields.summary for each in events if each.fields.day == day]


def shown(campaign: Campaign, situation: Situation) -> Shown:
    """What a block says of the moment, to see later what changed."""
    return Shown(
        scene_id=str(situation.scene_id) if situation.scene_id else None,
        location_id=str(situation.location.id) if situation.location else None,
        day=situation.day,
        present=[str(person.id) for person in situation.present],
        edits=campaign.edits,
        compactions=campaign.compactions,
    )


def _visible_to(speaker: UUID | str) -> list[ColumnElement[bool]]:
    """The condition that a speaker may know of an item; what is not clear is not for them."""
    if speaker == EVERYTHING:
        return []
    is_public = CampaignItem.audience == "public"
    if isinstance(speaker, str):
        return [is_public]
    return [or_(is_public, CampaignItem.audience.contains(f" {speaker} ", autoescape=True))]
