"""What was made of a scene follows the audience of the messages that it was made from."""

from __future__ import annotations

from uuid import UUID

import msgspec
from sqlalchemy import bindparam, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.audience import PUBLIC, narrowest, opened
from backend.campaigns import ledger_store
from backend.campaigns.chapters import narrowed_chapters
from backend.campaigns.ledger import Operations
from backend.campaigns.ledger_store import Change
from backend.campaigns.marks import IS_COMPACTED
from backend.campaigns.models import CampaignChange, CampaignItem, ChangeSource
from backend.campaigns.records import get_campaign
from backend.chats.events import AudienceChanged
from backend.chats.models import Chat, Message

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


_QUOTED = (
    select(CampaignChange.item_id)
    .join(ChangeSource, ChangeSource.change_id == CampaignChange.id)
    .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
    .where(
        ChangeSource.message_id == bindparam("message"),
        CampaignChange.actor == "compactor",
        CampaignChange.is_on_path,
        CampaignItem.kind == "fact",
    )
)
"""Facts that were read out of a message."""


class SceneAudiences(AudienceChanged):
    """Narrows scenes, their threads, facts and chapters to the audience of their messages."""

    async def audience_changed(
        self,
        session: AsyncSession,
        identity: Identity,
        message: Message,
        *,
        before: str,  # noqa: ARG002  # what was made of it is for fewer in any case
    ) -> None:
        """Let scenes that tell of the message, and their threads, be for those who may know it.

        A message for more than before opens nothing: what it came to is its user's to show.
        """
        chat = await session.get_one(Chat, message.chat_id)
        if message.audience == PUBLIC or not message.is_active or chat.campaign_id is None:
            return
        campaign = await get_campaign(session, identity, chat.campaign_id, lock=True)
        place = {"chat": chat.id, "campaign": campaign.id, "place": message.position}
        wanted: set[UUID] = set()
        for row in (await session.execute(_COMPRESSED, place)).all():
            begun = await session.scalar(_BEGUN, {"chat": chat.id, "scene": row.item_id})
            # It begins with the line that its first reply answers.
            if begun is not None and begun - 1 <= message.position:
                made = select(CampaignChange.item_id).where(
                    CampaignChange.campaign_id == campaign.id, CampaignChange.version == row.version
                )
                wanted.update(await session.scalars(made))
        quoted = set(await session.scalars(_QUOTED, {"message": message.id}))
        query = select(CampaignItem.id, CampaignItem.kind, CampaignItem.audience).where(
            CampaignItem.id.in_(wanted | quoted),
            or_(CampaignItem.kind != "fact", CampaignItem.id.in_(quoted)),
            CampaignItem.kind.in_(("scene", "thread", "fact")),
            CampaignItem.exists,
        )
        changes: list[Change] = []
        scenes: dict[UUID, str] = {}
        for item in await session.execute(query):
            column = narrowest([item.audience, message.audience])
            if column != item.audience:
                audience = {"audience": msgspec.to_builtins(opened(column))}
                changes.append(Change(item.kind, item.id, Operations(set=audience)))
                if item.kind == "scene":
                    scenes[item.id] = column
        if scenes:
            changes += await narrowed_chapters(session, identity.sealer, campaign.id, scenes)
        if changes:
            await ledger_store.append(
                session, identity.sealer, campaign, changes, actor="user", message=message
            )
