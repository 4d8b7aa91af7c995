"""Judge and store drafts as the compactor does."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.records import get_campaign
from backend.campaigns.proposals.authority import Draft, Verdict, judge_drafts
from backend.campaigns.proposals.store import store_proposals
from backend.chats.models import Chat, Message
from backend.database.engine import Database


async def compact(
    database: Database,
    identity: Identity,
    campaign_id: UUID,
    *drafts: dict[str, Any],
    line: UUID,
    since: datetime,
) -> tuple[Verdict, int]:
    """Judge drafts of a line; write or propose them; return the verdict and the number proposed."""
    async with database.write() as session:
        campaign = await get_campaign(session, identity, campaign_id, lock=True)
        message = await session.get_one(Message, line)
        chat = await session.get_one(Chat, message.chat_id)
        made = [Draft(message=message, because="It says so.", **each) for each in drafts]
        found = await judge_drafts(session, identity.sealer, campaign, made, since=since)
        changes = [draft.change for draft in found.drafts]
        if changes:
            await ledger_store.append_changes(
                session, identity.sealer, campaign, changes, actor="compactor", message=message
            )
        kept = await store_proposals(session, identity.sealer, campaign, chat, found.proposals)
    return found, kept
