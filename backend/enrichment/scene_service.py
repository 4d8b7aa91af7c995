"""Scenes of campaigns, for people: ending them."""

from __future__ import annotations

from uuid import UUID

import msgspec

from backend.accounts.auth.identity import Identity
from backend.campaigns.ledger.records import (
    ItemKey,
    build_item_view,
    edit_item,
    find_cause,
    get_campaign,
    get_item_row,
    open_campaign,
    open_item,
)
from backend.campaigns.scenes.scenes import find_last_chat
from backend.chats.repository import get_chat
from backend.database.engine import Database
from backend.enrichment.outbox import EnrichmentOutbox
from backend.http.schemas import check_revision


class SceneService:
    """What a user does with scenes beside editing them."""

    def __init__(self, database: Database, outbox: EnrichmentOutbox) -> None:
        self._database = database
        self._outbox = outbox

    async def close(
        self,
        identity: Identity,
        campaign_id: UUID,
        scene_id: UUID,
        *,
        if_match: str | None,
        message_id: UUID | None = None,
    ) -> msgspec.Struct:
        """End a scene and have it compressed; one that is over is compressed as far as it is not.

        With `message_id` it is over while that message is told. Raises `CampaignNotFoundError`,
        `CampaignItemNotFoundError`, `PreconditionFailedError`, `MessageNotFoundError`,
        `ValidationError`.
        """
        key = ItemKey(campaign_id, "scene", scene_id)
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            row = await get_item_row(session, identity, key)
            check_revision(if_match, row.seq)
            cause = await find_cause(session, identity, campaign, message_id)
            closed = {"status": "closed"}
            await edit_item(session, identity.sealer, campaign, key, closed, cause=cause)
            chat_id = cause.chat_id if cause else await find_last_chat(session, scene_id)
            if chat_id is not None:
                chat = await get_chat(session, chat_id, owner_id=identity.user_id)
                await self._outbox.compact(session, identity, chat)
                if open_campaign(identity.sealer, campaign).settings.summaries:
                    await self._outbox.compress(session, identity, chat, scene_id)
            row = await get_item_row(session, identity, key)
            return build_item_view(row, open_item(identity.sealer, row))
