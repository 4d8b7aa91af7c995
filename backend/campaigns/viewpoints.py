"""Whether a viewpoint, or an audience, names entities that are there."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.audience import Viewpoint
from backend.campaigns.models import Campaign, CampaignItem
from backend.chats.models import Chat
from backend.chats.repository import get_chat
from backend.errors import ValidationError


async def check_viewpoint(
    session: AsyncSession, viewpoint: Viewpoint, *, owner_id: UUID, chat_id: UUID | None
) -> None:
    """Raise `ValidationError` for an entity that the chat's campaign does not have.

    Without a chat any campaign of the owner's may have it. Raises `ChatNotFoundError`.
    """
    if isinstance(viewpoint, str):
        return
    if chat_id is None:
        where = CampaignItem.user_id == owner_id
    else:
        chat = await get_chat(session, chat_id, owner_id=owner_id)
        where = CampaignItem.campaign_id == chat.campaign_id
    if await _missing(session, [viewpoint], where, owner_id=owner_id):
        raise ValidationError(f"`viewpoint` names {viewpoint}, which is no entity of the campaign.")


async def check_chat_audience(
    session: AsyncSession, chat: Chat, entity_ids: Sequence[UUID]
) -> None:
    """Raise `ValidationError` where an audience names what is no entity of the chat's campaign."""
    where = CampaignItem.campaign_id == chat.campaign_id
    await _check(session, entity_ids, where, owner_id=chat.user_id)


async def check_event_audience(
    session: AsyncSession, chronicle_id: UUID, entity_ids: Sequence[UUID], *, owner_id: UUID
) -> None:
    """Raise `ValidationError` for what is no entity of a campaign that has the chronicle."""
    theirs = select(Campaign.id).where(Campaign.chronicle_id == chronicle_id)
    of_chats = select(Chat.campaign_id).where(
        Chat.chronicle_id == chronicle_id, Chat.campaign_id.is_not(None)
    )
    where = or_(CampaignItem.campaign_id.in_(theirs), CampaignItem.campaign_id.in_(of_chats))
    await _check(session, entity_ids, where, owner_id=owner_id)


async def _check(
    session: AsyncSession,
    entity_ids: Sequence[UUID],
    where: ColumnElement[bool],
    *,
    owner_id: UUID,
) -> None:
    if missing := await _missing(session, entity_ids, where, owner_id=owner_id):
        raise ValidationError(f"`audience` names {missing}, which is no entity of the campaign.")


async def _missing(
    session: AsyncSession,
    entity_ids: Sequence[UUID],
    where: ColumnElement[bool],
    *,
    owner_id: UUID,
) -> UUID | None:
    """The first of these that is no entity of the owner's that meets the condition."""
    found = set(
        await session.scalars(
            select(CampaignItem.id).where(
                CampaignItem.id.in_(entity_ids),
                CampaignItem.user_id == owner_id,
                CampaignItem.kind == "entity",
                CampaignItem.exists,
                where,
            )
        )
    )
    return next((each for each in entity_ids if each not in found), None)
