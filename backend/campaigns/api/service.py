"""List, create, edit and delete campaigns."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import CampaignFields, CampaignView, NewCampaign, WorldPatch
from backend.campaigns.errors import CampaignFullError
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import Change, build_creation
from backend.campaigns.ledger.items import World
from backend.campaigns.ledger.records import (
    ItemKey,
    build_campaign_views,
    edit_item,
    get_campaign,
    lock_with_cause,
    open_campaign,
    open_reading,
    seal_campaign,
)
from backend.campaigns.models import Campaign
from backend.campaigns.rules.protocol import check_rules
from backend.chats.models import Chat
from backend.chronicles.events import ChronicleFields
from backend.chronicles.repository import make_chronicle
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.http.schemas import Page, check_revision, make_page, merge_patch, reject_unknown
from backend.jobs.deletions import queue_deletion
from backend.memory.indexing.outbox import note_change

MAX_CAMPAIGNS = 200
"""Maximum number of campaigns of one user."""


class CampaignService:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_page(
        self, identity: Identity, *, limit: int, after: UUID | None
    ) -> Page[CampaignView]:
        query = select(Campaign).where(Campaign.match_owner(identity.user_id))
        if after is not None:
            query = query.where(Campaign.id < after)
        async with self._database.read() as session:
            rows = await session.scalars(query.order_by(Campaign.id.desc()).limit(limit + 1))
            page, following = make_page(rows.all(), limit)
            views = await build_campaign_views(session, identity.sealer, page)
        for place, row in enumerate(page):
            if row.is_stale:
                views[place] = await self.get(identity, row.id)
        return Page(items=views, next=following)

    async def create(self, identity: Identity, new: NewCampaign) -> CampaignView:
        """Create a campaign without items, and its chronicle.

        Raises `CampaignFullError`, `ChronicleFullError`, `ValidationError`.
        """
        _check_name(new.name)
        check_rules(new.rules)
        async with self._database.write() as session:
            campaign = await make_campaign(session, identity, new)
            [view] = await build_campaign_views(session, identity.sealer, [campaign])
        return view

    async def get(self, identity: Identity, campaign_id: UUID) -> CampaignView:
        """Raise `CampaignNotFoundError` if it does not exist."""
        async with open_reading(self._database, identity, campaign_id) as (session, campaign):
            [view] = await build_campaign_views(session, identity.sealer, [campaign])
        return view

    async def patch(
        self,
        identity: Identity,
        campaign_id: UUID,
        patch: dict[str, Any],
        *,
        if_match: str | None,
        message_id: UUID | None = None,
    ) -> CampaignView:
        """Merge a patch into a campaign. Changes of its world are written to the ledger.

        With `message_id` they are active while that message is. Raises `CampaignNotFoundError`,
        `PreconditionFailedError`, `MessageNotFoundError`, `ValidationError`.
        """
        reject_unknown(patch, WorldPatch)
        sealer = identity.sealer
        async with self._database.write() as session:
            campaign, cause = await lock_with_cause(session, identity, campaign_id, message_id)
            check_revision(if_match, campaign.version)
            own = frozenset(CampaignFields.__struct_fields__)
            fields = merge_patch(
                open_campaign(sealer, campaign), {k: v for k, v in patch.items() if k in own}
            )
            _check_name(fields.name)
            check_rules(fields.rules)
            seal_campaign(sealer, campaign, fields)
            world = {key: value for key, value in patch.items() if key not in own}
            if world:
                key = ItemKey(campaign_id, "world", campaign_id)
                await edit_item(session, sealer, campaign, key, world, cause=cause)
            else:
                campaign.version += 1
                campaign.edits += 1
                campaign.updated_at = now()
            await session.flush()
            [view] = await build_campaign_views(session, sealer, [campaign])
        return view

    async def delete(self, identity: Identity, campaign_id: UUID, *, if_match: str | None) -> None:
        """Delete a campaign, but neither its chats nor its chronicle.

        Raises `CampaignNotFoundError`, `PreconditionFailedError`.
        """
        plays_it = Chat.campaign_id == campaign_id, Chat.user_id == identity.user_id
        async with self._database.write() as session:
            # Chats before campaigns, because all code locks them in this order.
            played = select(Chat.id).where(*plays_it).order_by(Chat.id)
            await session.execute(played.with_for_update())
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            check_revision(if_match, campaign.version)
            await session.execute(
                update(Chat).where(*plays_it).values(campaign_id=None, revision=Chat.revision + 1)
            )
            campaign.deleted_at, campaign.chronicle_id = now(), None
            await session.flush()
            await queue_deletion(session, "campaign", campaign_id)
            await note_change(
                session,
                identity.user_id,
                kind="campaign",
                container_id=campaign_id,
                source_ids=None,
            )


async def make_campaign(session: AsyncSession, identity: Identity, new: NewCampaign) -> Campaign:
    """Create a campaign and its chronicle. Raises `CampaignFullError`, `ChronicleFullError`."""
    await check_room(session, identity)
    chronicle = await make_chronicle(session, identity, ChronicleFields(name=new.name))
    campaign = Campaign(
        id=new_id(),
        user_id=identity.user_id,
        rules=new.rules,
        chronicle_id=chronicle.id,
        version=0,
        last_seq=0,
        edits=0,
    )
    fields = CampaignFields(name=new.name, rules=new.rules, brief=new.brief, settings=new.settings)
    seal_campaign(identity.sealer, campaign, fields)
    session.add(campaign)
    await session.flush()
    world = build_creation(World(day=new.day, time_of_day=new.time_of_day))
    await ledger_store.append_changes(
        session, identity.sealer, campaign, [Change("world", campaign.id, world)], actor="user"
    )
    await session.flush()
    return campaign


async def check_room(session: AsyncSession, identity: Identity) -> None:
    """Raise `CampaignFullError` if an account has the maximum number of campaigns."""
    count = select(func.count()).where(Campaign.match_owner(identity.user_id))
    if (await session.scalar(count) or 0) >= MAX_CAMPAIGNS:
        raise CampaignFullError(
            f"An account can have {MAX_CAMPAIGNS} campaigns. Delete some first.",
            extra={"limit": "campaigns", "allowed": MAX_CAMPAIGNS},
        )


def _check_name(name: str) -> None:
    if not name.strip():
        raise ValidationError("A campaign needs a name.")
