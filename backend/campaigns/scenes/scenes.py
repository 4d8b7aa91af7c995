"""Scenes in play: their beginning and end, their beats, and their messages in a chat.

A beat is a finished turn of the open scene. It is a change of the reply's, so that it counts while
the reply is told: a regenerated one has a beat of its own. So are the beginning of a scene where
none is open, and the end of one that the players have left. Nothing here commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import Change, Operations, creation
from backend.campaigns.ledger.item_service import has_item_room
from backend.campaigns.ledger.items import Scene
from backend.campaigns.ledger.paths import IS_COMPACTED
from backend.campaigns.ledger.records import find_campaign, item_states, open_campaign
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import CampaignChange, CampaignItem, ChangeSource
from backend.campaigns.state.party import read_party
from backend.chats.models import Chat, Message
from backend.core.audience import PUBLIC
from backend.database.base import new_id
from backend.vault.sealing import Sealer

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
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    reply: Message,
    *,
    turn_id: UUID,
    lead_id: UUID | None = None,
) -> list[UUID]:
    """Count a reply as a beat of the open scene, and return the scene if it is to be compressed.

    Where none is open, one begins at the place of the story. A reply that is not for everyone
    begins none, because the others would learn of it.
    """
    if chat.campaign_id is None:
        return []
    campaign = await find_campaign(session, sealer, chat.campaign_id, lock=True)
    if campaign is None:
        return []
    party = await read_party(session, campaign.id, lead_id)
    scene_id = party.scene_id
    if scene_id is not None:
        beat = Change("scene", scene_id, Operations(add={"beats": 1}))
    elif party.place and reply.audience == PUBLIC and await has_item_room(session, campaign.id):
        scene_id = new_id()
        begun = Scene(location_id=party.place, beats=1)
        beat = Change("scene", scene_id, creation(begun))
    else:
        return []
    await ledger_store.append(
        session, sealer, campaign, [beat], actor="tool", message=reply, turn_id=turn_id
    )
    blob = await session.scalar(_STATE, {"scene": scene_id})
    beats = read_state(sealer, scene_id, blob).get("beats", 0) if blob else 0
    settings = open_campaign(sealer, campaign).settings
    return [scene_id] if settings.summaries and beats % settings.scene_beats == 0 else []


async def end_left_scenes(
    session: AsyncSession, sealer: Sealer, chat: Chat, reply: Message, *, turn_id: UUID
) -> None:
    """End open scenes that all player characters have left, as changes of the reply.

    A scene with a locked status stays open. So do all after a reply that is not for everyone.
    """
    if chat.campaign_id is None or reply.audience != PUBLIC:
        return
    campaign = await find_campaign(session, sealer, chat.campaign_id, lock=True)
    if campaign is None:
        return
    left = (await read_party(session, campaign.id)).left
    if not left:
        return
    states = await item_states(session, sealer, campaign, left)
    ended = [
        Change("scene", scene_id, Operations(set={"status": "closed"}))
        for scene_id, state in states.items()
        if "status" not in state.get("locked", ())
    ]
    if ended:
        await ledger_store.append(
            session, sealer, campaign, ended, actor="tool", message=reply, turn_id=turn_id
        )


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
