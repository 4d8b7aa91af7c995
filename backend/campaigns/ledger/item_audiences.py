"""What was made of messages, or of their scene, follows the audience of the messages."""

from __future__ import annotations

from uuid import UUID

import msgspec
from sqlalchemy import bindparam, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.accounts.auth.identity import Identity
from backend.campaigns.ledger import paths as ledger_paths
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import Operations
from backend.campaigns.ledger.read_marks import IS_COMPACTED
from backend.campaigns.ledger.records import get_campaign, open_campaign
from backend.campaigns.ledger.store import Change
from backend.campaigns.models import CampaignChange, CampaignItem, ChangeSource
from backend.campaigns.scenes.chapters import narrowed_chapters
from backend.chats.events import AudienceChanged
from backend.chats.models import Chat, Message
from backend.core.audience import PUBLIC, decode_audience, intersect_audiences, may_all_know

_COMPRESSED = (
    select(CampaignChange.item_id, CampaignChange.version)
    .join(ChangeSource, ChangeSource.change_id == CampaignChange.id)
    .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
    .where(
        ChangeSource.chat_id == bindparam("chat"),
        ChangeSource.position >= bindparam("place"),
        CampaignChange.campaign_id == bindparam("campaign"),
        CampaignChange.actor == "compactor",
        ~IS_COMPACTED,
        CampaignChange.is_on_path,
        ~CampaignChange.is_undone,
        CampaignItem.kind == "scene",
    )
)
"""Scenes that are compressed through a message, with the versions of the campaign that did so."""

_BEGUN = select(func.min(ChangeSource.position)).where(
    ChangeSource.chat_id == bindparam("chat"),
    ChangeSource.change_id.in_(
        select(CampaignChange.id).where(
            CampaignChange.item_id == bindparam("scene"), CampaignChange.is_on_path
        )
    ),
)


_CHANGED = (
    select(CampaignChange.id, CampaignChange.item_id, CampaignItem.audience)
    .join(ChangeSource, ChangeSource.change_id == CampaignChange.id)
    .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
    .where(
        ChangeSource.message_id == bindparam("message"),
        CampaignChange.campaign_id == bindparam("campaign"),
        CampaignChange.actor.in_(("tool", "compactor")),
        CampaignChange.is_on_path,
        ~CampaignChange.is_undone,
    )
)
"""What a turn, or the work after it, has changed because of a message."""

_EARLIER = aliased(CampaignChange)
_MADE = _CHANGED.where(
    ~exists().where(_EARLIER.item_id == CampaignChange.item_id, _EARLIER.seq < CampaignChange.seq)
)
"""The items that it has made."""


class ItemAudiences(AudienceChanged):
    """Narrows what was made of messages, scenes and chapters to the audience of the messages."""

    async def audience_changed(
        self,
        session: AsyncSession,
        identity: Identity,
        message: Message,
        *,
        before: str,  # noqa: ARG002  # what was made of it is for fewer in any case
    ) -> None:
        """Let what was made of the message be for those who may know it.

        So are scenes that tell of it, with their threads. With hidden information, what it changed
        of items that others know is undone.
        A message for more than before opens nothing: what it came to is its user's to show.
        """
        chat = await session.get_one(Chat, message.chat_id)
        if message.audience == PUBLIC or not message.is_active or chat.campaign_id is None:
            return
        campaign = await get_campaign(session, identity, chat.campaign_id, lock=True)
        wanted = await _followed(session, message, campaign.id)
        values = {"message": message.id, "campaign": campaign.id}
        made = {row.item_id for row in await session.execute(_MADE, values)}
        query = select(CampaignItem.id, CampaignItem.kind, CampaignItem.audience).where(
            CampaignItem.id.in_(wanted | made),
            or_(CampaignItem.kind.in_(("scene", "thread")), CampaignItem.id.in_(made)),
            CampaignItem.exists,
        )
        changes: list[Change] = []
        scenes: dict[UUID, str] = {}
        for item in await session.execute(query):
            column = intersect_audiences([item.audience, message.audience])
            if column != item.audience:
                audience = {"audience": msgspec.to_builtins(decode_audience(column))}
                changes.append(Change(item.kind, item.id, Operations(set=audience)))
                if item.kind == "scene":
                    scenes[item.id] = column
        if scenes:
            changes += await narrowed_chapters(session, identity.sealer, campaign.id, scenes)
        if changes:
            await ledger_store.append(
                session, identity.sealer, campaign, changes, actor="user", message=message
            )
        if open_campaign(identity.sealer, campaign).settings.hidden_information:
            for change in (await session.execute(_CHANGED, values)).all():
                if not may_all_know(change.audience, message.audience):
                    await ledger_paths.undo(session, identity.sealer, campaign, change.id)


async def _followed(session: AsyncSession, message: Message, campaign_id: UUID) -> set[UUID]:
    """Scenes that tell of a message, and what was changed together with their summaries."""
    place = {"chat": message.chat_id, "campaign": campaign_id, "place": message.position}
    found: set[UUID] = set()
    for row in (await session.execute(_COMPRESSED, place)).all():
        begun = await session.scalar(_BEGUN, {"chat": message.chat_id, "scene": row.item_id})
        # It begins with the line that its first reply answers.
        if begun is not None and begun - 1 <= message.position:
            together = select(CampaignChange.item_id).where(
                CampaignChange.campaign_id == campaign_id, CampaignChange.version == row.version
            )
            found.update(await session.scalars(together))
    return found
