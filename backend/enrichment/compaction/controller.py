"""`POST /campaigns/{campaign_id}/compact`: bring a campaign up to date by hand."""

from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from backend.accounts.auth.identity import Identity
from backend.campaigns.errors import CampaignNotFoundError
from backend.campaigns.ledger.records import get_campaign, open_campaign
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import CampaignItem
from backend.campaigns.play.state import is_unsettled
from backend.campaigns.rules import rules_of
from backend.chats.errors import ChatNotFoundError
from backend.chats.repository import get_chat
from backend.database.engine import Database
from backend.enrichment.compaction.reader import count_unread
from backend.enrichment.errors import ChronicleNotEnabledError
from backend.enrichment.outbox import EnrichmentOutbox
from backend.errors import ValidationError
from backend.http.schemas import RAISES
from backend.quotas.definitions import QUEUED_JOBS
from backend.quotas.service import Quotas


class NewCompaction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which chat of the campaign is read."""

    chat_id: UUID


class CompactionView(msgspec.Struct, kw_only=True):
    """What was queued.

    `messages` are those that will be read; with none there is nothing to do. `job_id` is null where
    a job waited already, which reads them too. `waits`: an action or a fight is on, and it runs
    when that is over.
    """

    messages: Annotated[int, msgspec.Meta(ge=0)]
    job_id: UUID | None
    waits: bool


class CompactionService:
    """Compactions that a user asks for."""

    def __init__(self, database: Database, outbox: EnrichmentOutbox) -> None:
        self._database = database
        self._outbox = outbox

    async def compact(
        self, identity: Identity, campaign_id: UUID, wanted: NewCompaction
    ) -> CompactionView:
        """Have all read that a chat has told and that was not read.

        Raises `CampaignNotFoundError`, `ChatNotFoundError`, `ChronicleNotEnabledError`, and
        `ValidationError` where the chat does not belong to the campaign.
        """
        sealer = identity.sealer
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            chat = await get_chat(session, wanted.chat_id, owner_id=identity.user_id)
            if chat.campaign_id != campaign.id:
                raise ValidationError("`chat_id` is a chat that does not belong to the campaign.")
            if not chat.chronicle_enabled:
                raise ChronicleNotEnabledError(
                    "Agree to it in the chat's settings first: a model reads what it says."
                )
            world = await session.get_one(CampaignItem, campaign.id)
            waits = is_unsettled(
                read_state(sealer, world.id, world.sealed_state),
                rules_of(campaign.rules),
                is_played=open_campaign(sealer, campaign).settings.tools,
            )
            messages = await count_unread(session, chat)
            job_id = await self._outbox.compact(session, identity, chat) if messages else None
        return CompactionView(messages=messages, job_id=job_id, waits=waits)


class CompactionController(Controller):
    """Compactions of campaigns."""

    path = "/campaigns/{campaign_id:uuid}/compact"
    tags = ("Campaigns",)

    @post(
        status_code=202,
        opt={RAISES: (CampaignNotFoundError, ChatNotFoundError, ChronicleNotEnabledError)},
        operation_id="compactCampaign",
        summary="Bring a campaign up to date",
    )
    async def compact(
        self,
        campaign_id: FromPath[UUID],
        data: JSONBody[NewCompaction],
        identity: NamedDependency[Identity],
        compactions: NamedDependency[CompactionService],
        quotas: NamedDependency[Quotas],
    ) -> CompactionView:
        """Have a model read what a chat has told and no compaction has read, and keep what matters.

        That is done after this answer: the chat's runs and jobs show it. A model reads only what
        was said since the chat's owner has agreed to it.
        """
        await quotas.check(QUEUED_JOBS, identity.user_id)
        return await compactions.compact(identity, campaign_id, data)
