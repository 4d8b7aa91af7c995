"""How far campaigns are read: the messages of their chats that a compaction has read.

What followed from a message is in the ledger, and counts while the message is told. Nothing here
commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import bindparam, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger import paths as ledger_paths
from backend.campaigns.models import Campaign, CampaignChange, CampaignMark
from backend.chats.models import Chat, Message
from backend.database.base import split_chunks
from backend.vault.sealing import Sealer

LOOK_BACK = 400
"""Messages before the last one among which unread ones are looked for."""

IS_COMPACTED = (
    select(CampaignMark.id)
    .where(
        CampaignMark.campaign_id == CampaignChange.campaign_id,
        CampaignMark.version == CampaignChange.version,
    )
    .exists()
)
"""Whether a change was written by a compaction: a scene's summary is not."""

_IS_READ = select(CampaignMark.id).where(CampaignMark.id == Message.id).exists()
_ON_PATH = (
    Message.chat_id == bindparam("chat"),
    Message.is_active,
    ~Message.hidden,
    Message.position > bindparam("after"),
    Message.position <= bindparam("leaf"),
)
_FIRST_UNREAD = (
    select(Message.position, (Message.path_tokens - Message.tokens).label("path_tokens"))
    .where(*_ON_PATH, ~_IS_READ)
    .order_by(Message.position)
    .limit(1)
)
_LAST_READ = (
    select(CampaignMark.position)
    .join(Message, Message.id == CampaignMark.id)
    .where(
        CampaignMark.chat_id == bindparam("chat"),
        CampaignMark.position <= bindparam("leaf"),
        Message.is_active,
    )
    .order_by(CampaignMark.position.desc())
    .limit(1)
    .scalar_subquery()
)
_UNREAD_ROUNDS = select(func.count()).where(
    *_ON_PATH, Message.role == "user", Message.position > func.coalesce(_LAST_READ, -1)
)


class Unread(NamedTuple):
    """The first message of a path that was not read, and stored tokens from the root to it."""

    position: int
    path_tokens: int


async def first_unread(session: AsyncSession, leaf: Message, *, after: int) -> Unread:
    """The first message after position `after`, down to `leaf`, that was not read.

    The place after `leaf` where all of them were read.
    """
    place = {"chat": leaf.chat_id, "leaf": leaf.position}
    row = (
        await session.execute(
            _FIRST_UNREAD, {**place, "after": max(after, leaf.position - LOOK_BACK)}
        )
    ).one_or_none()
    if row is None:
        return Unread(leaf.position + 1, leaf.path_tokens)
    return Unread(row.position, row.path_tokens)


async def count_unread_rounds(session: AsyncSession, chat: Chat, leaf: Message) -> int:
    """Lines of the user down to `leaf` since the last message that was read.

    Those alone that may be read: said since the chat's owner has agreed to it.
    """
    query = _UNREAD_ROUNDS
    if chat.chronicle_since is not None:
        query = query.where(Message.created_at >= chat.chronicle_since)
    place = {"chat": chat.id, "leaf": leaf.position, "after": leaf.position - LOOK_BACK}
    return await session.scalar(query, place) or 0


async def read_again(session: AsyncSession, sealer: Sealer | None, message_id: UUID) -> None:
    """Let a message be read again that says, or is for, something else: what followed is gone.

    So are those after it that were read with it: what followed from several is of the last one.
    Without a sealer the next request that reads the campaign folds it.
    """
    first = await session.get(CampaignMark, message_id)
    if first is None:
        return
    campaign = await session.get_one(Campaign, first.campaign_id, with_for_update=True)
    together = select(CampaignMark).where(
        CampaignMark.campaign_id == first.campaign_id,
        CampaignMark.version == first.version,
        CampaignMark.chat_id == first.chat_id,
        CampaignMark.position >= first.position,
    )
    for mark in (await session.scalars(together)).all():
        await ledger_paths.detach(session, sealer, campaign, mark.id, version=mark.version)
        await session.delete(mark)


async def copy_marks(
    session: AsyncSession,
    source_id: UUID,
    fork_id: UUID,
    copied: Mapping[UUID, UUID],
    *,
    campaign_id: UUID | None = None,
) -> None:
    """Let the copies of messages count as read. `copied` leads from messages to their copies.

    In another campaign, given by `campaign_id`, no change follows from them.
    """
    for part in split_chunks(list(copied)):
        query = select(CampaignMark).where(
            CampaignMark.chat_id == source_id, CampaignMark.id.in_(part)
        )
        rows = [
            {
                "id": copied[mark.id],
                "user_id": mark.user_id,
                "campaign_id": campaign_id or mark.campaign_id,
                "chat_id": fork_id,
                "position": mark.position,
                "version": 0 if campaign_id else mark.version,
            }
            for mark in await session.scalars(query)
        ]
        if rows:
            await session.execute(insert(CampaignMark), rows)
