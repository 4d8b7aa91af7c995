"""Scenes as they are played: their beats, and where in a chat they are told.

A beat is a finished turn of the open scene. It is a change of the reply's, so that it counts while
the reply is told: a regenerated one has a beat of its own. Nothing here commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns import ledger_store
from backend.campaigns.item_rows import read_state
from backend.campaigns.ledger import Operations
from backend.campaigns.ledger_store import Change
from backend.campaigns.marks import IS_COMPACTED
from backend.campaigns.models import CampaignChange, CampaignItem, ChangeSource
from backend.campaigns.records import find_campaign, open_campaign
from backend.chats.models import Chat, Message
from backend.vault.sealing import Sealer

_OPEN = (
    select(CampaignItem.id)
    .where(
        CampaignItem.campaign_id == bindparam("campaign"),
        CampaignItem.kind == "scene",
        CampaignItem.is_live,
    )
    .order_by(CampaignItem.seq.desc())
    .limit(1)
)
_STATE = select(CampaignItem.sealed_state).where(CampaignItem.id == bindparam("scene"))
_ENDED = (
    select(CampaignItem.id)
    .join(CampaignChange, CampaignChange.item_id == CampaignItem.id)
    .where(
        CampaignChange.campaign_id == bindparam("campaign"),
        CampaignChange.turn_id == bindparam("turn"),
        CampaignItem.kind == "scene",
        CampaignItem.exists,
        ~CampaignItem.is_live,
    )
    .distinct()
)


def _told(*columns: Any) -> Any:
    """Of what a scene's changes that count follow from."""
    return (
        select(*columns)
        .select_from(ChangeSource)
        .join(CampaignChange, CampaignChange.id == ChangeSource.change_id)
        .join(Message, Message.id == ChangeSource.message_id)
        .where(
            CampaignChange.item_id == bindparam("scene"),
            CampaignChange.is_on_path,
            ~CampaignChange.is_undone,
            Message.is_active,
        )
    )


_LAST = (
    _told(ChangeSource.chat_id)
    .order_by(CampaignChange.seq.desc(), ChangeSource.message_id.desc())
    .limit(1)
)
_SPAN = _told(
    func.min(ChangeSource.position).label("first"), func.max(ChangeSource.position).label("last")
).where(ChangeSource.chat_id == bindparam("chat"))
_COVERED = _told(func.max(ChangeSource.position)).where(
    ChangeSource.chat_id == bindparam("chat"), CampaignChange.actor == "compactor", ~IS_COMPACTED
)


@dataclass(frozen=True, slots=True)
class Span:
    """Where the active path of a chat tells a scene: positions of messages.

    `after` is the last before those that its summary does not cover, `last` the scene's last one.
    """

    after: int
    last: int


async def count_beat(
    session: AsyncSession, sealer: Sealer, chat: Chat, reply: Message, *, turn_id: UUID
) -> list[UUID]:
    """Count a reply as a beat of the scene that is open: it is there if it is to be compressed."""
    if chat.campaign_id is None:
        return []
    campaign = await find_campaign(session, sealer, chat.campaign_id, lock=True)
    if campaign is None:
        return []
    scene_id = await session.scalar(_OPEN, {"campaign": campaign.id})
    if scene_id is None:
        return []
    beat = Change("scene", scene_id, Operations(add={"beats": 1}))
    await ledger_store.append(
        session, sealer, campaign, [beat], actor="tool", message=reply, turn_id=turn_id
    )
    blob = await session.scalar(_STATE, {"scene": scene_id})
    beats = read_state(sealer, scene_id, blob).get("beats", 0) if blob else 0
    settings = open_campaign(sealer, campaign).settings
    return [scene_id] if settings.summaries and beats % settings.scene_beats == 0 else []


async def ended_scenes(session: AsyncSession, chat: Chat, *, turn_id: UUID) -> list[UUID]:
    """Scenes that a turn changed and that are over now."""
    place = {"campaign": chat.campaign_id, "turn": turn_id}
    return list(await session.scalars(_ENDED, place)) if chat.campaign_id else []


async def last_chat(session: AsyncSession, scene_id: UUID) -> UUID | None:
    """The chat that told of a scene last; None for a scene that no message is a part of."""
    chat_id: UUID | None = await session.scalar(_LAST, {"scene": scene_id})
    return chat_id


async def find_span(session: AsyncSession, scene_id: UUID, chat_id: UUID) -> Span | None:
    """Where a chat tells a scene; None where it does not.

    It begins with the line that the first reply of the scene answers.
    """
    place = {"scene": scene_id, "chat": chat_id}
    row: Any = (await session.execute(_SPAN, place)).one()
    first: int | None = row.first
    if first is None:
        return None
    covered: int | None = await session.scalar(_COVERED, place)
    return Span(after=first - 2 if covered is None else covered, last=row.last)
