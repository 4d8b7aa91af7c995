"""How a campaign follows its chats: their active paths, copies of them, joining and leaving."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import delete, exists, insert, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.accounts.auth.identity import Identity
from backend.campaigns.ledger import paths as ledger_paths
from backend.campaigns.ledger.read_marks import copy_marks, read_again
from backend.campaigns.ledger.records import LOCKED, get_campaign
from backend.campaigns.models import CampaignProposal, ChangeSource, ProposalSource
from backend.chats.events import (
    AudienceChanged,
    CampaignChosen,
    ChatDeleted,
    PathMoved,
    WorldShared,
)
from backend.chats.models import Chat, Message
from backend.database.base import split_chunks
from backend.vault.sealing import Sealer


class CampaignSessions(AudienceChanged, CampaignChosen, ChatDeleted, PathMoved, WorldShared):
    """Keeps the state of campaigns in line with their chats."""

    async def audience_changed(
        self, session: AsyncSession, identity: Identity, message: Message, *, before: str
    ) -> None:
        """Take back what was read out of a message for others: it is read again."""
        if message.audience != before:
            await read_again(session, identity.sealer, message.id)

    async def path_moved(
        self, session: AsyncSession, sealer: Sealer | None, chat: Chat, *, above: int
    ) -> None:
        """Let the changes of messages count that are on the path, and no others."""
        if chat.campaign_id is None:
            return
        asked = {"campaign": chat.campaign_id, "owner": chat.user_id}
        campaign = await session.scalar(LOCKED, asked)
        if campaign is not None:
            await ledger_paths.path_moved(session, sealer, campaign, chat.id, above=above)

    async def world_shared(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        fork_id: UUID,
        copied: Mapping[UUID, UUID],
    ) -> None:
        """Let a fork be a session too.

        A change counts, and a proposal is shown, while any copy of its message is told.
        """
        source = await session.get_one(Chat, source_id)
        if source.campaign_id is None:
            return
        fork = await session.get_one(Chat, fork_id)
        fork.campaign_id = source.campaign_id
        for part in split_chunks(list(copied)):
            query = select(ChangeSource).where(
                ChangeSource.chat_id == source_id, ChangeSource.message_id.in_(part)
            )
            rows = [
                {
                    "change_id": row.change_id,
                    "message_id": copied[row.message_id],
                    "chat_id": fork_id,
                    "position": row.position,
                }
                for row in await session.scalars(query)
            ]
            if rows:
                await session.execute(insert(ChangeSource), rows)
            proposed = select(ProposalSource).where(
                ProposalSource.chat_id == source_id, ProposalSource.message_id.in_(part)
            )
            copies = [
                {
                    "proposal_id": row.proposal_id,
                    "message_id": copied[row.message_id],
                    "chat_id": fork_id,
                }
                for row in await session.scalars(proposed)
            ]
            if copies:
                await session.execute(insert(ProposalSource), copies)
        await copy_marks(session, source_id, fork_id, copied)
        await session.flush()
        await self.path_moved(session, identity.sealer, fork, above=0)

    async def chat_deleted(self, session: AsyncSession, identity: Identity, chat: Chat) -> None:
        """Delete the proposals that come from no other chat."""
        theirs = aliased(ProposalSource)
        elsewhere = exists().where(
            theirs.proposal_id == ProposalSource.proposal_id, theirs.chat_id != chat.id
        )
        only_here = select(ProposalSource.proposal_id).where(
            ProposalSource.chat_id == chat.id, ~elsewhere
        )
        await session.execute(
            delete(CampaignProposal).where(
                CampaignProposal.id.in_(only_here), CampaignProposal.user_id == identity.user_id
            )
        )

    async def campaign_chosen(
        self, session: AsyncSession, identity: Identity, chat: Chat, campaign_id: UUID | None
    ) -> None:
        """Make a chat a session of a campaign, or of none. Raises `CampaignNotFoundError`."""
        if chat.campaign_id == campaign_id:
            return
        campaign = (
            await get_campaign(session, identity, campaign_id, lock=True) if campaign_id else None
        )
        chat.campaign_id = campaign_id
        if campaign is None:
            return
        if chat.chronicle_id is None:
            chat.chronicle_id = campaign.chronicle_id
        await session.flush()
        await ledger_paths.path_moved(session, identity.sealer, campaign, chat.id, above=0)
