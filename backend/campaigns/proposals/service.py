"""List and decide proposals."""

from __future__ import annotations

from uuid import UUID

from msgspec import structs
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import ProposalView
from backend.campaigns.errors import (
    ProposalDecidedError,
    ProposalNotFoundError,
    ProposalNotToldError,
    ProposalTargetGoneError,
)
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import (
    Change,
    Operations,
    apply_operations,
    build_item,
    exists,
)
from backend.campaigns.ledger.item_service import check_item_room
from backend.campaigns.ledger.records import check_references, get_campaign, open_reading
from backend.campaigns.models import Campaign, CampaignProposal, ChangeSource, ProposalState
from backend.campaigns.proposals.store import StoredProposal, is_on_path, load_proposals
from backend.campaigns.state.viewpoints import check_viewpoint
from backend.chats.models import Message
from backend.core.audience import Viewpoint, filter_known_to
from backend.database.base import now
from backend.database.engine import Database
from backend.http.schemas import Page, check_revision, make_page
from backend.vault.sealing import Sealer


class ProposalService:
    """Lists proposals, and executes the user's decisions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_page(
        self,
        identity: Identity,
        campaign_id: UUID,
        *,
        state: ProposalState,
        viewpoint: Viewpoint,
        limit: int,
        after: UUID | None,
    ) -> Page[ProposalView]:
        """Return proposals whose messages are on an active path, oldest first, for a viewpoint.

        Open proposals without effect are omitted, so a page may have fewer than `limit`. Raises
        `CampaignNotFoundError`, `ValidationError`.
        """
        query = (
            select(CampaignProposal)
            .where(
                CampaignProposal.campaign_id == campaign_id,
                CampaignProposal.user_id == identity.user_id,
                CampaignProposal.state == state,
                filter_known_to(viewpoint, CampaignProposal.audience),
                is_on_path(),
            )
            .order_by(CampaignProposal.id)
            .limit(limit + 1)
        )
        if after is not None:
            query = query.where(CampaignProposal.id > after)
        async with open_reading(self._database, identity, campaign_id) as (session, campaign):
            await check_viewpoint(session, viewpoint, [campaign_id], owner_id=identity.user_id)
            rows, following = make_page((await session.scalars(query)).all(), limit)
            found = await load_proposals(session, identity.sealer, campaign, rows)
            items = [
                each.view()
                for each in found
                if each.is_known_to(viewpoint) and (state != "open" or each.is_to_decide)
            ]
        return Page(items=items, next=following)

    async def accept(
        self,
        identity: Identity,
        campaign_id: UUID,
        proposal_id: UUID,
        *,
        item_id: UUID | None,
        if_match: str | None,
    ) -> ProposalView:
        """Write a proposal as the user's change, which is active while its message is.

        `item_id` is the chosen candidate. Idempotent. Raises `CampaignNotFoundError`,
        `ProposalNotFoundError`, `ProposalDecidedError`, `ProposalNotToldError`,
        `ProposalTargetGoneError`, `PreconditionFailedError`, `CampaignFullError`,
        `ValidationError`.
        """
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            proposal = await _find(session, identity, campaign, proposal_id, unless="refused")
            if proposal.row.state == "open":
                if not proposal.lines[0].is_told:
                    raise ProposalNotToldError
                check_revision(if_match, proposal.revision)
                change = proposal.change(item_id)
                await _write(session, identity.sealer, campaign, proposal, change)
                proposal.row.state, proposal.row.updated_at = "accepted", now()
            return await _load_view(session, identity, campaign, proposal.row)

    async def refuse(
        self, identity: Identity, campaign_id: UUID, proposal_id: UUID
    ) -> ProposalView:
        """Refuse a proposal, so that it is not proposed again from the same message. Idempotent.

        Raises `CampaignNotFoundError`, `ProposalNotFoundError`, `ProposalDecidedError`.
        """
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            proposal = await _find(session, identity, campaign, proposal_id, unless="accepted")
            if proposal.row.state == "open":
                proposal.row.state, proposal.row.updated_at = "refused", now()
            return await _load_view(session, identity, campaign, proposal.row)


async def _find(
    session: AsyncSession,
    identity: Identity,
    campaign: Campaign,
    proposal_id: UUID,
    *,
    unless: ProposalState,
) -> StoredProposal:
    """Raise `ProposalNotFoundError`, or `ProposalDecidedError` if its state is `unless`."""
    row = await session.scalar(
        select(CampaignProposal).where(
            CampaignProposal.id == proposal_id,
            CampaignProposal.campaign_id == campaign.id,
            CampaignProposal.user_id == identity.user_id,
        )
    )
    if row is None:
        raise ProposalNotFoundError
    if row.state == unless:
        raise ProposalDecidedError(f"The proposal was {unless} before.")
    [proposal] = await load_proposals(session, identity.sealer, campaign, [row])
    return proposal


async def _load_view(
    session: AsyncSession, identity: Identity, campaign: Campaign, row: CampaignProposal
) -> ProposalView:
    await session.flush()
    [proposal] = await load_proposals(session, identity.sealer, campaign, [row])
    return proposal.view()


async def _write(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    proposal: StoredProposal,
    change: Change,
) -> None:
    """Write an accepted change, with all messages of its proposal as its sources."""
    before = proposal.get_state(change.item_id)
    if exists(change.operations.set):
        await check_item_room(session, campaign.id)
    elif not exists(before):
        raise ProposalTargetGoneError
    after = apply_operations(change.kind, before, change.operations)
    if after == before:
        return
    await check_references(session, campaign.id, build_item(change.kind, after))
    told = structs.replace(change.operations, because=proposal.text.because)
    changes = [Change(change.kind, change.item_id, told)]
    old_id = proposal.text.replaces
    if old_id is not None and proposal.is_in_force(old_id):
        heir = Operations(set={"superseded_by": str(change.item_id)})
        changes.append(Change("fact", old_id, heir))
    ids = [line.message_id for line in proposal.lines]
    messages = {
        message.id: message
        for message in await session.scalars(select(Message).where(Message.id.in_(ids)))
    }
    line = messages.pop(ids[0])
    change_ids = await ledger_store.append_changes(
        session, sealer, campaign, changes, actor="user", message=line
    )
    copies = [
        {
            "change_id": change_id,
            "message_id": message.id,
            "chat_id": message.chat_id,
            "position": message.position,
        }
        for change_id in change_ids
        for message in messages.values()
    ]
    if copies:
        await session.execute(insert(ChangeSource), copies)
